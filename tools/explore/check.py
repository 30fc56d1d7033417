# SPDX-License-Identifier: Apache-2.0
"""One life: runs a scenario and names everything that did not hold.

* Every flow ends within its bound: received and completed, in this order, or, where peers may
  part, with a typed error.
* Every byte arrives exactly once: queue pairs count as many as were written, each destination is
  told of each flow once, and (with payload) memory holds what was written and nothing else.
* What one queue pair carries arrives and completes in the order in which it was posted.
* No packet appears from nowhere or vanishes, and nothing goes in circles.
* When all is over, queues, windows and tables are empty.
* The same seed gives the same log, with payload and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from mrc import sim
from tools.explore.scenario import Scenario

__all__ = ["Life", "live"]

_PS: Final = 1e12
_GRACE: Final = 60.0
"""s from the last trouble until everything that can be done is done."""

_QUIET: Final = 20.0
"""s after which nothing is left of it."""

_LOOKS: Final = 100
_LOOK: Final = 7.3e-3

_TYPED: Final = {
    -3: "STATE",  # posted after the queue pair had failed
    -16: "FLUSHED",
    -18: "REMOTE_OPERATION",  # the peer's queue pair had failed
    -20: "RETRY_EXCEEDED",
    -21: "PEER_SILENT",
    -23: "PEER_CLOSED",
}
"""Errors that the loss of all paths may end in (`enum mrc_status`)."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """How one went: hops of packets, the hash of its log, and what did not hold."""

    hops: int
    log_hash: int
    violations: tuple[str, ...]


def _bound(scenario: Scenario) -> float:
    """s: each flow of a chain may wait until the one before is given up."""
    chain = len(scenario.flows) * scenario.settings.dead_after if scenario.mortal else 0.0
    return scenario.last_fault + _GRACE + chain


def _budget(scenario: Scenario) -> int:
    """Events that a life may take: many times what every packet's way and its answers need."""
    packets = int((scenario.flows["bytes"] // scenario.settings.mtu + 4).sum())
    hosts, planes = scenario.topology.hosts, scenario.topology.planes
    return 2_000 * packets + 20_000 * hosts * planes + 5_000_000


def _ends(scenario: Scenario, times: Any) -> Iterator[str]:
    for number, flow in enumerate(times):
        status = int(flow["status"])
        if flow["completed"] == sim.NEVER:
            yield f"flow {number} has not ended after {_bound(scenario):.0f} s"
        elif status == 0:
            if not flow["started"] <= flow["received"] <= flow["completed"]:
                yield f"flow {number} completed before it was received"
        elif not scenario.may_part:
            yield f"flow {number} was given up: {_TYPED.get(status, status)}"
        elif status not in _TYPED:
            yield f"flow {number} ended with {status}"


def _counts(scenario: Scenario, run: sim.Simulation, times: Any) -> Iterator[str]:
    received = times["received"] != sim.NEVER
    totals = run.totals()
    if totals.flows_received != received.sum():
        yield f"{totals.flows_received} times a flow's arrival was told of {received.sum()} flows"
    ended = (times["completed"] != sim.NEVER).sum()
    if totals.flows_ended != ended:
        yield f"{totals.flows_ended} times a flow ended of {ended} flows"
    for number, qp in enumerate(run.qps()):
        incoming = times["qp"] == (number ^ 1)
        least = int(scenario.flows["bytes"][incoming & received].sum())
        begun = incoming & (times["started"] != sim.NEVER)
        most = int(scenario.flows["bytes"][begun].sum())
        if not least <= qp["bytes_received"] <= most:
            yield f"QP {number} received {qp['bytes_received']} bytes of {least} to {most}"


def _order(times: Any) -> Iterator[str]:
    posted = np.argsort(times["started"], kind="stable")
    for name in ("received", "completed"):
        for qp in np.unique(times["qp"]):
            mine = times[posted[times["qp"][posted] == qp]]
            at = mine[name][(mine[name] != sim.NEVER) & (mine["status"] == 0)]
            if (np.diff(at) < 0).any():
                yield f"flows of QP {qp} were {name} out of order"


def _memory(scenario: Scenario, run: sim.Simulation, times: Any) -> Iterator[str]:
    """Byte i of what every flow writes is i * 131 + i / 256; memory was zero before."""
    longest = np.arange(int(scenario.flows["bytes"].max(initial=0)))
    pattern = ((longest * 131 + (longest >> 8)) & 255).astype(np.uint8)
    offsets = np.zeros(scenario.topology.hosts, dtype=int)
    memory = [np.frombuffer(run.memory(i), np.uint8) for i in range(scenario.topology.hosts)]
    for number, flow in enumerate(scenario.flows):
        host, size = int(flow["destination"]), int(flow["bytes"])
        found = memory[host][offsets[host] : offsets[host] + size]
        offsets[host] += size
        right = found == pattern[:size]
        if times["received"][number] == sim.NEVER:
            right |= found == 0
        if not right.all():
            yield f"flow {number} is wrong in memory from byte {int(np.argmin(right))} on"


def _conservation(totals: sim.Totals) -> Iterator[str]:
    made = totals.packets_sent + totals.duplicated
    gone = totals.packets_delivered + totals.dropped + totals.lost + totals.dead
    if made != gone + totals.packets:
        yield f"{made} packets were made, {gone} ended, {totals.packets} are under way"


def _leftovers(run: sim.Simulation) -> Iterator[str]:
    totals = run.totals()
    held = ["writes", "controls"]
    # What waits behind a hole that a failed peer left stays until the queue pair is closed.
    held += [] if run.qps()["error"].any() else ["immediates"]
    for name in held:
        if getattr(totals, name) != 0:
            yield f"{getattr(totals, name)} {name} are still in use"
    # Idle planes are probed now and then: what counts is that there are moments without a packet.
    for _ in range(_LOOKS):
        waiting, packets = int(run.ports()["waiting"].sum()), run.totals().packets
        if waiting == 0 and packets == 0:
            return
        run.run_on(run.now / _PS + _LOOK)
    yield f"{packets} packets and {waiting} waiting bytes are still under way"


def _watch(scenario: Scenario, run: sim.Simulation) -> list[str]:
    """Runs it to its end and beyond, and looks."""
    found: list[str] = []
    try:
        run.run(_bound(scenario))
        found += _conservation(run.totals())
        times = run.times()
        for look in (_ends(scenario, times), _counts(scenario, run, times), _order(times)):
            found += look
        if scenario.settings.payload:
            found += _memory(scenario, run, times)
        run.run_on(run.now / _PS + _QUIET)
        found += _conservation(run.totals())
        found += _leftovers(run)
        if (run.times() != times).any():
            found.append("a flow ended a second time")
    except RuntimeError as error:
        found.append(f"it goes in circles: {error}")
    return found


def live(scenario: Scenario, *, twice: bool = False) -> Life:
    """Runs a scenario.

    Args:
        scenario: What to run.
        twice: Once more, the other way as to payload, and compare the logs.
    """
    settings = replace(scenario.settings, max_events=_budget(scenario))
    make: Callable[[sim.Settings], sim.Simulation] = lambda settings: sim.Simulation(  # noqa: E731
        scenario.topology, scenario.flows, settings, faults=scenario.faults, seed=scenario.seed
    )
    with make(settings) as run:
        violations = _watch(scenario, run)
        totals, now = run.totals(), run.now
    if twice and not violations:
        with make(replace(settings, payload=not settings.payload)) as other:
            other.run(_bound(scenario))
            other.run_on(now / _PS)
            if other.totals().log_hash != totals.log_hash:
                violations.append("the same seed gave another log")
    return Life(hops=totals.hops, log_hash=totals.log_hash, violations=tuple(violations))
