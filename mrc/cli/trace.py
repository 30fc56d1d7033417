# SPDX-License-Identifier: Apache-2.0
"""`mrc-trace`: walks every path to a host switch by switch, and names what is dead on the way.

Each switch is reached by a round trip: a packet from us to ourselves that the uSIDs lead out to it
and back. The host at the end is not touched; the link to it is what mrc-ping tests. A T1 that
does not answer by our own T0 is asked for by another T1 and T0 too, which tells a dead switch from
a dead link. Exit code 1 says that a switch answered nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mrc
from mrc.cli.choice import explain_planes
from mrc.cli.common import (
    Parser,
    Result,
    add_common_arguments,
    config_from,
    planes_from,
    run,
    write_out,
)
from mrc.cli.probing import (
    Tally,
    add_probe_arguments,
    complain_of,
    fault_json,
    repeat,
    spread,
    sweep,
)
from mrc.cli.progress import table
from mrc.localise import Fault, localise
from mrc.topology import Path
from mrc.topology_file import DEFAULT_FILE
from mrc.walk import RoundTrip, detour, walk

if TYPE_CHECKING:
    from mrc.prober import Tracer

__all__ = ["main"]

_COMMAND: Final = "mrc-trace"


@dataclass(kw_only=True)
class Step(Tally):
    """One round trip and how often it comes back.

    Attributes:
        trip: Out to a switch and back.
        plane: Name of our interface.
    """

    trip: RoundTrip
    plane: str

    def json(self) -> dict[str, Any]:
        return {"plane": self.plane, "hops": list(self.trip.hops), **self.counts()}

    def __str__(self) -> str:
        return f"{self.plane} ({self.trip})"


class Trace:
    """The paths to one host, and how far they were found whole."""

    def __init__(self, tracer: Tracer, paths: Sequence[Path]) -> None:
        self._tracer = tracer
        self._walks = {path: walk(tracer.topology, path) for path in paths}
        self._steps: dict[RoundTrip, Step] = {}  # the paths of a plane share their beginnings
        for trips in self._walks.values():
            self._add(trips)

    def _add(self, trips: Iterable[RoundTrip]) -> list[Step]:
        """Those that are new."""
        names = self._tracer.plane_names
        fresh = {
            trip: Step(trip=trip, plane=names[trip.plane])
            for trip in trips
            if trip not in self._steps
        }
        self._steps |= fresh
        return list(fresh.values())

    async def sweep(self, arguments: argparse.Namespace) -> None:
        """Goes every round trip once, and then the ways around what does not answer."""

        async def ask(step: Step) -> float | None:
            return await self._tracer.ask(step.trip, patience=arguments.timeout)

        await sweep(arguments, self._steps.values(), ask)
        good = self._trips(never_answered=False)
        silent = self._trips(never_answered=True)
        around = (detour(self._tracer.topology, trip, good) for trip in silent)
        await sweep(arguments, self._add(trip for trip in around if trip is not None), ask)

    def _trips(self, *, never_answered: bool) -> list[RoundTrip]:
        asked = [step for step in self._steps.values() if step.sent]
        return [step.trip for step in asked if step.never_answered == never_answered]

    def faults(self) -> list[Fault]:
        """What explains the round trips that never came back."""
        return localise(
            self._trips(never_answered=False),
            self._trips(never_answered=True),
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that are walked."""
        return tuple(self._walks)

    @property
    def broken(self) -> list[Path]:
        """Paths with a switch that never answered."""
        return [path for path in self._walks if self._silent_from(path) is not None]

    def _silent_from(self, path: Path) -> str | None:
        """The first switch of a path that never answered."""
        for trip in self._walks[path]:
            if self._steps[trip].never_answered:
                return trip.hops[-1]
        return None

    def json(self) -> dict[str, Any]:
        return {
            "paths": [self._path_json(path) for path in self._walks],
            "round_trips": [step.json() for step in self._steps.values()],
            "faults": [fault_json(fault) for fault in self.faults()],
        }

    def _path_json(self, path: Path) -> dict[str, Any]:
        return {
            "ev": self._tracer.topology.ev(path),
            "plane": self._tracer.plane_names[path.plane],
            "hops": list(path.hops),
            "silent_from": self._silent_from(path),
        }

    def text(self) -> str:
        """A line for each round trip."""
        head = ("plane, way out and back", "sent", "answered", "min ms", "median", "max")
        rows = [(f"{step.plane}  {step.trip}", *step.cells()) for step in self._steps.values()]
        return table([head, *rows])


async def _trace(arguments: argparse.Namespace, result: Result) -> None:
    result |= {"host": arguments.host, "sweeps": 0, "paths": [], "round_trips": [], "faults": []}
    await explain_planes(arguments, result)
    if arguments.dry_run:
        return
    async with (
        mrc.Endpoint(planes_from(arguments), config_from(arguments)) as endpoint,
        await endpoint.trace(arguments.host) as tracer,
    ):
        chosen = (
            spread(tracer.paths, arguments.evs)
            if arguments.ev is None
            else list(map(tracer.path, arguments.ev))
        )
        trace = Trace(tracer, chosen)
        try:
            await repeat(arguments, result, lambda: trace.sweep(arguments))
        finally:
            result |= trace.json()
            if not arguments.json:
                write_out(trace.text())
    if trace.broken:
        told = f"{len(trace.broken)} of {len(trace.paths)} paths are broken"
        complain_of(told, trace.faults())


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        _COMMAND, "Walks every path to a host switch by switch; 1: a link or a switch is dead."
    )
    made.add_argument("host", metavar="HOST", help="its name in the topology, or an address of it")
    add_probe_arguments(made, "paths to walk (default: all, at most 256)")
    add_common_arguments(made, topology=DEFAULT_FILE)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(parser(), _trace, argv)
