# SPDX-License-Identifier: Apache-2.0
"""`mrc-ping`: reachability and round trip of every path to a host, by the transport's EV probes.

Any listener of the library answers (mrc-recv, mrc-perf server, mrc.listen): a visit by its TCP port
tells both sides each other's planes, and no connection is made. All paths are probed at once,
`--count` times. Exit code 1 says that a path answered none of its probes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    inform,
    planes_from,
    positive_seconds,
    run,
    target,
    write_out,
)
from mrc.cli.progress import table
from mrc.control import parse_target
from mrc.localise import Fault, localise
from mrc.topology import Path
from mrc.topology_file import load

if TYPE_CHECKING:
    from mrc.prober import Prober

__all__ = ["main"]

_COMMAND: Final = "mrc-ping"
_MOST_EVS: Final = 256
_EVS_OF_A_PLANE: Final = 16
_RTTS_KEPT: Final = 10_000
"""Of each path, the latest: a loop may last for days."""


@dataclass(kw_only=True)
class Way:
    """One path and how it answers.

    Attributes:
        ev: That names it.
        plane: Name of our interface.
        path: Its hops; None: no topology names them.
        sent: Probes.
        answered: Of these.
        rtts: Round trips, seconds.
        is_silent: The last probe was not answered; None: none has been sent.
    """

    ev: int
    plane: str
    path: Path | None
    sent: int = 0
    answered: int = 0
    rtts: list[float] = field(default_factory=list)
    is_silent: bool | None = None

    def note(self, rtt: float | None) -> None:
        self.sent += 1
        self.is_silent = rtt is None
        if rtt is not None:
            self.answered += 1
            self.rtts.append(rtt)
            del self.rtts[:-_RTTS_KEPT]

    def json(self) -> dict[str, Any]:
        hops = None if self.path is None else list(self.path.hops)
        counts = {"sent": self.sent, "answered": self.answered}
        return {"ev": self.ev, "plane": self.plane, "hops": hops, **counts, **_rtt_json(self.rtts)}

    def __str__(self) -> str:
        named = "" if self.path is None else f" ({self.path})"
        return f"{self.plane} {self.ev:#06x}{named}"


def _rtt_json(rtts: Sequence[float]) -> dict[str, float | None]:
    if not rtts:
        return dict.fromkeys(("rtt_min_us", "rtt_median_us", "rtt_max_us"))
    values = (min(rtts), statistics.median(rtts), max(rtts))
    names = ("rtt_min_us", "rtt_median_us", "rtt_max_us")
    return {name: round(value * 1e6, 1) for name, value in zip(names, values, strict=True)}


def _cells(rtts: Sequence[float]) -> tuple[str, str, str]:
    least, middle, most = (
        "-" if each is None else f"{each / 1000:.3f}" for each in _rtt_json(rtts).values()
    )
    return least, middle, most


class Ping:
    """All ways to one host, and what they answered."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = tuple(ways)

    @property
    def silent(self) -> list[Way]:
        """Those that answered nothing."""
        return [way for way in self.ways if way.sent and not way.answered]

    def faults(self) -> list[Fault]:
        """What the topology says of the silent ones."""
        good = [way.path for way in self.ways if way.answered and way.path is not None]
        return localise(good, [way.path for way in self.silent if way.path is not None])

    def json(self) -> dict[str, Any]:
        return {
            "paths": [way.json() for way in self.ways],
            "planes": {name: self._plane_json(ways) for name, ways in self._by_plane().items()},
            "faults": [faults_json(fault) for fault in self.faults()],
        }

    def _by_plane(self) -> dict[str, list[Way]]:
        planes: dict[str, list[Way]] = {}
        for way in self.ways:
            planes.setdefault(way.plane, []).append(way)
        return planes

    def _plane_json(self, ways: Sequence[Way]) -> dict[str, Any]:
        return {
            "paths": len(ways),
            "silent": sum(1 for way in ways if way.sent and not way.answered),
            "sent": sum(way.sent for way in ways),
            "answered": sum(way.answered for way in ways),
            **_rtt_json([rtt for way in ways for rtt in way.rtts]),
        }

    def text(self) -> str:
        """A line for each path, then one for each plane."""
        head = ("plane", "EV", "sent", "answered", "min ms", "median", "max", "path")
        rows = [head]
        rows += [
            (way.plane, f"{way.ev:#06x}", str(way.sent), str(way.answered), *_cells(way.rtts),
             str(way.path or ""))
            for way in self.ways
        ]  # fmt: skip
        for name, ways in self._by_plane().items():
            counts = self._plane_json(ways)
            rtts = [rtt for way in ways for rtt in way.rtts]
            told = f"{len(ways) - counts['silent']} of {len(ways)} paths answer"
            sums = (str(counts["sent"]), str(counts["answered"]))
            rows.append((name, "all", *sums, *_cells(rtts), told))
        return table(rows)


