# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal, silence in a pipe, and the table of the planes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TextIO

from mrc.cli.traffic import PlaneTraffic

__all__ = [
    "Counter",
    "Progress",
    "duration",
    "file_count",
    "gbps",
    "line",
    "plane_table",
    "quantity",
    "result_line",
    "summary",
    "table",
]

_REDRAW_EVERY: Final = 0.25
_SMOOTHING: Final = 0.3
"""Weight of the newest interval in a shown rate."""


class Counter:
    """How far a transfer is.

    Attributes:
        total: Bytes that there are; None: not known.
        done: Of these, how many are there now.
        skipped: Of these, how many were there before.
        files: Whole ones.
    """

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.done = 0
        self.skipped = 0
        self.files = 0

    @property
    def moved(self) -> int:
        """Bytes that this transfer moved itself."""
        return self.done - self.skipped


def quantity(count: float) -> str:
    """Bytes for people: `512 B`, `1.50 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ["TiB", "GiB", "MiB", "KiB"]
    while (count := count / 1024) >= 1024 and len(units) > 1:
        units.pop()
    return f"{count:.2f} {units[-1]}"


def duration(seconds: float) -> str:
    """Seconds for people: `0:07`, `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def gbps(byte_rate: float) -> str:
    """Bytes per second for people, in Gb/s without the unit."""
    return f"{byte_rate * 8 / 1e9:.2f}"


def line(counter: Counter, rate: float, plane_rates: Iterable[tuple[str, str, float]]) -> str:
    """The line of progress.

    Args:
        counter: How far it is.
        rate: Bytes per second.
        plane_rates: Name, state and bytes per second of each plane.
    """
    if counter.total:
        parts = [
            f"{100 * counter.done // counter.total:3d} %",
            f"{quantity(counter.done)} of {quantity(counter.total)}",
            f"{gbps(rate)} Gb/s",
        ]
        if rate > 0:
            parts.append(f"{duration((counter.total - counter.done) / rate)} left")
    else:
        parts = [quantity(counter.done), f"{gbps(rate)} Gb/s"]
    planes = (
        f"{name} {gbps(plane_rate) if state == 'up' else state}"
        for name, state, plane_rate in plane_rates
    )
    return "  ".join(parts) + "  | " + "  ".join(planes)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; the first is flush left, the others right; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plane_table(planes: Iterable[PlaneTraffic], seconds: float) -> str:
    """The table of the planes after a transfer."""
    rows = list(planes)
    total = sum(row.bytes for row in rows)
    head = ("plane", "bytes", "share", "Gb/s", "lost", "retransmitted", "outages", "state")
    body = [
        (
            row.name,
            quantity(row.bytes),
            f"{100 * row.bytes / total:.1f} %" if total else "-",
            gbps(row.bytes / seconds) if seconds else "-",
            f"{row.lost:,}",
            f"{row.retransmitted:,}",
            str(row.outages),
            f"{row.state} ({row.reason})" if row.reason else row.state,
        )
        for row in rows
    ]
    return table([head, *body])


class Progress:
    """Draws a line on standard error while entered, if that is a terminal."""

    def __init__(
        self,
        counter: Counter,
        planes: Callable[[], Sequence[PlaneTraffic]],
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        """Notes what to draw, and where.

        Args:
            counter: How far it is.
            planes: Asked for what the planes carried so far.
            quiet: Draw nothing even on a terminal.
            stream: Where to; None: standard error.
        """
        self._quiet = quiet
        self._counter = counter
        self._planes = planes
        self._stream = stream or sys.stderr
        self._task: asyncio.Task[None] | None = None
        self._rate: dict[str, float] = {}
        self._last: dict[str, int] = {}
        self._last_time = 0.0

    @property
    def visible(self) -> bool:
        """Whether there is somebody to see it."""
        return not self._quiet and self._stream.isatty()

    async def __aenter__(self) -> Progress:
        if self.visible:
            self._measure()
            self._task = asyncio.create_task(self._draw())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._write("\r\x1b[K")

    def show_planes(self, seconds: float) -> None:
        """Prints the table of the planes for people, if something was moved."""
        if self.visible and self._counter.moved:
            self._write(plane_table(self._planes(), seconds) + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _measure(self) -> None:
        """Updates the smoothed rates, of "" for the whole and of each plane."""
        now = time.monotonic()
        elapsed = now - self._last_time
        counts = {"": self._counter.moved, **{each.name: each.bytes for each in self._planes()}}
        for name, count in counts.items():
            if name in self._last and elapsed > 0:
                rate = max(0, count - self._last[name]) / elapsed
                before = self._rate.get(name, rate)
                self._rate[name] = before + _SMOOTHING * (rate - before)
        self._last, self._last_time = counts, now

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(_REDRAW_EVERY)
            self._measure()
            rates = [
                (each.name, each.state, self._rate.get(each.name, 0.0)) for each in self._planes()
            ]
            text = line(self._counter, self._rate.get("", 0.0), rates)
            self._write("\r" + text[: max(1, self._columns() - 1)] + "\x1b[K")

    def _columns(self) -> int:
        """Width of the terminal that is drawn on, which standard output need not be."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80


def file_count(count: int) -> str:
    """A number of files for people."""
    return "1 file" if count == 1 else f"{count:,} files"


def result_line(one: dict[str, Any]) -> str:
    """What a transfer came to, in one line.

    Args:
        one: A transfer as it stands in the JSON.
    """
    names = [name for name, counts in one["planes"].items() if counts["bytes"]]
    planes = f" over {', '.join(names)}" if names else ""
    before = f", {quantity(one['bytes_resumed'])} were there" if one["bytes_resumed"] else ""
    return (
        f"{file_count(one['files'])}, {quantity(one['bytes'])} in {one['seconds']:.1f} s, "
        f"{one['gbps']:.2f} Gb/s{planes}{before}; SHA-256 verified"
    )


def summary(counter: Counter, seconds: float) -> dict[str, Any]:
    """The counts of a transfer as they stand in the JSON."""
    rate = counter.moved * 8 / 1e9 / seconds if seconds > 0 else 0.0
    return {
        "files": counter.files,
        "bytes": counter.moved,
        "bytes_resumed": counter.skipped,
        "seconds": round(seconds, 6),
        "gbps": round(rate, 6),
    }
