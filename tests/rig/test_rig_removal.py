# SPDX-License-Identifier: Apache-2.0
"""However a run ends, its rig is removed; and the command, whose rig stays until it is told."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datagrams import wait_until

from tools.rig import Rig, shell
from tools.rig.__main__ import main
from tools.rig.names import clean, listed

pytestmark = pytest.mark.rig

ROOT = Path(__file__).resolve().parents[2]
PREFIX = f"rigtest{os.getpid()}"

PROGRAM = f"""
import sys, time
from tools.rig import Rig, shell
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


@pytest.mark.parametrize("switches", ["userspace", "kernel"])
def test_a_rig_with_switches_stays_until_it_is_told(
    switches: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tools.rig", "--prefix", PREFIX]
    counts = ["--hosts", "3", "--planes", "2", "--t0", "2", "--t1", "2"]
    text = subprocess.check_output(
        [*command, "up", *counts, "--switches", switches, "--json"], cwd=ROOT, text=True
    )
    hosts = json.loads(text)["hosts"]
    assert [host["namespace"] for host in hosts] == [f"{PREFIX}-{name}" for name in "abc"]
    assert received(hosts[0], hosts[1]) == b"over both T0"

    assert main(["--prefix", PREFIX, "up", *counts]) == 1
    assert "there is such a rig already" in capsys.readouterr().err
    assert main(["--prefix", PREFIX, "status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["namespace"] for each in found["staying"]} == set(namespaces())
    nodes = {each["node"] for each in found["staying"]} - {""}
    of_planes = {f"{name} of plane {plane}" for name in SWITCHES for plane in (0, 1)}
    assert nodes == (of_planes if switches == "kernel" else set())
    assert (found["fabric"] is None) == (switches == "kernel")

    assert main(["--prefix", PREFIX, "down", "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert {each["namespace"] for each in found["staying"]} == set(removed)
    assert namespaces() == []
    assert not Path(found["topology"]).exists()


SWITCHES = ("t0a", "t0b", "t1a", "t1b")


def received(source: dict[str, Any], destination: dict[str, Any]) -> bytes:
    """What arrives of a datagram on the second plane."""

    def opened(host: dict[str, Any]) -> socket.socket:
        return shell.inside(
            host["namespace"], lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        )

    with opened(source) as sender, opened(destination) as receiver:
        receiver.bind(("::", 5001))
        receiver.settimeout(10)
        where = destination["addresses"][1].split("/")[0]
        sender.sendto(b"over both T0", (where, 5001))
        return receiver.recv(100)


def test_orders_reach_the_fabric_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tools.rig", "--prefix", PREFIX]
    up = subprocess.check_output([*command, "up", "--t0", "2", "--t1", "2"], cwd=ROOT, text=True)
    orders = [shlex.split(line)[-1] for line in up.splitlines() if " order " in line]
    assert len(orders) == 7
    for order in orders:
        assert main(["--prefix", PREFIX, "order", order]) == 0
    order = '{"do": "link", "plane": 1, "node": "t0a", "next": "t1b", "up": false}'
    assert main(["--prefix", PREFIX, "order", order]) == 0
    capsys.readouterr()
    assert main(["--prefix", PREFIX, "status"]) == 0
    assert "t0a-t1b of plane 1" in capsys.readouterr().out.splitlines()[-1]
    assert main(["--prefix", PREFIX, "order", '{"do": "dance"}']) == 1
    assert "there is no order 'dance'" in capsys.readouterr().err


def test_down_also_removes_what_a_killed_run_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    with program() as process:
        process.kill()
        process.wait(30)
    left = namespaces()
    assert main(["--prefix", PREFIX, "down"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"removed {name}" for name in left]
    assert namespaces() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefix", "../x", "down"], "'../x' cannot be the prefix"),
        (["up", "--hosts", "a,x", "--t0", "1"], "need a --topology"),
        (["up", "--hosts", "27"], "27 hosts have no letters"),
        (["up", "--t0", "0"], "1 to 26"),
        (["up", "--t1", "27"], "1 to 26"),
        (["up", "--topology", "no-such.toml"], "no-such.toml: No such file"),
        (["order", "[]"], "an order is an object"),
    ],
)
def test_a_command_that_makes_no_sense_says_so_and_builds_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = [] if arguments[0] == "--prefix" else ["--prefix", PREFIX]
    assert main([*prefix, *arguments]) == 2
    assert message in capsys.readouterr().err
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
