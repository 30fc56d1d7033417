# SPDX-License-Identifier: Apache-2.0
"""mrc-ping over real packets: userspace switches, Linux's own, and bare planes.

a ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
         └─ t1b ─┘
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rig.probed import PLANES, listen, probe, wait_for_answers
from rig.test_cli import Command
from topologies import TWO_BY_TWO

from mrc.topology_file import parse
from tools.rig import Rig
from tools.rig.fabric_rig import FabricRig
from tools.rig.host import Host
from tools.rig.kernel_fabric import KernelFabric

pytestmark = pytest.mark.rig


def ping(host: Host, *words: str, code: int) -> dict[str, Any]:
    return probe("mrc-ping", host, *words, code=code)


def test_every_path_answers_and_is_named(fabric: FabricRig, file: str) -> None:
    listen(fabric.hosts[1], file)
    found = ping(fabric.hosts[0], "b", "--topology", file, code=0)
    assert {tuple(each["hops"]) for each in found["paths"]} == {
        ("a", "t0a", t1, "t0b", "b") for t1 in ("t1a", "t1b")
    }
    for each in found["paths"]:
        assert (each["sent"], each["answered"]) == (3, 3)
        # Eight links of 100 us and of 1 ms, there and back.
        assert 4_400 <= each["rtt_min_us"] <= each["rtt_median_us"] <= each["rtt_max_us"]
    assert {name: each["paths"] for name, each in found["planes"].items()} == {"p0": 2, "p1": 2}
    assert found["faults"] == []


def test_a_dead_link_is_named_by_its_silent_paths(fabric: FabricRig, file: str) -> None:
    listen(fabric.hosts[1], file)
    fabric.fabric.link(1, "t0a", "t1b", up=False)
    words = ("--topology", file, "--timeout", "0.3")
    found = ping(fabric.hosts[0], "b", *words, code=1)
    assert found["error"].startswith("1 of 4 paths are silent; at fault: link t0a-t1b")
    silent = [each for each in found["paths"] if not each["answered"]]
    assert [(each["plane"], each["hops"][2]) for each in silent] == [("p1", "t1b")]
    assert silent[0]["rtt_min_us"] is None
    (fault,) = found["faults"]
    assert {"kind": "link", "nodes": ["t0a", "t1b"]} in fault["elements"]
    assert all("t1a" not in each["nodes"] for each in fault["elements"])


def test_a_ping_disturbs_no_listener_that_waits_for_one_connection(
    fabric: FabricRig, file: str, tmp_path: Path
) -> None:
    receiver = listen(fabric.hosts[1], file, "--once")
    for _ in range(2):
        ping(fabric.hosts[0], "b", "--topology", file, "--count", "1", code=0)
    sent = tmp_path / "file"
    sent.write_bytes(bytes(100_000))
    sender = Command(fabric.hosts[0], "mrc-send", *PLANES, "--topology", file, str(sent),
                     f"[{fabric.hosts[1].address(0)}]:4791")  # fmt: skip
    sender.end(0)
    receiver.end(0)


def test_a_loop_that_is_interrupted_tells_what_it_has(fabric: FabricRig, file: str) -> None:
    listen(fabric.hosts[1], file)
    words = ("--topology", file, "--loop", "--interval", "0.05", "--timeout", "0.1", "--json")
    command = Command(fabric.hosts[0], "mrc-ping", *PLANES, *words, "b")
    wait_for_answers(fabric)
    fabric.fabric.silence(0, "t1a", on=True)
    command.wait_until_it_says("p0 0x0000 (a t0a t1a t0b b): silent")
    fabric.fabric.silence(0, "t1a", on=False)
    command.wait_until_it_says("answers again")
    command.interrupt()
    found = json.loads(command.end(130))
    assert found["error"] == "interrupted"
    assert found["sweeps"] >= 1
    assert any(0 < each["answered"] < each["sent"] for each in found["paths"])


def test_a_listener_that_names_no_paths_is_told_of(fabric: FabricRig, file: str) -> None:
    """Its answers go as switches hash them: by another path than the probe that they answer."""
    words = ("b", "--topology", file, "--count", "1")
    listen(fabric.hosts[1], file)
    assert ping(fabric.hosts[0], *words, code=0)["notices"] == []
    fabric.hosts[1].kill()
    listen(fabric.hosts[1], None)
    (notice,) = ping(fabric.hosts[0], *words, code=0)["notices"]
    assert notice.startswith("paths are named by srv6 here, by ecmp at the peer")


def test_nobody_listening_is_exit_code_3_and_json_all_the_same(
    fabric: FabricRig, file: str
) -> None:
    found = ping(fabric.hosts[0], "b", "--topology", file, code=3)
    assert "nobody listens" in found["error"]
    assert found["paths"] == []


def test_256_entropy_values_are_swept_without_a_topology() -> None:
    with Rig(planes=2) as bare:
        listen(bare.hosts[1], None)
        target = f"[{bare.hosts[1].address(0)}]:4791"
        found = ping(bare.hosts[0], target, "--evs", "256", "-c", "2", code=0)
        assert len({each["ev"] for each in found["paths"]}) == 256
        assert all(each["hops"] is None and each["answered"] == 2 for each in found["paths"])
        assert {name: each["sent"] for name, each in found["planes"].items()} == {
            "p0": 256,
            "p1": 256,
        }


def test_paths_that_evs_name_by_a_bit_field_answer_and_are_named(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('routing = "stev"\n' + TWO_BY_TWO)
    with FabricRig(file) as rig:
        listen(rig.hosts[1], str(file))
        rig.fabric.silence(1, "t1b", on=True)
        found = ping(rig.hosts[0], "b", "--topology", str(file), "--timeout", "0.3", code=1)
        hops = {each["ev"]: each["hops"][2] for each in found["paths"]}
        assert hops == {0x0000: "t1a", 0x0800: "t1b", 0x1000: "t1a", 0x1800: "t1b"}
        assert [each["ev"] for each in found["paths"] if not each["answered"]] == [0x1800]


def test_linux_s_own_switches_carry_probes_by_every_path(file: str) -> None:
    with KernelFabric(parse(TWO_BY_TWO)) as fabric:
        listen(fabric.host("b"), file)
        fabric.watch()
        found = ping(fabric.host("a"), "b", "--topology", file, code=0)
        for path in fabric.topology.paths("a", "b"):
            assert fabric.seen("t0a", path.plane)[path.address] >= 3
        assert len(found["paths"]) == 4
        fabric.remove_switch("t1a", 0)
        words = ("--topology", file, "--timeout", "0.3")
        found = ping(fabric.host("a"), "b", *words, code=1)
        assert [each["hops"][2] for each in found["paths"] if not each["answered"]] == ["t1a"]