def faults_json(fault: Fault) -> dict[str, Any]:
    """A fault, for JSON."""
    return {
        "plane": fault.elements[0].plane,
        "elements": [
            {"kind": "link" if len(each.nodes) == 2 else "switch", "nodes": list(each.nodes)}
            for each in fault.elements
        ],
        "paths": len(fault.paths),
    }


def _entropy(text: str) -> list[int]:
    try:
        evs = [int(word, 0) for word in text.split(",")]
    except ValueError:
        evs = []
    if not evs or len(evs) > _MOST_EVS or not all(0 <= ev < 1 << 32 for ev in evs):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of entropy values, as 0x1000,0x1001")
    return evs


def _number(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {low}..{high}")
        return int(text)

    return read


def _ways(arguments: argparse.Namespace, prober: Prober) -> list[Way]:
    """What to probe: the EVs that were named, else every path, else some of each plane."""
    names = {plane.local.number: plane.name for plane in prober.planes}
    if arguments.ev is not None:
        evs: list[int] = arguments.ev
    elif prober.evs is not None:
        evs = _spread(list(prober.evs), arguments)
    else:
        each = (arguments.evs or min(_MOST_EVS, _EVS_OF_A_PLANE * len(names))) // len(names)
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


def _spread(evs: list[int], arguments: argparse.Namespace) -> list[int]:
    """At most as many as were asked for, equally far apart."""
    most = min(arguments.evs or _MOST_EVS, len(evs))
    return [evs[index * len(evs) // most] for index in range(most)]


async def _sweep(arguments: argparse.Namespace, prober: Prober, ping: Ping) -> None:
    """Probes every way once, all at the same time; says which fell silent or answers again."""

    async def ask(way: Way) -> None:
        before = way.is_silent
        rtt = await prober.ask(way.ev, patience=arguments.timeout, size=arguments.size)
        way.note(rtt)
        if before is not None and before != way.is_silent:
            inform(arguments, f"{way}: {'silent' if way.is_silent else 'answers again'}")

    await asyncio.gather(*map(ask, ping.ways))


def _targets(arguments: argparse.Namespace) -> list[str]:
    """The host, by the addresses of the topology if that is where it has its name."""
    if arguments.topology is None:
        return [arguments.host]
    host, port = parse_target(arguments.host)
    topology = load(arguments.topology)
    if host not in {each.name for each in topology.hosts}:
        return [arguments.host]
    return [f"[{topology.address(host, plane)}]:{port}" for plane in range(topology.planes)]


async def _ping(arguments: argparse.Namespace, result: Result) -> None:
    result |= {"host": arguments.host, "sweeps": 0, "paths": [], "planes": {}, "faults": []}
    await explain_planes(arguments, result)
    if arguments.dry_run:
        return
    async with (
        mrc.Endpoint(planes_from(arguments), config_from(arguments)) as endpoint,
        await endpoint.visit(_targets(arguments)) as prober,
    ):
        ping = Ping(_ways(arguments, prober))
        try:
            while arguments.loop or result["sweeps"] < arguments.count:
                if result["sweeps"]:
                    await asyncio.sleep(arguments.interval)
                await _sweep(arguments, prober, ping)
                result["sweeps"] += 1
        finally:
            result |= ping.json()
            if not arguments.json:
                write_out(ping.text())
    if ping.silent:
        told = "".join(f"; at fault: {fault}" for fault in ping.faults())
        silent = f"{len(ping.silent)} of {len(ping.ways)} paths are silent"
        raise CommandError(ExitCode.FAILED, silent + told)


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        _COMMAND, "Probes every path to a host on which something listens; 1: a path is silent."
    )
    made.add_argument("host", type=target, metavar="HOST", help="HOST, HOST:PORT or [ADDRESS]:PORT")
    often = made.add_mutually_exclusive_group()
    often.add_argument(
        "-c", "--count", type=_number(1, 1_000_000), default=3, metavar="N",
        help="probes of each path (default 3)",
    )  # fmt: skip
    often.add_argument("--loop", action="store_true", help="probe until interrupted")
    made.add_argument(
        "--interval", type=positive_seconds, default=0.2, metavar="SECONDS",
        help="between a path's answer and its next probe (default 0.2)",
    )  # fmt: skip
    made.add_argument(
        "--timeout", type=positive_seconds, default=1.0, metavar="SECONDS",
        help="when a probe counts as lost (default 1)",
    )  # fmt: skip
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--evs", type=_number(1, _MOST_EVS), metavar="N",
        help="entropy values to probe (default: every path of the topology, at most 256; without "
        "one 16 a plane)",
    )  # fmt: skip
    which.add_argument("--ev", type=_entropy, metavar="EV,...", help="these, as 0x1002")
    made.add_argument(
        "--size", type=_number(0, 9216), default=0, metavar="BYTES",
        help="of a probe, as an IP packet (default: as short as it is)",
    )  # fmt: skip
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(parser(), _ping, argv)
