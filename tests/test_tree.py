# SPDX-License-Identifier: Apache-2.0
"""The tree obeys its own rules: who may know whom, and how long a piece of it may be."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# What stands outside the core: the engine, and what it alone uses.
DRIVERS = {"engine", "engine_calls", "plane_socket", "netlink_watch"}

# What the compiler itself may call; everything else is a system or a library call. The last is
# libgcc's arithmetic, for processors without the instruction.
ALLOWED_CALLS = {"memcpy", "memmove", "memset", "memcmp", "__assert_fail", "__stack_chk_fail"}
ALLOWED_CALLS |= {"__popcountdi2"}

CFLAGS = [
    *("-std=c11", "-O1", "-fno-pie", "-Werror", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion"),
    *("-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wcast-qual"),
]

# The files of csrc/ by layer (a stem stands for its .c and .h), and the layers that each may
# include. State machines never see bytes, formats never see state, and the state files are
# strangers to each other.
LAYERS = {
    "leaf": {"bytes", "hindsight", "mrc", "pool", "prng", "psn", "ring"},
    "bytes": {"encap", "icrc", "icrc_table", "srv6"},
    "packet": {"wire"},
    "state": {
        *("config", "ev_profile", "events", "loss", "memory_table", "nscc", "path"),
        *("psn_window", "timer_heap"),
    },
    "group": {"peer", "suspects"},
    "requestor": {"requestor", "requestor_transmit"},
    "responder": {"responder"},
    "endpoint": {
        *("endpoint", "endpoint_events", "endpoint_probe", "endpoint_receive"),
        "endpoint_transmit",
    },
    "tool": {"mrc_wire", "mrc_sim"},
    "driver": {"mrc_engine", *DRIVERS},
}
MAY_INCLUDE = {
    "leaf": set[str](),
    "bytes": {"leaf", "bytes"},
    "packet": {"leaf", "bytes"},
    "state": {"leaf"},
    "group": {"leaf", "state"},
    "requestor": {"leaf", "packet", "state", "group", "requestor"},
    "responder": {"leaf", "packet", "state", "group"},
    "endpoint": {
        *("leaf", "bytes", "packet", "state", "group"),
        *("requestor", "responder", "endpoint"),
    },
    "tool": {"leaf", "bytes", "packet"},
    "driver": {"leaf", "driver"},
}

# The files of csrc/sim/, the simulator: it knows endpoints by their interface, and of packets what
# a switch reads of them.
SIM_MAY_INCLUDE = {"bytes", "encap", "fabric/port_queue", "mrc_sim", "prng", "wire"}

# The files of csrc/fabric/, the network between endpoints: it knows of MRC what a switch does.
FABRIC_MAY_INCLUDE = {"bytes", "pool", "timer_heap"}

FUNCTION_LINES = 70
FILE_LINES = 800
LINE_COLUMNS = 100


def sources(*suffixes: str) -> list[Path]:
    """Our own files with one of these suffixes, but not what a build wrote."""
    found = [
        path
        for folder in ("csrc", "mrc", "tools", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and not {"_build", "__pycache__"} & set(path.parts)
    ]
    assert found
    return sorted(found)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["core", "fabric"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All objects of the core in one, or all of the fabric."""
    folder = tmp_path_factory.mktemp("core")
    files = [path for path in sorted(CSRC.glob("*.c")) if path.stem not in DRIVERS]
    if request.param == "fabric":
        files = [*sorted(CSRC.glob("fabric/*.c")), CSRC / "timer_heap.c"]
    for path in files:
        run("gcc", *CFLAGS, f"-I{CSRC}", "-c", path, "-o", folder / f"{path.stem}.o")
    run("ld", "-r", "-o", folder / "core", *(folder / f"{path.stem}.o" for path in files))
    return folder / "core"


def test_the_core_calls_nobody(core: Path) -> None:
    called = {line.split()[-1] for line in run("nm", "-u", core).splitlines()}
    assert called <= ALLOWED_CALLS


def test_the_core_has_no_variables(core: Path) -> None:
    symbols = [line.split() for line in run("nm", core).splitlines()]
    variables = [symbol[-1] for symbol in symbols if symbol[-2] in set("bBdDgGsSC")]
    assert variables == []


def layer(stem: str) -> str:
    found = [each for each, stems in LAYERS.items() if stem in stems]
    assert len(found) == 1, f"give csrc/{stem} its place in LAYERS"
    return found[0]


@pytest.mark.parametrize("path", sorted(CSRC.glob("*.[ch]")), ids=lambda path: path.name)
def test_a_c_file_includes_only_what_its_layer_may_know(path: Path) -> None:
    allowed = MAY_INCLUDE[layer(path.stem)]
    for included in re.findall(r'#include "(\w+)\.h"', path.read_text()):
        assert included == path.stem or layer(included) in allowed, included


def test_the_fabric_s_sockets_compile_without_a_warning(tmp_path: Path) -> None:
    source = ROOT / "tools/fabric/packet_io.c"
    run("gcc", *CFLAGS, f"-I{CSRC}", f"-I{CSRC}/fabric", "-c", source, "-o", tmp_path / "o")


def test_the_fabric_knows_nothing_of_endpoints() -> None:
    own = {path.stem for path in CSRC.glob("fabric/*.h")}
    for path in CSRC.glob("fabric/*.[ch]"):
        included = set(re.findall(r'#include "(\w+)\.h"', path.read_text()))
        assert included <= own | FABRIC_MAY_INCLUDE, path.name


