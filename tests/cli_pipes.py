# SPDX-License-Identifier: Apache-2.0
"""A connection for tests of the commands: two queues between two coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from mrc.connection import Connection, Message
from mrc.errors import ConnectionClosedOK


class Pipe:
    """One end of a connection between two coroutines."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue(8)
        self.other: Pipe
        self.closed = False
        self.peer = "fake"

    async def send(self, data: Any, *, imm: int | None = None) -> None:
        if self.closed or self.other.closed:
            raise ConnectionClosedOK("closed")
        await self.other.inbox.put(Message(bytes(data), imm))

    async def post_send(self, data: Any, *, imm: int | None = None) -> asyncio.Future[None]:
        await self.send(data, imm=imm)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def recv(self) -> Message:
        while True:
            if not self.inbox.empty():
                return self.inbox.get_nowait()
            if self.closed or self.other.closed:
                raise ConnectionClosedOK("closed")
            await asyncio.sleep(0.001)

    async def close(self, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def paths(self) -> tuple[Any, ...]:
        return ()

    async def events(self) -> AsyncIterator[Any]:
        nothing: tuple[Any, ...] = ()
        for event in nothing:
            yield event


def pipes() -> tuple[Connection, Connection]:
    one, other = Pipe(), Pipe()
    one.other, other.other = other, one
    return cast(Connection, one), cast(Connection, other)
