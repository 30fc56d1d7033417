# SPDX-License-Identifier: Apache-2.0
"""What a bench returns: rows with a measured value and its limit, for people and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mrc.cli.progress import table

UNITS = {"gbps": "Gb/s", "mbps": "Mb/s", "ms": "ms", "us": "us", "percent": "%", "mib": "MiB"}
"""The last word of a key, where it is a unit, and how people write it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How thorough a bench is to be.

    Attributes:
        quick: A smoke run: short, and no judgement of the library.
        trials: Repetitions of everything that is repeated; None: each bench's own number.
    """

    quick: bool = False
    trials: int | None = None

    def count(self, usual: int, quick: int) -> int:
        """How many repetitions, where a bench does so many of its own accord."""
        return self.trials or (quick if self.quick else usual)

    def seconds(self, usual: float, quick: float) -> float:
        """How long a measurement takes, likewise."""
        return quick if self.quick else usual


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured value.

    Attributes:
        name: What was measured.
        key: Of the value in JSON; its last word is the unit, or "ratio" or "count".
        measured: The value.
        spread: The least and the most of which it is the median, if it is one.
        at_least: The limit from below, if there is one.
        at_most: The limit from above, if there is one.
    """

    name: str
    key: str
    measured: float
    spread: tuple[float, float] | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every limit holds."""
        low = self.at_least is None or self.measured >= self.at_least
        return low and (self.at_most is None or self.measured <= self.at_most)

    def limits(self) -> dict[str, float]:
        """The limits that there are."""
        found = {"at_least": self.at_least, "at_most": self.at_most}
        return {name: limit for name, limit in found.items() if limit is not None}

    def json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        limits = {f"{name}_{self.key}": limit for name, limit in self.limits().items()}
        spread = [round(each, 6) for each in self.spread or ()]
        found = {"name": self.name, self.key: round(self.measured, 6), **limits, "ok": self.ok}
        return {**found, f"spread_{self.key}": spread} if spread else found

    def cells(self) -> tuple[str, ...]:
        """The row for people."""
        unit = UNITS.get(self.key.rsplit("_", 1)[-1], "")
        value = _digits(self.measured)
        if self.spread is not None:
            value += f" ({_digits(self.spread[0])} .. {_digits(self.spread[1])})"
        signs = {"at_least": ">=", "at_most": "<="}
        limit = " ".join(f"{signs[name]} {limit:g}" for name, limit in self.limits().items())
        verdict = ("ok" if self.ok else "MISSED") if limit else ""
        return (self.name, self.key, f"{value} {unit}".strip(), limit, verdict)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


HEAD = ("what", "value", "measured", "limit", "")


def for_people(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    return table([HEAD, *(row.cells() for row in rows)])


def as_markdown(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [HEAD, ("--",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def say(text: str) -> None:
    """A line of progress, on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """The lower median: a value that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def ranked(values: Sequence[float], part: float) -> float:
    """The value that this part of them is not above."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
