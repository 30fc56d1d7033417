# SPDX-License-Identifier: Apache-2.0
"""mrc-trace over real packets, through userspace switches and through Linux's own.

a ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
         └─ t1b ─┘
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rig.probed import PLANES, probe, wait_for_answers
from rig.test_cli import Command
from topologies import TWO_BY_TWO

from mrc.topology_file import parse
from tools.rig.fabric_rig import FabricRig
from tools.rig.host import Host
from tools.rig.kernel_fabric import KernelFabric

pytestmark = pytest.mark.rig

WAYS = {
    *(("a", "t0a"), ("a", "t0a", "t1a"), ("a", "t0a", "t1b")),
    *(("a", "t0a", "t1a", "t0b"), ("a", "t0a", "t1b", "t0b")),
}


def trace(host: Host, file: str, *words: str, code: int) -> dict[str, Any]:
    patience = ("--timeout", "0.3")
    return probe("mrc-trace", host, "b", "--topology", file, *patience, *words, code=code)


def ways(found: dict[str, Any]) -> dict[str, set[tuple[str, ...]]]:
    """The round trips of each plane."""
    told: dict[str, set[tuple[str, ...]]] = {}
    for each in found["round_trips"]:
        told.setdefault(each["plane"], set()).add(tuple(each["hops"]))
    return told


def silent_from(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Plane, T1 and first silent switch of every broken path."""
    return {
        (each["plane"], each["hops"][2], each["silent_from"])
        for each in found["paths"]
        if each["silent_from"] is not None
    }


def only_fault(found: dict[str, Any]) -> tuple[int, list[list[str]]]:
    (fault,) = found["faults"]
    return fault["plane"], [each["nodes"] for each in fault["elements"]]


def test_every_switch_is_reached_and_the_host_is_not_touched(fabric: FabricRig, file: str) -> None:
    def of_b() -> int:
        counters = fabric.fabric.counters()
        return sum(counters.get((plane, "t0b", "b"), {"sent": 0})["sent"] for plane in (0, 1))

    before = of_b()
    found = trace(fabric.hosts[0], file, code=0)
    assert of_b() == before
    assert ways(found) == {"p0": WAYS, "p1": WAYS}
    for each in found["round_trips"]:
        assert (each["sent"], each["answered"]) == (3, 3)
        # Out and back by links of 100 us to hosts, of 1 ms between switches.
        assert each["rtt_min_us"] >= 2 * (100 + 1000 * (len(each["hops"]) - 2))
    assert len(found["paths"]) == 4
    assert silent_from(found) == set()
    assert found["faults"] == []


@pytest.mark.parametrize(
    ("lower", "upper", "silent"),
    [("t0a", "t1b", "t1b"), ("t0b", "t1b", "t0b"), ("a", "t0a", "t0a")],
)
def test_a_dead_link_is_named(
    fabric: FabricRig, file: str, lower: str, upper: str, silent: str
) -> None:
    fabric.fabric.link(1, lower, upper, up=False)
    found = trace(fabric.hosts[0], file, code=1)
    plane, suspects = only_fault(found)
    assert plane == 1
    # Of our own link and our own switch neither can be passed by.
    assert suspects == ([[lower, upper]] if lower != "a" else [["a", "t0a"], ["t0a"]])
    broken = {"t1a", "t1b"} if lower == "a" else {"t1b"}
    assert silent_from(found) == {("p1", t1, silent) for t1 in broken}
    assert f"link {lower}-{upper}" in found["error"]


@pytest.mark.parametrize("switch", ["t1a", "t0b"])
def test_a_switch_that_is_silently_dead_is_named(fabric: FabricRig, file: str, switch: str) -> None:
    """A T1 that our own T0 cannot reach is asked for by way of the other T1 too."""
    fabric.fabric.silence(0, switch, on=True)
    found = trace(fabric.hosts[0], file, code=1)
    assert only_fault(found) == (0, [[switch]])
    assert f"at fault: switch {switch} of plane 0" in found["error"]
    broken = {"t1a"} if switch == "t1a" else {"t1a", "t1b"}
    assert silent_from(found) == {("p0", t1, switch) for t1 in broken}


def test_one_path_is_walked_by_its_entropy_value(fabric: FabricRig, file: str) -> None:
    found = trace(fabric.hosts[0], file, "--ev", "0x1001", code=0)
    assert [each["hops"] for each in found["paths"]] == [["a", "t0a", "t1b", "t0b", "b"]]
    assert ways(found) == {"p1": {way for way in WAYS if "t1a" not in way}}
    wrong = trace(fabric.hosts[0], file, "--ev", "0x1002", code=2)
    assert "uplink 2" in wrong["error"]


def test_a_loop_that_is_interrupted_tells_what_it_has(fabric: FabricRig, file: str) -> None:
    words = ("--topology", file, "--loop", "--interval", "0.05", "--timeout", "0.1", "--json")
    command = Command(fabric.hosts[0], "mrc-trace", *PLANES, *words, "b")
    wait_for_answers(fabric)
    fabric.fabric.silence(0, "t1a", on=True)
    command.wait_until_it_says("p0 (a t0a t1a): silent")
    fabric.fabric.silence(0, "t1a", on=False)
    command.wait_until_it_says("p0 (a t0a t1a): answers again")
    command.interrupt()
    found = json.loads(command.end(130))
    assert found["error"] == "interrupted"
    assert any(0 < each["answered"] < each["sent"] for each in found["round_trips"])


def test_a_plane_that_is_down_here_is_named(file: str) -> None:
    with FabricRig(Path(file)) as rig:
        rig.set_link(1, "a", "t0a", up=False)
        found = trace(rig.hosts[0], file, code=1)
    assert only_fault(found) == (1, [["a", "t0a"], ["t0a"]])


def test_what_six_usids_do_not_hold_goes_on_in_an_srh(tmp_path: Path) -> None:
    """A block of 48 bits leaves room for five, and a round trip to the far T0 takes six.

    Structured EVs name the paths of data here: round trips go by uSIDs all the same.
    """
    file = tmp_path / "topology.toml"
    file.write_text('routing = "stev"\n' + TWO_BY_TWO.replace("/32", "/48"))
    with FabricRig(file) as rig:
        rig.fabric.link(1, "t0b", "t1b", up=False)
        found = trace(rig.hosts[0], str(file), code=1)
    assert ways(found) == {"p0": WAYS, "p1": WAYS}
    assert only_fault(found) == (1, [["t0b", "t1b"]])


def test_linux_s_own_switches_lead_round_trips_back_and_a_dead_one_is_named(file: str) -> None:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        assert ways(trace(fabric.host("a"), file, code=0)) == {"p0": WAYS, "p1": WAYS}
        fabric.remove_switch("t1a", 0)
        fabric.cut("t0a", "t1b", 1)
        found = trace(fabric.host("a"), file, code=1)
        named = {tuple(each["nodes"]) for fault in found["faults"] for each in fault["elements"]}
        # That the T1 behind the link lives is known by a way around it, in an SRH.
        assert named == {("t1a",), ("t0a", "t1b")}
