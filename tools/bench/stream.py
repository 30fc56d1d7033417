# SPDX-License-Identifier: Apache-2.0
"""Programs: one sends messages without end, the other notes how they come, and is asked for it."""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_left
from collections import deque
from typing import Any

import mrc
from tools.bench.program import listening, main, questions, say

SAMPLES_EVERY = 0.001
SAMPLES_A_PLANE_POINT = 10
KEPT = 60_000
"""Points of each series: a minute of samples."""


class Notes:
    """The series of `series.Log`, as they come."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self.delivered: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=KEPT)
        self.planes: deque[tuple[float, list[int]]] = deque(maxlen=KEPT)

    async def sample(self, connection: mrc.Connection) -> None:
        """Samples the connection until it is over."""
        count = 0
        while not connection.closed:
            self.arrived.append((time.monotonic(), connection.stats().bytes_received))
            if count % SAMPLES_A_PLANE_POINT == 0:
                planes = [path.bytes_received for path in connection.paths()]
                self.planes.append((time.monotonic(), planes))
            count += 1
            await asyncio.sleep(SAMPLES_EVERY)

    async def receive(self, connection: mrc.Connection) -> None:
        """Takes every message."""
        total = 0
        async for message in connection:
            total += len(message)
            self.delivered.append((time.monotonic(), total))

    def between(self, start: float, end: float) -> dict[str, Any]:
        """The log of a stretch of time."""
        names = ("arrived", "delivered", "planes")
        series = {name: _cut(list(getattr(self, name)), start, end) for name in names}
        times = [moment for moment, _ in series["arrived"]]
        steps = itertools.pairwise(times)
        slept = max((after - before for before, after in steps), default=0.0)
        return {"start": start, "end": end, "slept": slept, **series}


def _cut(points: list[Any], start: float, end: float) -> list[Any]:
    first = bisect_left(points, start, key=lambda point: point[0])
    last = bisect_left(points, end, key=lambda point: point[0])
    return points[max(0, first - 1) : last]


async def sink(target: str, *, config: dict[str, Any]) -> None:
    """Accepts one connection; answers {start, end} with the log of that time."""
    notes = Notes()
    async with (
        listening(config) as listener,
        await listener.accept() as connection,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(notes.sample(connection))
        group.create_task(notes.receive(connection))
        async for question in questions():
            say(notes.between(**question))
        connection.abort()


async def source(target: str, *, size: int, window: int, config: dict[str, Any]) -> None:
    """Sends messages of `size`, `window` of them at once; answers any question with its counts."""
    data = bytes(size)
    async with mrc.connect(target, config=mrc.Config(**config)) as connection:
        say("connected")

        async def send() -> None:
            under_way: deque[mrc.Completion] = deque()
            while True:
                if len(under_way) >= window:
                    await under_way.popleft()
                under_way.append(await connection.post_send(data))

        sending = asyncio.create_task(send())
        async for _ in questions():
            stats, paths = connection.stats(), connection.paths()
            say(
                {
                    "packets_sent": stats.packets_sent,
                    "packets_retransmitted": stats.packets_retransmitted,
                    "packets_spurious": stats.packets_spurious,
                    "states": [path.state for path in paths],
                }
            )
            if sending.done():
                break
        sending.cancel()
        await asyncio.wait([sending])
        connection.abort()
    if not sending.cancelled():
        sending.result()


if __name__ == "__main__":
    main(globals())
