# SPDX-License-Identifier: Apache-2.0
"""Data keeps off what the operator denies, and events of paths name their hops, on real packets.

a ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
         └─ t1b ─┘
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rig.probed import PLANES, listen
from rig.test_cli import Command

from tools.rig.fabric_rig import FabricRig

pytestmark = pytest.mark.rig

SIZE = 24 << 20


def send(fabric: FabricRig, file: str, data: Path, *words: str) -> Command:
    """mrc-send from a to b."""
    listen(fabric.hosts[1], file)
    common = (*PLANES, "--json", "--topology", file)
    return Command(fabric.hosts[0], "mrc-send", *common, *words, str(data), "b")


def uplinks(fabric: FabricRig) -> dict[tuple[int, str], int]:
    """Bytes that t0a has sent to each T1 of each plane."""
    counters = fabric.fabric.counters()
    return {
        (plane, t1): counters.get((plane, "t0a", t1), {"sent_bytes": 0})["sent_bytes"]
        for plane in (0, 1)
        for t1 in ("t1a", "t1b")
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.write_bytes(bytes(SIZE))
    return made


def test_no_data_takes_a_link_or_a_switch_that_is_denied(
    fabric: FabricRig, file: str, data: Path
) -> None:
    before = uplinks(fabric)
    send(fabric, file, data, "--deny", "t1a@0", "--deny", "t0b-t1b@1").end(0)
    used = {port: sent - before[port] for port, sent in uplinks(fabric).items()}
    denied = {(0, "t1a"), (1, "t1b")}
    assert sum(used.values()) > SIZE
    # Probes go there all the same.
    assert sum(used[port] for port in denied) * 20 < sum(used.values()), used


def test_what_is_denied_and_not_there_is_a_usage_error(
    fabric: FabricRig, file: str, data: Path
) -> None:
    found = json.loads(send(fabric, file, data, "--deny", "t1z").end(2))
    assert "no switch or link 't1z'" in found["error"]


def test_a_path_that_is_left_is_named_by_its_hops(
    fabric: FabricRig, file: str, tmp_path: Path
) -> None:
    data = tmp_path / "more"
    with data.open("wb") as out:
        out.truncate(192 << 20)
    command = send(fabric, file, data, "--verbose")
    until = time.monotonic() + 30
    while min(uplinks(fabric).values()) < 1 << 20:
        assert time.monotonic() < until, "no data on every path in 30 s"
        time.sleep(0.02)
    fabric.fabric.silence(1, "t1b", on=True)
    line = command.wait_until_it_says(
        "path p1 0x1001 (a t0a t1b t0b b) is left: it loses; at fault"
    )
    assert "switch t1b of plane 1" in line
    found = json.loads(command.end(0))
    told = [each for each in found["path_events"] if each["event"] == "path_bad"]
    hops = [each["hops"] for each in told if each["plane"] == "p1" and each["ev"] & 1]
    assert hops
    assert all(each == ["a", "t0a", "t1b", "t0b", "b"] for each in hops)
