# SPDX-License-Identifier: Apache-2.0
"""Builds `mrc._core`: a PEP 517 backend that is setuptools with one cffi extension.

The declarations for cffi are cut out of `csrc/mrc*.h` between the marks `/* cffi: begin */` and
`/* cffi: end */`, so that no declaration stands twice; the sources are all of `csrc/*.c` and
`csrc/sim/*.c`. `python tools/backend.py` builds the extension in place, into `mrc/`, and beside it
the rig's switch fabric, `tools/fabric/_fabric`, which is no part of the library; CFLAGS and LDFLAGS
of the environment are added to the flags, which is how `-Werror` and the sanitizers come in.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import cffi
import setuptools
from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
GLUE = Path("build", "_core.c")
CFLAGS = ["-std=c11", "-O2", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wcast-qual"]
WARNINGS += ["-Wstrict-prototypes", "-Wmissing-prototypes"]

# What gcc has to say about the code that cffi writes is not ours to mend.
GLUE_QUIET = "".join(
    f'#pragma GCC diagnostic ignored "{warning}"\n'
    for warning in ("-Wpedantic", "-Wconversion", "-Wcast-qual", "-Wmissing-prototypes")
)

FABRIC_HEADERS = ["csrc/fabric/fabric.h", "tools/fabric/packet_io.h"]

# The stable ABI of CPython 3.11, except where a build of Python has none.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")


def sources(suffix: str) -> list[str]:
    """The files of the core, the engine and the simulator."""
    found = [*Path("csrc").glob(f"*.{suffix}"), *Path("csrc/sim").glob(f"*.{suffix}")]
    return sorted(path.as_posix() for path in found)


def headers() -> list[str]:
    """The headers that Python sees, `mrc.h` first: the others use its types."""
    return sorted(path.as_posix() for path in Path("csrc").glob("mrc*.h"))


def declarations(header: str) -> str:
    """The marked part of a header.

    Raises:
        ValueError: A mark is missing.
    """
    text = Path(header).read_text()
    marked = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", text, re.S)
    if marked is None:
        raise ValueError(f"{header} has no part between the marks `cffi: begin` and `cffi: end`")
    return marked.group(1)


def write_glue() -> None:
    """Writes cffi's C code for the headers to `GLUE`."""
    ffi = cffi.FFI()
    ffi.cdef("".join(map(declarations, headers())))
    includes = "".join(f'#include "{Path(header).name}"\n' for header in headers())
    ffi.set_source("mrc._core", includes, compiler_verbose=0)
    GLUE.parent.mkdir(exist_ok=True)
    ffi.emit_c_code(str(GLUE))
    GLUE.write_text(GLUE_QUIET + GLUE.read_text())


def build_fabric() -> None:
    """Builds `tools/fabric/_fabric`: csrc/fabric and the packet sockets around it."""
    ffi = cffi.FFI()
    ffi.cdef("".join(map(declarations, FABRIC_HEADERS)))
    includes = "".join(f'#include "{Path(header).name}"\n' for header in FABRIC_HEADERS)
    sources = [*Path("csrc/fabric").glob("*.c"), Path("csrc/timer_heap.c")]
    ffi.set_source(
        "_fabric",
        GLUE_QUIET + includes,
        sources=sorted(
            str(path.resolve()) for path in [*sources, *Path("tools/fabric").glob("*.c")]
        ),
        include_dirs=[
            str(Path(folder).resolve()) for folder in ("csrc", "csrc/fabric", "tools/fabric")
        ],
        undef_macros=["NDEBUG"],
        extra_compile_args=[*CFLAGS, "-Wall", "-Wextra"],
    )
    target = Path("tools/fabric/_fabric.*").resolve()
    ffi.compile(tmpdir="build/fabric", target=str(target))


def setup() -> None:
    """Runs setuptools, on the command line's arguments, with the extension."""
    write_glue()
    extension = setuptools.Extension(
        "mrc._core",
        [GLUE.as_posix(), *sources("c")],
        include_dirs=["csrc"],
        # Also what the sdist holds besides the sources.
        depends=[*sources("h"), "csrc/fabric/port_queue.h", "tools/backend.py"],
        undef_macros=["NDEBUG"],  # Python's own flags would turn the assertions off
        extra_compile_args=[*CFLAGS, *WARNINGS],
        libraries=["pthread"],
        py_limited_api=STABLE_ABI,
    )
    setuptools.setup(
        ext_modules=[extension],
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
    )


class Backend(build_meta._BuildMetaBackend):
    """setuptools' backend with our call of `setup` where a project's setup.py would be."""

    def run_setup(self, setup_script: str = "setup.py") -> None:
        """Called by each hook below, with the arguments of its command in sys.argv."""
        setup()


_backend = Backend()
get_requires_for_build_wheel = _backend.get_requires_for_build_wheel
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
get_requires_for_build_editable = _backend.get_requires_for_build_editable
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable
build_wheel = _backend.build_wheel
build_sdist = _backend.build_sdist
build_editable = _backend.build_editable

if __name__ == "__main__":
    os.chdir(ROOT)
    build_fabric()
    sys.argv[1:] = ["--quiet", "build_ext", "--inplace"]
    setup()
