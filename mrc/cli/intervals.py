# SPDX-License-Identifier: Apache-2.0
"""Throughput interval by interval: an average hides a link that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from mrc.cli.traffic import Traffic

__all__ = ["Intervals", "quantiles"]

_INTERVALS: Final = 20
_SHORTEST: Final = 0.1
_LONGEST: Final = 1.0
_PARTS: Final = {"min": 0.0, "p50": 0.5, "p99": 0.99}


def quantiles(values: Sequence[float], parts: Mapping[str, float]) -> dict[str, float | None]:
    """The values that these parts of all are not above; None where there are none."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        name: ordered[min(last, int(part * len(ordered)))] if ordered else None
        for name, part in parts.items()
    }


class Intervals:
    """Samples what the planes carried while a measurement lasts.

    Attributes:
        every: Length of an interval, seconds.
    """

    def __init__(self, traffic: Traffic, duration: float) -> None:
        self._traffic = traffic
        self._samples: list[tuple[float, int, int]] = []
        self.every = min(_LONGEST, max(_SHORTEST, duration / _INTERVALS))

    @staticmethod
    def nothing() -> dict[str, float | None]:
        """What `gbps` gives before anything was measured."""
        return quantiles((), _PARTS)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Samples while entered."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._note()
            await asyncio.sleep(self.every)

    def _note(self) -> None:
        self._traffic.sample()
        planes = self._traffic.planes
        sent = sum(plane.bytes_sent for plane in planes)
        received = sum(plane.bytes_received for plane in planes)
        self._samples.append((time.monotonic(), sent, received))

    def gbps(self, moved: int, *, received: bool = False) -> dict[str, float | None]:
        """Least, median and 99th percentile of the intervals' throughput, Gb/s.

        Args:
            moved: Bytes of messages in all. The planes also carry the library's headers, which
                are much of small messages: this is what the intervals add up to.
            received: Of what came, and not of what was sent.
        """
        column = 2 if received else 1
        carried = self._samples[-1][column] - self._samples[0][column] if self._samples else 0
        if not carried:
            return self.nothing()
        scale = 8e-9 * moved / carried
        rates = [
            round(scale * (after[column] - before[column]) / (after[0] - before[0]), 6)
            for before, after in pairwise(self._samples)
        ]
        return quantiles(rates, _PARTS)
