# SPDX-License-Identifier: Apache-2.0
"""Programs of the endurance bench: much of everything, and what is left afterwards."""

from __future__ import annotations

import asyncio
import random
import resource
import time
import zlib
from typing import Any

import mrc
from tools.bench.program import listening, main, resident, say

MIB = 1 << 20


def _message(seed: int, largest: int) -> bytes:
    draw = random.Random(seed)
    return draw.randbytes(draw.randrange(largest + 1))


async def _exchange(connection: mrc.Connection, *, mine: int, theirs: int, largest: int) -> int:
    """Sends the messages of our seed and checks those of the peer's; returns how many were wrong."""
    count = int(bytes(await connection.recv())) if mine % 2 else None
    if count is None:
        raise AssertionError("only the side with the odd seed is told the count")

    async def send() -> None:
        for number in range(count):
            await (await connection.post_send(_message(mine + 2 * number, largest)))

    async def receive() -> int:
        wrong = 0
        for number in range(count):
            wrong += bytes(await connection.recv()) != _message(theirs + 2 * number, largest)
        return wrong

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        received = group.create_task(receive())
    return received.result()
