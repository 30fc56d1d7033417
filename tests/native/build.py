# SPDX-License-Identifier: Apache-2.0
"""Builds the internals of the C core as cffi modules, for tests alone.

Each `cdef_<name>.h` beside this file is one module. Its first lines say what goes into it::

    /* headers: wire.h encap.h */     declarations are cut out of these as they are
    /* sources: wire.c encap.c */     and these are compiled

Both are looked for in `csrc/`, then here. The rest of the file is given to cffi too: prototypes of
`static inline` functions, which are not taken from the headers. A test then says::

    from native.build import load
    ffi, lib = load("wire")

A module is compiled once for each content of its files and kept in `_build/`. With MRC_SANITIZE=1
in the environment it is compiled with the address and undefined-behaviour sanitizers; Python then
has to be started with LD_PRELOAD set to gcc's libasan.so.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import cffi

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent.parent / "csrc"
BUILD = HERE / "_build"

CFLAGS = ["-std=c11", "-O2", "-g", "-Wall"]
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
]


def is_sanitized() -> bool:
    """Whether modules are built with the sanitizers."""
    return os.environ.get("MRC_SANITIZE", "") not in {"", "0"}


def _directive(text: str, name: str) -> list[str]:
    match = re.search(rf"/\* {name}: ([^*]*) \*/", text)
    return match.group(1).split() if match else []


def _find(name: str) -> Path:
    for folder in (CSRC, HERE):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{name} is neither in {CSRC} nor in {HERE}")


def declarations(header: str) -> str:
    """What cffi can read of a header: no directives, inline functions and assertions."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    header = re.sub(r"^#.*?(?<!\\)$", "", header, flags=re.M | re.S)
    header = re.sub(r"^static inline [^;{]*\{(?:[^\n]*\}$|.*?^\}$)", "", header, flags=re.M | re.S)
    return re.sub(r"^static_assert\(.*?\);$", "", header, flags=re.M | re.S)


def _compile(module: str, texts: dict[str, str], cdef: str) -> None:
    headers = _directive(cdef, "headers")
    ffi = cffi.FFI()
    ffi.cdef("\n".join(declarations(texts[header]) for header in headers) + declarations(cdef))
    flags = CFLAGS + (SANITIZERS if is_sanitized() else [])
    ffi.set_source(
        module,
        "".join(f'#include "{header}"\n' for header in headers),
        sources=[str(_find(source)) for source in _directive(cdef, "sources")],
        include_dirs=[str(CSRC), str(HERE)],
        extra_compile_args=flags,
        extra_link_args=SANITIZERS if is_sanitized() else [],
        libraries=["pthread"],
    )
    with tempfile.TemporaryDirectory() as folder:
        ffi.compile(tmpdir=folder, target=f"{BUILD / module}.so")


@functools.cache
def load(name: str) -> tuple[Any, Any]:
    """Builds `cdef_<name>.h` if needed and imports it.

    Args:
        name: The module, as in `cdef_<name>.h`.

    Returns:
        cffi's `ffi` and `lib` of the module.

    Raises:
        FileNotFoundError: The file, or one that it names, is missing.
        cffi.VerificationError: The C compiler refused it.
    """
    cdef = (HERE / f"cdef_{name}.h").read_text()
    named = _directive(cdef, "headers") + _directive(cdef, "sources")
    texts = {each: _find(each).read_text() for each in named}
    digest = hashlib.sha256(f"{sys.version}{is_sanitized()}{cdef}".encode())
    digest.update(Path(__file__).read_bytes())
    for path in sorted([*CSRC.rglob("*.h"), *HERE.glob("*.h"), *map(_find, named)]):
        digest.update(path.read_bytes())
    module = f"_core_{name}_{digest.hexdigest()[:16]}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may start at once
        if not (BUILD / f"{module}.so").exists():
            for old in BUILD.glob(f"_core_{name}_*.so"):
                old.unlink()
            _compile(module, texts, cdef)
    spec = importlib.util.spec_from_file_location(module, BUILD / f"{module}.so")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.ffi, loaded.lib