def test_the_simulator_knows_endpoints_by_their_interface_alone() -> None:
    own = {f"sim/{path.stem}" for path in CSRC.glob("sim/*.h")}
    for path in CSRC.glob("sim/*.[ch]"):
        included = set(re.findall(r'#include "([\w/]+)\.h"', path.read_text()))
        assert included <= own | SIM_MAY_INCLUDE, path.name


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Every (module, name) that a Python file imports; the name is "" for a whole module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            yield from ((node.module or "", alias.name) for alias in node.names)


def library() -> list[Path]:
    return [path for path in sources(".py") if name(path).startswith("mrc/")]


def test_ffi_and_lib_are_known_to_four_modules_alone() -> None:
    users = {
        name(path)
        for path in sources(".py")
        if name(path).startswith(("mrc/", "tools/"))
        for module, what in imports(path)
        if (module == "mrc._native" and what in {"ffi", "lib"}) or "_core" in (what, module[4:])
    }
    assert users <= {
        "mrc/_native.py",
        "mrc/buffers.py",
        "mrc/sim/simulation.py",
        "mrc/wire.py",
    }


def test_what_has_nothing_to_wait_for_does_not_import_asyncio() -> None:
    synchronous = {"errors", "config", "dissect", "wire", "_native", "planes", "topology"}
    synchronous |= {"steering", "topology_file", "verbs"}
    for path in library():
        if path.stem in synchronous:
            assert "asyncio" not in {module for module, _ in imports(path)}, name(path)


def test_the_library_knows_neither_its_commands_nor_scapy() -> None:
    for path in library():
        if path.parent.name == "cli":
            continue
        for module, what in imports(path):
            assert not f"{module}.{what}".startswith("mrc.cli"), name(path)
            assert not module.startswith("scapy") or path.stem == "dissect", name(path)


def test_errors_and_config_stand_below_everything_else() -> None:
    for path in library():
        if path.stem in {"errors", "config"}:
            ours = {module for module, _ in imports(path) if module.split(".")[0] == "mrc"}
            assert ours <= {"mrc.errors"}, name(path)


def c_functions(text: str) -> Iterator[tuple[int, int]]:
    """First line and number of lines of every function: from column 0 to a `}` in column 0."""
    start = body = 0
    for number, line in enumerate(text.splitlines(), 1):
        if body:
            if line == "}":
                yield start, number - start + 1
                body = 0
        else:
            if re.match(r"\w", line):
                start = number
            if line.endswith(") {") and start:
                body = number


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    """First line and number of lines, the docstring's not counted, of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            yield node.lineno, lines


def test_no_function_is_longer_than_70_lines() -> None:
    long = []
    for path in sources(".c", ".h", ".py"):
        functions = python_functions if path.suffix == ".py" else c_functions
        for line, count in functions(path.read_text()):
            if count > FUNCTION_LINES:
                long.append(f"{name(path)}:{line}: {count}")
    assert long == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int f(void) {\n    return 1;\n}\n", [(1, 3)]),
        ("int f(int a,\n      int b) {\n    if (a) {\n    }\n}\n", [(1, 5)]),
        ("struct s {\n    int a;\n};\nint g(void) {\n}\n", [(4, 2)]),
    ],
    ids=["one line", "wrapped arguments", "after a struct"],
)
def test_the_measure_of_c_functions_finds_them(text: str, expected: list[tuple[int, int]]) -> None:
    assert list(c_functions(text)) == expected


def test_no_file_is_longer_than_800_lines() -> None:
    lines = {name(path): path.read_text().count("\n") for path in sources(".c", ".h", ".py")}
    assert {each: count for each, count in lines.items() if count > FILE_LINES} == {}


def test_no_line_is_longer_than_100_columns() -> None:
    long = [
        f"{name(path)}:{number}"
        for path in sources(".c", ".h", ".py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LINE_COLUMNS
    ]
    assert long == []


def test_every_source_begins_with_its_licence() -> None:
    without = [
        name(path)
        for path in sources(".c", ".h", ".py", ".sh")
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(path.read_text().splitlines()[:2])
    ]
    assert without == []


def test_nothing_is_left_to_be_done() -> None:
    marks = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|NotImpl" r"emented")
    left = [
        f"{name(path)}:{number}"
        for path in [*sources(".c", ".h", ".py", ".sh"), ROOT / "Makefile", ROOT / "README.md"]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert left == []


def test_the_top_level_holds_these_files_and_no_other() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a clone, or no git")
    tracked = {line.split("/")[0] for line in run("git", "ls-files").splitlines()}
    expected = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "mrc",
        "csrc",
        "tests",
        "tools",
    }
    assert {each for each in tracked if not each.startswith(".")} == expected


def test_every_document_that_a_file_names_is_in_the_tree() -> None:
    """A reader can open what a comment or docstring sends them to."""
    documents = {path.name for path in [*sources(".md"), *ROOT.glob("*.md")]}
    strangers = [
        f"{name(path)}: {document}"
        for path in sources(".c", ".h", ".py", ".md", ".toml")
        for document in re.findall(r"[\w-]+\.md\b", path.read_text())
        if document not in documents
    ]
    assert strangers == []
