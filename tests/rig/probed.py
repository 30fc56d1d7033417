# SPDX-License-Identifier: Apache-2.0
"""What the tests of mrc-ping and mrc-trace share."""

from __future__ import annotations

import json
import time
from typing import Any

from rig.test_cli import Command

from tools.rig.fabric_rig import FabricRig
from tools.rig.host import Host

PLANES = ("--planes", "p0,p1")


def heal(rig: FabricRig) -> None:
    """Leaves a fabric of two planes as it was built."""
    for host in rig.hosts:
        host.kill()
    for plane in (0, 1):
        for tier in rig.topology.tiers:
            for switch in tier.switches:
                rig.fabric.silence(plane, switch, on=False)
    for each in rig.fabric.status()["down"]:
        rig.fabric.link(each["plane"], each["node"], each["next"], up=True)


def wait_for_answers(rig: FabricRig) -> None:
    """Until packets have come back to a by t1a of plane 0."""
    until = time.monotonic() + 30
    port = (0, "t1a", "t0a")
    before = rig.fabric.counters().get(port, {"sent": 0})["sent"]
    while rig.fabric.counters().get(port, {"sent": 0})["sent"] < before + 2:
        assert time.monotonic() < until, "no answer in 30 s"
        time.sleep(0.05)


def listen(host: Host, file: str | None, *words: str) -> Command:
    """mrc-recv, which answers probes like any listener."""
    topology = () if file is None else ("--topology", file)
    receiver = Command(host, "mrc-recv", "--discard", *PLANES, *topology, *words)
    receiver.wait_until_it_says("waiting")
    return receiver


def probe(name: str, host: Host, *words: str, code: int) -> dict[str, Any]:
    """What a probing command prints for programs, at the end with this exit code."""
    command = Command(host, name, *PLANES, "--json", "--interval", "0.01", *words)
    found: dict[str, Any] = json.loads(command.end(code))
    assert found["exit_code"] == code
    return found
