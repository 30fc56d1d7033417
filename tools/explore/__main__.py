# SPDX-License-Identifier: Apache-2.0
"""Explores faults: random lives in the simulator until the time is over or one goes wrong.

Exit code 0: everything held; 1: something did not, and a line says how to see it again.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools.explore.check import live
from tools.explore.scenario import Scenario, draw
from tools.explore.shrink import Part, shrink

VIOLATED = 1
_TWICE = 8
"""One life of so many is lived a second time, to compare the logs."""


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(number) for number in text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.explore", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seconds", type=float, default=20.0, help="for how long (20)")
    what.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with (0)")
    parser.add_argument("--flows", type=_numbers, help="of the seed: only these, or none")
    parser.add_argument("--troubles", type=_numbers, help="of the seed: only these, or none")
    parser.add_argument("--most", type=int, help="of the seed: most bytes of a flow")
    return parser.parse_args()


def _tell(scenario: Scenario) -> None:
    topology = scenario.topology
    print(
        f"{topology.hosts} hosts, {topology.tiers} tiers, {topology.planes} planes"
        f"{', mortal' if scenario.mortal else ''}\n{scenario.settings}"
    )
    for number, flow in enumerate(scenario.flows):
        print(f"flow {number}: {dict(zip(flow.dtype.names, flow.item(), strict=True))}")
    for trouble in scenario.troubles:
        print(f"{trouble.name}: {trouble.faults}")


def replay(scenario: Scenario) -> int:
    """Runs one scenario, twice, and tells of it; returns the exit code."""
    _tell(scenario)
    life = live(scenario, twice=True)
    for violation in life.violations:
        print(f"violated: {violation}")
    print(f"{life.hops:,} packet-hops, log {life.log_hash:016x}")
    return VIOLATED if life.violations else 0


def _report(scenario: Scenario, violations: tuple[str, ...]) -> None:
    print(f"seed {scenario.seed}: {violations[0]}", flush=True)
    part = shrink(scenario, lambda smaller: bool(live(smaller).violations))
    command = f"python -m tools.explore --seed {scenario.seed} {part.arguments(scenario)}"
    print(f"replay: {command.rstrip()}")


def explore(seconds: float, first: int) -> int:
    """Lives one seed after another; stops at the first that fails; returns the exit code."""
    end, hops, seed = time.monotonic() + seconds, 0, first
    while time.monotonic() < end:
        scenario = draw(seed)
        life = live(scenario, twice=seed % _TWICE == 0)
        if life.violations:
            _report(scenario, life.violations)
            return VIOLATED
        hops += life.hops
        seed += 1
        if sys.stderr.isatty():
            print(f"\r{seed - first} lives, {hops:,} packet-hops", end="", file=sys.stderr)
    print(f"{seed - first} lives from seed {first} on, {hops:,} packet-hops: all held")
    return 0


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments()
    if arguments.seed is None:
        return explore(arguments.seconds, arguments.first)
    scenario = draw(arguments.seed)
    whole = Part.whole(scenario)
    part = Part(
        flows=whole.flows if arguments.flows is None else arguments.flows,
        troubles=whole.troubles if arguments.troubles is None else arguments.troubles,
        most=whole.most if arguments.most is None else arguments.most,
    )
    return replay(part.of(scenario))


if __name__ == "__main__":
    sys.exit(main())
