# SPDX-License-Identifier: Apache-2.0
"""What a user gets who has a C compiler and pip: an sdist, a wheel from it, the commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("mrc-send", "mrc-recv", "mrc-perf", "mrc-paths")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy of the sources, so that nothing that lies about here gets into it."""
    tree = tmp_path_factory.mktemp("tree")
    for each in ("pyproject.toml", "README.md", "LICENSE"):
        (tree / each).write_bytes((ROOT / each).read_bytes())
    for pattern in (
        "csrc/*.[ch]",
        "csrc/sim/*.[ch]",
        "csrc/fabric/port_queue.h",
        "mrc/**/*.py",
        "mrc/py.typed",
        "tools/backend.py",
    ):
        for path in ROOT.glob(pattern):
            copy = tree / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    script = "import sys; sys.path.insert(0, 'tools'); import backend; backend.build_sdist('dist')"
    run(sys.executable, "-c", script, cwd=tree)
    (found,) = (tree / "dist").glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Built as pip builds it for a user: isolated, from the sdist alone."""
    folder = sdist.parent
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, sdist, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of a new environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("user")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    run(folder / "venv/bin/python", "-m", "pip", "install", wheel, cwd=folder)
    return folder / "venv/bin"


def test_the_sdist_holds_every_source_header_and_the_backend(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("csrc/*.[ch]")}
    assert sources | {"tools/backend.py", "mrc/py.typed", "LICENSE"} <= names


def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {"mrc/__init__.py", "mrc/py.typed", "mrc/cli/send.py"} <= set(names)
    assert all(name.startswith("mrc/") for name in names)


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert "-cp311-abi3-linux" in wheel.name


def test_the_installed_library_can_be_imported(scripts: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = "import mrc, mrc.wire; print(mrc.__file__)"
    out = run(scripts / "python", "-c", script, cwd=scripts.parent, env=clean)
    assert Path(out.strip()).is_relative_to(scripts.parent)


def test_a_folder_of_the_same_name_does_not_hide_an_editable_install(
    sdist: Path, tmp_path: Path
) -> None:
    """Its wheel must name the tree on a path: finders come after the working directory."""
    script = "import sys; sys.path.insert(0, 'tools'); import backend; backend.build_editable('.')"
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    run(sys.executable, "-c", script, cwd=tree)
    (wheel,) = tree.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [archive.read(name).decode().strip() for name in names] == [str(tree)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_installed_command_explains_itself(scripts: Path, command: str) -> None:
    assert command in run(scripts / command, "--help", cwd=scripts.parent)
