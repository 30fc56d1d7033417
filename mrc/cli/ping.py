# SPDX-License-Identifier: Apache-2.0
"""`mrc-ping`: reachability and round trip of every path to a host, by the transport's EV probes.

Any listener of the library answers (mrc-recv, mrc-perf server, mrc.listen): a visit by its TCP port
tells both sides each other's planes, and no connection is made. All paths are probed at once,
`--count` times. Exit code 1 says that a path answered none of its probes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mrc
from mrc.cli.choice import explain_planes
from mrc.cli.common import (
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    config_from,
    planes_from,
    run,
    say,
    target,
    targets_from,
    write_out,
)
from mrc.cli.probing import (
    MOST_EVS,
    Tally,
    add_probe_arguments,
    complain_of,
    fault_json,
    number,
    repeat,
    rtt_cells,
    rtt_json,
    spread,
    sweep,
)
from mrc.cli.progress import table
from mrc.localise import Fault, localise
from mrc.topology import Path

if TYPE_CHECKING:
    from mrc.prober import Prober

__all__ = ["main"]

_COMMAND: Final = "mrc-ping"
_EVS_OF_A_PLANE: Final = 16


@dataclass(kw_only=True)
class Way(Tally):
    """One path and how it answers.

    Attributes:
        ev: That names it.
        plane: Name of our interface.
        path: Its hops; None: no topology names them.
    """

    ev: int
    plane: str
    path: Path | None

    def json(self) -> dict[str, Any]:
        hops = None if self.path is None else list(self.path.hops)
        return {"ev": self.ev, "plane": self.plane, "hops": hops, **self.counts()}

    def __str__(self) -> str:
        named = "" if self.path is None else f" ({self.path})"
        return f"{self.plane} {self.ev:#06x}{named}"


class Ping:
    """All ways to one host, and what they answered."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = tuple(ways)

    @property
    def silent(self) -> list[Way]:
        """Those that answered nothing."""
        return [way for way in self.ways if way.never_answered]

    def faults(self) -> list[Fault]:
        """What the topology says of the silent ones."""
        good = [way.path for way in self.ways if way.answered and way.path is not None]
        return localise(good, [way.path for way in self.silent if way.path is not None])

    def json(self) -> dict[str, Any]:
        return {
            "paths": [way.json() for way in self.ways],
            "planes": {name: self._plane_json(ways) for name, ways in self._by_plane().items()},
            "faults": [fault_json(fault) for fault in self.faults()],
        }

    def _by_plane(self) -> dict[str, list[Way]]:
        planes: dict[str, list[Way]] = {}
        for way in self.ways:
            planes.setdefault(way.plane, []).append(way)
        return planes

    def _plane_json(self, ways: Sequence[Way]) -> dict[str, Any]:
        return {
            "paths": len(ways),
            "silent": sum(way.never_answered for way in ways),
            "sent": sum(way.sent for way in ways),
            "answered": sum(way.answered for way in ways),
            **rtt_json([rtt for way in ways for rtt in way.rtts]),
        }

    def text(self) -> str:
        """A line for each path, then one for each plane."""
        head = ("plane", "EV", "sent", "answered", "min ms", "median", "max", "path")
        rows: list[tuple[str, ...]] = [head]
        rows += [
            (way.plane, f"{way.ev:#06x}", *way.cells(), str(way.path or "")) for way in self.ways
        ]
        for name, ways in self._by_plane().items():
            counts = self._plane_json(ways)
            rtts = [rtt for way in ways for rtt in way.rtts]
            told = f"{len(ways) - counts['silent']} of {len(ways)} paths answer"
            sums = (str(counts["sent"]), str(counts["answered"]))
            rows.append((name, "all", *sums, *rtt_cells(rtts), told))
        return table(rows)


def _ways(arguments: argparse.Namespace, prober: Prober) -> list[Way]:
    """What to probe: the EVs that were named, else every path, else some of each plane."""
    names = {plane.local.number: plane.name for plane in prober.planes}
    if arguments.ev is not None:
        evs: list[int] = arguments.ev
    elif prober.evs is not None:
        evs = spread(prober.evs, arguments.evs)
    else:
        each = (arguments.evs or min(MOST_EVS, _EVS_OF_A_PLANE * len(names))) // len(names)
        drawn = random.Random(0)  # the same ones each time, or results could not be compared
        evs = [
            drawn.randrange(1 << 16) << 16 | number << 12 | low
            for number in names
            for low in drawn.sample(range(1 << 12), max(1, each))
        ]
    if unknown := [ev for ev in evs if (ev >> 12 & 15) not in names]:
        raise CommandError(
            ExitCode.USAGE, f"EV {unknown[0]:#x} names plane {unknown[0] >> 12 & 15}, not in common"
        )
    return [Way(ev=ev, plane=names[ev >> 12 & 15], path=prober.path(ev)) for ev in evs]


async def _ping(arguments: argparse.Namespace, result: Result) -> None:
    result |= {"host": arguments.host, "sweeps": 0, "notices": []}
    result |= {"paths": [], "planes": {}, "faults": []}
    await explain_planes(arguments, result)
    if arguments.dry_run:
        return
    async with (
        mrc.Endpoint(planes_from(arguments), config_from(arguments)) as endpoint,
        await endpoint.visit(targets_from(arguments, arguments.host)) as prober,
    ):
        result["notices"] = list(prober.notices)
        for notice in prober.notices:
            say(_COMMAND, notice)
        ping = Ping(_ways(arguments, prober))

        async def ask(way: Way) -> float | None:
            return await prober.ask(way.ev, patience=arguments.timeout, size=arguments.size)

        try:
            await repeat(arguments, result, lambda: sweep(arguments, ping.ways, ask))
        finally:
            result |= ping.json()
            if not arguments.json:
                write_out(ping.text())
    if ping.silent:
        told = f"{len(ping.silent)} of {len(ping.ways)} paths are silent"
        complain_of(told, ping.faults())


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        _COMMAND, "Probes every path to a host on which something listens; 1: a path is silent."
    )
    made.add_argument("host", type=target, metavar="HOST", help="HOST, HOST:PORT or [ADDRESS]:PORT")
    add_probe_arguments(
        made,
        "entropy values to probe (default: every path of the topology, at most 256; without "
        "one 16 a plane)",
    )
    made.add_argument(
        "--size", type=number(0, 9216), default=0, metavar="BYTES",
        help="of a probe, as an IP packet (default: as short as it is)",
    )  # fmt: skip
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(parser(), _ping, argv)
