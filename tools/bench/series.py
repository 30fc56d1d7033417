# SPDX-License-Identifier: Apache-2.0
"""What a receiver has noted as the bytes came (stream.py), and what can be read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Point = Sequence[Any]
"""Seconds of `time.monotonic()`, and bytes so far: of all, or a list with those of each plane."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """Of a stretch of time; every series begins with the last point before it.

    Attributes:
        start: Where it begins, seconds of `time.monotonic()`.
        end: Where it ends.
        arrived: Payload that came by any plane, sampled each millisecond.
        delivered: Bytes of whole messages that the program got, at each.
        planes: Payload that came by each plane, sampled each 10 ms.
        slept: Longest time between two samples of `arrived`, seconds: what it cannot resolve.
    """

    start: float
    end: float
    arrived: Sequence[Point]
    delivered: Sequence[Point]
    planes: Sequence[Point]
    slept: float

    def goodput_bps(self) -> float:
        """Payload bits a second, by any plane."""
        (begin, first), (end, last) = self.arrived[0], self.arrived[-1]
        return float((last - first) * 8 / (end - begin))

    def plane_bps(self) -> list[float]:
        """The same of each plane."""
        return _rates(self.planes[0], self.planes[-1])

    def gap_arrived(self) -> float:
        """Longest time without a new byte, seconds; as the sampler saw it, so rather too long."""
        return longest_gap(self.arrived, self.end)

    def gap_delivered(self) -> float:
        """Longest time without a message for the program, seconds."""
        return longest_gap(self.delivered, self.end)

    def back_after(self, plane: int, share: float, window: float = 0.05) -> float:
        """When a plane carries what the others do again.

        Args:
            plane: Its number.
            share: What part of the mean of the others' rates is enough.
            window: Seconds over which rates are taken.

        Returns:
            Seconds from `start` to the begin of the first window in which it does; infinite if
            there is none.
        """
        points = self.planes
        last = 0
        for _first, point in enumerate(points):
            while last < len(points) and points[last][0] < point[0] + window:
                last += 1
            if last == len(points):
                break
            rates = _rates(point, points[last])
            others = [rate for number, rate in enumerate(rates) if number != plane]
            if point[0] >= self.start and rates[plane] >= share * sum(others) / len(others) > 0:
                return float(point[0] - self.start)
        return float("inf")


def longest_gap(points: Sequence[Point], end: float) -> float:
    """Longest time between two changes of the count, or from the last one to the end."""
    longest, since, count = 0.0, points[0][0], points[0][1]
    for moment, now in points[1:]:
        if now != count:
            longest, since, count = max(longest, moment - since), moment, now
    return float(max(longest, end - since))


def _rates(first: Point, last: Point) -> list[float]:
    seconds = last[0] - first[0]
    pairs = zip(first[1], last[1], strict=True)
    return [(after - before) * 8 / seconds for before, after in pairs]
