# SPDX-License-Identifier: Apache-2.0
"""Running a scenario: a fabric, a program in each host, and the timeline of what befalls them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.rig.fabric_rig import FabricRig
from tools.rig.host import Host
from tools.rig.record import Record
from tools.rig.scenario import Event, Scenario
from tools.rig.shell import RigError

ROOT = Path(__file__).resolve().parents[2]
MILLION = 1_000_000
PRIORITY = 5
"""In real time, of everything but the fabric, which is above it."""

LEAD = 0.2
"""Seconds from the word to the timeline's start, so that every host has heard it."""


def run(scenario: Scenario, *, seed: int | None = None, prefix: str | None = None) -> Record:
    """Runs a scenario and returns what was seen.

    Args:
        scenario: What to run.
        seed: Of the fabric's fates; None: the scenario's.
        prefix: Of the namespaces' names.

    Raises:
        RigError: A tool or a host's program failed.
        FabricError: The fabric could not be started.
    """
    switches = scenario.switches
    if seed is not None:
        switches = dataclasses.replace(switches, seed=seed)
    with tempfile.TemporaryDirectory(prefix="mrc-rig-") as folder:
        file = Path(folder, "topology.toml")
        file.write_text(scenario.topology)
        with FabricRig(file, switches, prefix=prefix) as rig, _real_time():
            return _run(scenario, rig, file)


@contextlib.contextmanager
def _real_time() -> Iterator[None]:
    """Puts what is started here, and the timeline, before others that use the machine."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def _run(scenario: Scenario, rig: FabricRig, file: Path) -> Record:
    programs = [_Program(host, _options(scenario, rig, host, file)) for host in rig.hosts]
    for program in programs:
        program.read()
    for program in programs:
        program.ask("connect")
    zero = time.monotonic() + LEAD
    for program in programs:
        program.ask(f"start {zero}")
    happened = _Timeline(rig).play(scenario.events, zero)
    time.sleep(max(0.0, zero + scenario.seconds - time.monotonic()))
    notes = [program.ask("report") for program in programs]
    dropped = {name: rig.fabric.total(name) for name in ("marked", "trimmed", "data_full", "loss")}
    return Record.of(scenario, notes, happened=happened, zero=zero, fabric=dropped)


def _options(scenario: Scenario, rig: FabricRig, host: Host, file: Path) -> dict[str, Any]:
    planes = range(rig.topology.planes)
    config = dict(scenario.config)
    if config.get("routing") == "srv6":
        config["topology"] = str(file)
    ring, training = _ring(scenario, host)
    flows = [
        {
            "name": flow.name,
            "ring": ring,
            "target": [f"[{rig.host(flow.destination).address(plane)}]" for plane in planes],
            **dataclasses.asdict(flow),
        }
        for flow in scenario.flows
        if flow.source == host.label
    ]
    return {
        "planes": [f"p{plane}" for plane in planes],
        "config": config,
        "flows": flows,
        "training": training,
    }


def _ring(scenario: Scenario, host: Host) -> tuple[dict[str, int], str]:
    """A host's place in the training loop, and the flow that it receives; 0 of 0: it has none."""
    flows = [flow for flow in scenario.flows if flow.trains]
    ranks = [flow.source for flow in flows]
    if host.label not in ranks:
        return {"rank": 0, "size": 0}, ""
    rank = ranks.index(host.label)
    return {"rank": rank, "size": len(ranks)}, flows[rank - 1].name


class _Program:
    """tools.rig.traffic in a host."""

    def __init__(self, host: Host, options: dict[str, Any]) -> None:
        self._host = host.label
        self._process = host.popen(
            [sys.executable, "-m", "tools.rig.traffic", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # One thread of numpy's a host: the hosts share this machine's cores.
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        )

    def read(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RigError(f"tools.rig.traffic of host {self._host}", f"ended with code {code}")
        return json.loads(line)

    def ask(self, line: str) -> Any:
        """Tells it something, and returns the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `read` says more
        return self.read()


class _Timeline:
    """Does the events of a scenario to a rig."""

    def __init__(self, rig: FabricRig) -> None:
        self._rig = rig
        self._slots: dict[tuple[int, str, str], int] = {}

    def play(self, events: tuple[Event, ...], zero: float) -> list[tuple[float, Event]]:
        """Each at its time; returns when each was really done, in seconds of the timeline."""
        happened = []
        for event in events:
            time.sleep(max(0.0, zero + event.at - time.monotonic()))
            self._do(event)
            happened.append((time.monotonic() - zero, event))
        return happened

    def _do(self, event: Event) -> None:
        rig, plane = self._rig, event.plane
        if event.do == "loss":
            assert event.link is not None
            for node, next_ in (event.link, event.link[::-1]):
                self._lose((plane, node, next_), event.percent)
        elif event.link is not None:
            rig.set_link(plane, *event.link, up=event.do == "up")
        elif event.do in {"down", "up"}:
            rig.set_switch(plane, event.switch, up=event.do == "up")
        elif event.do == "reboot":
            rig.fabric.reboot(plane, event.switch, down_ms=round(event.seconds * 1000))
        else:
            rig.fabric.silence(plane, event.switch, on=event.do == "silent")

    def _lose(self, port: tuple[int, str, str], percent: float) -> None:
        slot = self._slots.setdefault(port, len(self._slots))
        chance = {"loss": round(percent * MILLION / 100)} if percent else {}
        self._rig.fabric.rule(slot, chance, port=port)
