# SPDX-License-Identifier: Apache-2.0
"""What mrc-ping and mrc-trace share: probes that are counted, sweeps of them, options, faults."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mrc.cli.common import CommandError, ExitCode, Result, inform, positive_seconds
from mrc.localise import Fault

__all__ = [
    "MOST_EVS",
    "Tally",
    "add_probe_arguments",
    "complain_of",
    "fault_json",
    "number",
    "repeat",
    "rtt_cells",
    "rtt_json",
    "spread",
    "sweep",
]

MOST_EVS: Final = 256

_RTTS_KEPT: Final = 10_000
"""Of each way, the latest: a loop may last for days."""

_T = TypeVar("_T")


@dataclass(kw_only=True)
class Tally:
    """How one way answers.

    Attributes:
        sent: Probes.
        answered: Of these.
        rtts: Round trips, seconds.
        is_silent: The last probe was not answered; None: none has been sent.
    """

    sent: int = 0
    answered: int = 0
    rtts: list[float] = field(default_factory=list)
    is_silent: bool | None = None

    def note(self, rtt: float | None) -> None:
        """Counts a probe that has ended."""
        self.sent += 1
        self.is_silent = rtt is None
        if rtt is not None:
            self.answered += 1
            self.rtts.append(rtt)
            del self.rtts[:-_RTTS_KEPT]

    @property
    def never_answered(self) -> bool:
        """It was asked, in vain."""
        return self.sent > 0 and self.answered == 0

    def counts(self) -> dict[str, Any]:
        """For JSON."""
        return {"sent": self.sent, "answered": self.answered, **rtt_json(self.rtts)}

    def cells(self) -> tuple[str, ...]:
        """For a table: sent, answered, least, median and most milliseconds."""
        return (str(self.sent), str(self.answered), *rtt_cells(self.rtts))


_AnyTally = TypeVar("_AnyTally", bound=Tally)


def rtt_json(rtts: Sequence[float]) -> dict[str, float | None]:
    """Least, median and most; None without any."""
    names = ("rtt_min_us", "rtt_median_us", "rtt_max_us")
    if not rtts:
        return dict.fromkeys(names)
    values = (min(rtts), statistics.median(rtts), max(rtts))
    return {name: round(value * 1e6, 1) for name, value in zip(names, values, strict=True)}


def rtt_cells(rtts: Sequence[float]) -> tuple[str, str, str]:
    """The same in milliseconds, for a table."""
    least, middle, most = (
        "-" if each is None else f"{each / 1000:.3f}" for each in rtt_json(rtts).values()
    )
    return least, middle, most


def fault_json(fault: Fault) -> dict[str, Any]:
    """A fault, for JSON."""
    return {
        "plane": fault.elements[0].plane,
        "elements": [
            {"kind": "link" if len(each.nodes) == 2 else "switch", "nodes": list(each.nodes)}
            for each in fault.elements
        ],
        "paths": len(fault.ways),
    }


def complain_of(what: str, faults: Iterable[Fault]) -> None:
    """Ends a command that found something silent, and says which element that hints at.

    Raises:
        CommandError: Always.
    """
    told = "".join(f"; at fault: {fault}" for fault in faults)
    raise CommandError(ExitCode.FAILED, what + told)


# Sweeps.


async def sweep(
    arguments: argparse.Namespace,
    tallies: Iterable[_AnyTally],
    ask: Callable[[_AnyTally], Awaitable[float | None]],
) -> None:
    """Probes every way once, all at the same time; says which fell silent or answers again.

    A loop also says which are silent from the start: its table comes only at the end.
    """

    async def one(tally: _AnyTally) -> None:
        was_silent = tally.is_silent
        tally.note(await ask(tally))
        if was_silent is None:
            was_silent = tally.is_silent and not arguments.loop
        if was_silent != tally.is_silent:
            inform(arguments, f"{tally}: {'silent' if tally.is_silent else 'answers again'}")

    await asyncio.gather(*map(one, tallies))


async def repeat(
    arguments: argparse.Namespace, result: Result, once: Callable[[], Awaitable[None]]
) -> None:
    """Sweeps `--count` times, or until interrupted; counts `sweeps`."""
    while arguments.loop or result["sweeps"] < arguments.count:
        if result["sweeps"]:
            await asyncio.sleep(arguments.interval)
        await once()
        result["sweeps"] += 1


def spread(items: Sequence[_T], most: int | None) -> list[_T]:
    """At most as many as were asked for, equally far apart."""
    count = min(most or MOST_EVS, len(items))
    return [items[index * len(items) // count] for index in range(count)]


# Arguments.


def _entropy(text: str) -> list[int]:
    try:
        evs = [int(word, 0) for word in text.split(",")]
    except ValueError:
        evs = []
    if not evs or len(evs) > MOST_EVS or not all(0 <= ev < 1 << 32 for ev in evs):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of entropy values, as 0x1000,0x1001")
    return evs


def number(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number within these."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {low}..{high}")
        return int(text)

    return read


def add_probe_arguments(made: argparse.ArgumentParser, evs_help: str) -> None:
    """Adds how often is probed, for how long is waited, and which paths."""
    often = made.add_mutually_exclusive_group()
    often.add_argument(
        "-c", "--count", type=number(1, 1_000_000), default=3, metavar="N",
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
    which.add_argument("--evs", type=number(1, MOST_EVS), metavar="N", help=evs_help)
    which.add_argument("--ev", type=_entropy, metavar="EV,...", help="these, as 0x1002")
