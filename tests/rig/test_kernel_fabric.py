# SPDX-License-Identifier: Apache-2.0
"""Our uSIDs over an SRv6 implementation that none of us wrote: Linux as every switch.

a ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes, every switch a namespace
         └─ t1b ─┘
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from rig.transfer import ENVIRONMENT, Transfer
from topologies import TWO_BY_TWO

from mrc.topology_file import parse
from tools.rig.kernel_fabric import KernelFabric

pytestmark = pytest.mark.rig

PATHS = "import sys; from mrc.cli.paths import main; sys.exit(main())"


@pytest.fixture
def file(tmp_path: Path) -> str:
    made = tmp_path / "topology.toml"
    made.write_text(TWO_BY_TWO)
    return str(made)


@pytest.fixture
def fabric() -> Iterator[KernelFabric]:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        yield fabric


def transfer(fabric: KernelFabric, file: str, size: int, *settings: str) -> Transfer:
    return Transfer(fabric.host("a"), fabric.host("b"), file, size, *settings)


def predicted(fabric: KernelFabric, file: str) -> dict[tuple[str, int], set[IPv6Address]]:
    """What `mrc-paths` says will be seen at each switch and plane, both ways."""
    seen: dict[tuple[str, int], set[IPv6Address]] = {}
    for source, destination in (("a", "b"), ("b", "a")):
        command = [sys.executable, "-c", PATHS, destination, "--json"]
        # A host finds out by its own addresses which one it is.
        listed = fabric.host(source).run([*command, "--topology", file], env=ENVIRONMENT)
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
    assert transfer(fabric, file, 8 << 20, f"srh={json.dumps(srh)}").is_right()
    expected = predicted(fabric, file)
    assert len(expected) == 2 * 4
    found = {at: fabric.seen(*at) for at in expected}
    for at, addresses in expected.items():
        assert set(found[at]) <= addresses, at
    # Every path was used; how much of it is another test's matter.
    carried = [found["t0a", path.plane][path.address] for path in fabric.topology.paths("a", "b")]
    assert all(carried), carried


def test_a_switch_that_is_deleted_on_the_way_costs_nothing_but_its_paths(
    fabric: KernelFabric, file: str
) -> None:
    fabric.watch()
    under_way = transfer(fabric, file, 64 << 20)
    deadline = time.monotonic() + 30
    while sum(fabric.seen("t1b", 1).values()) < 500:
        assert time.monotonic() < deadline, "nothing crossed t1b"
        time.sleep(0.01)
    fabric.remove_switch("t1b", 1)
    assert under_way.is_right()


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
    done = fabric.host("a").run([sys.executable, "-c", program], env=ENVIRONMENT, check=False)
    assert "ConfigError: plane p1 is number 0 and has the address fd00:1::1" in done.stderr


def test_the_fabric_leaves_nothing_behind() -> None:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        names = {fabric.netns("a", 0), fabric.netns("t1b", 1)}
        assert all(Path("/run/netns", name).exists() for name in names)
    assert not any(Path("/run/netns", name).exists() for name in names)
