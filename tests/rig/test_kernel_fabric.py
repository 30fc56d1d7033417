# SPDX-License-Identifier: Apache-2.0
"""Our uSIDs over an SRv6 implementation that none of us wrote: Linux as every switch.

a ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes, every switch a namespace
         └─ t1b ─┘
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from topologies import TWO_BY_TWO

from mrc.topology_file import parse
from tools.rig.kernel_fabric import KernelFabric

pytestmark = pytest.mark.rig

HERE = Path(__file__).resolve()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent.parent.parent)}
PATHS = "import sys; from mrc.cli.paths import main; sys.exit(main())"
STEERED = str(HERE.with_name("steered.py"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    made = tmp_path / "topology.toml"
    made.write_text(TWO_BY_TWO)
    return str(made)


@pytest.fixture
def fabric() -> Iterator[KernelFabric]:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        yield fabric


class Transfer:
    """One message of `size` bytes from a to b, under way."""

    def __init__(self, fabric: KernelFabric, file: str, size: int, *, srh: bool = False) -> None:
        server, client = fabric.hosts["b"], fabric.hosts["a"]
        words = [file, server.address(0), str(size), "srh" if srh else "plain"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
        listening = server.popen([sys.executable, STEERED, "server", *words], **streams)
        assert listening.stdout is not None
        if listening.stdout.readline() != '"listening"\n':
            pytest.fail(listening.communicate(timeout=10)[1])
        self._client = client.popen([sys.executable, STEERED, "client", *words], **streams)

    def is_right(self) -> bool:
        out, err = self._client.communicate(timeout=60)
        assert self._client.returncode == 0, err
        return bool(json.loads(out)["right"])


def predicted(fabric: KernelFabric, file: str) -> dict[tuple[str, int], set[IPv6Address]]:
    """What `mrc-paths` says will be seen at each switch and plane, both ways."""
    seen: dict[tuple[str, int], set[IPv6Address]] = {}
    for source, destination in (("a", "b"), ("b", "a")):
        command = [sys.executable, "-c", PATHS, destination, "--json"]
        # A host finds out by its own addresses which one it is.
        listed = fabric.hosts[source].run([*command, "--topology", file], env=ENVIRONMENT)
        result: dict[str, Any] = json.loads(listed.stdout)
        assert (result["from"], result["to"]) == (source, destination)
        for path in result["paths"]:
            for node, address in zip(path["hops"][1:-1], path["seen"], strict=False):
                seen.setdefault((node, path["plane"]), set()).add(IPv6Address(address))
    return seen


@pytest.mark.parametrize("srh", [False, True], ids=["plain", "SRH"])
def test_every_address_at_every_hop_is_the_one_that_mrc_paths_predicts(
    fabric: KernelFabric, file: str, srh: bool
) -> None:
    fabric.watch()
    assert Transfer(fabric, file, 8 << 20, srh=srh).is_right()
    expected = predicted(fabric, file)
    assert len(expected) == 2 * 4
    found = {at: fabric.seen(*at) for at in expected}
    for at, addresses in expected.items():
        assert set(found[at]) <= addresses, at
    # Data used every path: all of it crosses the first switch.
    for path in fabric.topology.paths("a", "b"):
        assert found["t0a", path.plane][path.address] > 100, path


def test_a_switch_that_is_deleted_on_the_way_costs_nothing_but_its_paths(
    fabric: KernelFabric, file: str
) -> None:
    fabric.watch()
    transfer = Transfer(fabric, file, 64 << 20)
    deadline = time.monotonic() + 30
    while sum(fabric.seen("t1b", 1).values()) < 500:
        assert time.monotonic() < deadline, "nothing crossed t1b"
        time.sleep(0.01)
    fabric.remove_switch("t1b", 1)
    assert transfer.is_right()


def test_a_wrong_plane_order_is_told_before_anything_is_sent(
    fabric: KernelFabric, file: str
) -> None:
    program = (
        "import asyncio, mrc\n"
        f"config = mrc.Config(routing='srv6', topology={file!r})\n"
        "async def main():\n"
        "    async with mrc.Endpoint(planes=['p1', 'p0'], config=config): pass\n"
        "asyncio.run(main())\n"
    )
    done = fabric.hosts["a"].run([sys.executable, "-c", program], env=ENVIRONMENT, check=False)
    assert "ConfigError: plane p1 is number 0 and has the address fd00:1::1" in done.stderr


def test_the_fabric_leaves_nothing_behind() -> None:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        names = {fabric.netns("a", 0), fabric.netns("t1b", 1)}
        assert all(Path("/run/netns", name).exists() for name in names)
    assert not any(Path("/run/netns", name).exists() for name in names)
