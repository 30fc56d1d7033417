# SPDX-License-Identifier: Apache-2.0
"""However a run ends, its rig is removed; and the command, whose rig stays until it is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from datagrams import wait_until

from tools.rig import Rig
from tools.rig.__main__ import main
from tools.rig.names import clean, listed

pytestmark = pytest.mark.rig

ROOT = Path(__file__).resolve().parents[2]
PREFIX = f"rigtest{os.getpid()}"

PROGRAM = f"""
import sys, time
from tools.rig import Rig
with Rig(planes=1, prefix="{PREFIX}") as rig:
    # One that the rig knows, and one that has gone its own ways.
    rig.hosts[0].popen(["sleep", "300"])
    rig.hosts[1].run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"])
    print("up", flush=True)
    time.sleep(300)
"""


def namespaces() -> list[str]:
    return [name for name in listed() if name.startswith(f"{PREFIX}-")]


def inside() -> list[int]:
    """The processes in any of the namespaces."""
    command = ["ip", "netns", "pids"]
    texts = (subprocess.check_output([*command, name], text=True) for name in namespaces())
    return [int(pid) for text in texts for pid in text.split()]


@contextlib.contextmanager
def program() -> Iterator[subprocess.Popen[str]]:
    """A process with a rig that is up."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def nothing_of_ours_is_left() -> Iterator[None]:
    yield
    main(["--prefix", PREFIX, "down"])
    clean(PREFIX)
    assert namespaces() == []


def running(pids: list[int]) -> list[int]:
    """Those of the processes that exist and have not ended."""
    states = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state not in "ZX"]


def test_a_run_that_is_terminated_removes_its_rig_and_its_processes() -> None:
    with program() as process:
        pids = inside()
        assert len(pids) == 2
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert namespaces() == []
    wait_until(lambda: running(pids) == [], "both processes gone")


def test_what_a_killed_run_leaves_is_removed_by_the_next_rig() -> None:
    with program() as process:
        pids = inside()
        process.kill()
        process.wait(30)
    assert len(namespaces()) == 3
    assert len(running(pids)) == 2
    with Rig(planes=1, prefix=PREFIX) as rig:
        assert namespaces() == sorted([*(host.name for host in rig.hosts), f"{rig.planes[0].hub}"])
    assert namespaces() == []
    wait_until(lambda: running(pids) == [], "both processes gone")


def test_what_a_killed_run_leaves_is_removed_by_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with program() as process:
        process.kill()
        process.wait(30)
    left = namespaces()
    assert main(["--prefix", PREFIX, "clean"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"removed {name}" for name in left]
    assert namespaces() == []


def test_the_rig_of_a_run_that_lives_is_nobodys_leftover() -> None:
    with program():
        before = namespaces()
        assert len(before) == 3
        assert clean(PREFIX) == []
        assert namespaces() == before


def test_an_exception_removes_the_rig_and_kills_its_processes() -> None:
    with pytest.raises(ZeroDivisionError), Rig(planes=1, prefix=PREFIX) as rig:  # noqa: PT012
        sleeper = rig.hosts[0].popen(["sleep", "300"])
        raise ZeroDivisionError
    assert sleeper.returncode == -signal.SIGKILL
    assert namespaces() == []


def test_a_fork_does_not_remove_the_rig_of_its_parent() -> None:
    with Rig(planes=1, prefix=PREFIX) as rig:
        pid = os.fork()
        if pid == 0:
            rig.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(namespaces()) == 3


def test_the_commands_rig_stays_until_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tools.rig", "--prefix", PREFIX]
    up = subprocess.check_output([*command, "up", "--planes", "2"], cwd=ROOT, text=True)
    assert f"ip netns exec {PREFIX}-a mrc-send FILE fd00::2" in up
    listing = subprocess.check_output(
        [*command, "exec", "b", "ls", "/sys/class/net"], cwd=ROOT, text=True
    )
    assert listing.split() == ["lo", "p0", "p1"]

    assert main(["--prefix", PREFIX, "up"]) == 1
    assert "there is such a rig already" in capsys.readouterr().err
    assert main(["--prefix", PREFIX, "clean"]) == 0
    assert main(["--prefix", PREFIX, "status"]) == 0
    assert f"{PREFIX}-a  stays" in capsys.readouterr().out.splitlines()

    assert main(["--prefix", PREFIX, "down"]) == 0
    assert namespaces() == []


def test_the_lines_to_paste_do_what_they_say() -> None:
    command = [sys.executable, "-m", "tools.rig", "--prefix", PREFIX]
    up = subprocess.check_output([*command, "up", "--planes", "1"], cwd=ROOT, text=True)
    # All but the transfer and what follows the faults: they need the library.
    faults = [line for line in up.splitlines() if line.startswith(("ip -n", "tc -n"))]
    faults += [line for line in up.splitlines() if " nft " in line]
    assert len(faults) == 7
    for line in faults:
        subprocess.run(["sh", "-ec", line], check=True, timeout=30)
