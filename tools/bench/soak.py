# SPDX-License-Identifier: Apache-2.0
"""Programs of the endurance bench: much of everything, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
import zlib
from collections.abc import Coroutine

import mrc
from tools.bench.program import listening, main, resident, say

MIB = 1 << 20
WINDOW = 16
"""Messages under way in one direction, over all connections; one a connection at least."""


def message(seed: int, largest: int) -> bytes:
    """The message that both sides know by its seed."""
    draw = random.Random(seed)
    return draw.randbytes(draw.randrange(largest + 1))


async def _send(connection: mrc.Connection, seeds: range, largest: int, window: int) -> None:
    under_way: list[mrc.Completion] = []
    for seed in seeds:
        if len(under_way) == window:
            await under_way.pop(0)
        under_way.append(await connection.post_send(message(seed, largest)))
    for completion in under_way:
        await completion


async def _check(connection: mrc.Connection, seeds: range, largest: int) -> int:
    wrong = 0
    for seed in seeds:
        wrong += bytes(await connection.recv()) != message(seed, largest)
    return wrong


async def _both_ways(
    connection: mrc.Connection, ours: range, theirs: range, *, largest: int, window: int
) -> int:
    """Messages both ways at once; returns how many came that were not what was sent."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_send(connection, ours, largest, window))
        checking = group.create_task(_check(connection, theirs, largest))
    return checking.result()


async def echo(target: str, *, count: int, largest: int, connections: int) -> None:
    """Serves connections of `mixed`, `large` and `connects`, until it is killed."""
    window = max(1, WINDOW // connections)

    async def serve(connection: mrc.Connection) -> None:
        async with connection:
            kind = bytes(await connection.recv())
            if kind == b"mixed":
                wrong = await _both_ways(
                    connection,
                    range(1, 2 * count, 2),
                    range(0, 2 * count, 2),
                    largest=largest,
                    window=window,
                )
                await connection.send(b"%d" % wrong)
            elif kind == b"large":
                await connection.send(b"%d" % zlib.crc32((await connection.recv()).data))
            await connection.recv()

    async with listening({}) as listener, asyncio.TaskGroup() as group:
        async for connection in listener:
            group.create_task(_ended(serve(connection)))


async def _ended(serving: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(mrc.ConnectionClosed):
        await serving


async def mixed(target: str, *, count: int, largest: int, connections: int) -> None:
    """`count` messages each way on each of several connections of one endpoint."""
    window = max(1, WINDOW // connections)
    async with mrc.Endpoint() as endpoint:
        before = resident()

        async def run() -> int:
            async with endpoint.connect(target) as connection:
                await connection.send(b"mixed")
                wrong = await _both_ways(
                    connection,
                    range(0, 2 * count, 2),
                    range(1, 2 * count, 2),
                    largest=largest,
                    window=window,
                )
                return wrong + int(bytes(await connection.recv()))

        start = time.monotonic()
        wrong = await asyncio.gather(*(run() for _ in range(connections)))
        say(
            {
                "wrong": sum(wrong),
                "seconds": time.monotonic() - start,
                "grown": resident() - before,
            }
        )


async def large(target: str, *, size: int) -> None:
    """One message of `size` bytes; says whether the checksum at the peer is ours."""
    data = random.Random(size).randbytes(MIB) * (size // MIB)
    async with mrc.connect(target) as connection:
        await connection.send(b"large")
        start = time.monotonic()
        await connection.send(data)
        seconds = time.monotonic() - start
        theirs = int(bytes(await connection.recv()))
        say({"wrong": int(theirs != zlib.crc32(data)), "seconds": seconds})


async def connects(target: str, *, count: int) -> None:
    """Connects and closes in a row; says how much memory that has taken after the first tenth."""
    async with mrc.Endpoint() as endpoint:
        before = 0
        for number in range(count):
            async with endpoint.connect(target) as connection:
                await connection.send(b"hello")
            if number == count // 10:
                before = resident()
        say({"grown": resident() - before})


async def idle(target: str, *, seconds: float) -> None:
    """Says what part of a core a connected endpoint takes that has nothing to do."""
    async with mrc.connect(target) as connection:
        await connection.send(b"idle")
        await asyncio.sleep(1.0)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        say({"percent": 100 * used / seconds})


if __name__ == "__main__":
    main({"echo": echo, "mixed": mixed, "large": large, "connects": connects, "idle": idle})
