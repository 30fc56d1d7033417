# SPDX-License-Identifier: Apache-2.0
"""A program of a host that talks while a test breaks things: `python talk.py OPTIONS`.

OPTIONS is JSON: `listen` true or `connect` a list of targets; `config` and `planes` as of
`mrc.connect`; `sizes` of the messages in turn; `send` and `read`, whether it does; `connections`,
how many; `backlog` of the listener; `descriptors` to open before all else. It prints
{"ready": true} or the error, one line of JSON; then it does each command of standard input, and
answers by one line, what `look` returns:

    look      says how things are
    stop      sends no more, and waits until everything is acknowledged
    read      reads, if it did not
    close     closes the connections; the program ends
    again     connects anew

Messages are numbered from 0 by their immediates, and their content follows from the number.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import resource
import sys
import time
from typing import Any

import uvloop

import mrc

BLOCK = random.Random(0).randbytes(1 << 21)


def content(number: int, size: int) -> bytes:
    start = number * 97 % (1 << 20)
    return BLOCK[start : start + size]


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1])


class Talk:
    """What the program knows of its connections."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.sizes = options.get("sizes", [65536])
        self.sends = options.get("send", False)
        self.reads = asyncio.Event()
        if options.get("read", True):
            self.reads.set()
        self.connection: mrc.Connection | None = None
        self.connections: list[mrc.Connection] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.sending: list[asyncio.Task[None]] = []
        self.sent = self.received = self.wrong = 0
        self.events: list[list[str]] = []
        self.ends: list[str] = []
        self.errors: list[str] = []

    def hold(self, connection: mrc.Connection) -> None:
        self.connection = connection
        self.connections.append(connection)
        self.tasks += [asyncio.create_task(self.receive(connection))]
        self.tasks += [asyncio.create_task(self.watch(connection))]
        self.sending += [asyncio.create_task(self.send(connection))]

    async def receive(self, connection: mrc.Connection) -> None:
        number = 0
        await self.reads.wait()
        try:
            while True:
                message = await connection.recv()
                expected = content(number, len(message))
                self.wrong += message.imm != number or bytes(message.data) != expected
                self.received += 1
                number += 1
        except mrc.ConnectionClosedOK:
            self.ends.append("closed")
        except mrc.ConnectionLost as error:
            self.ends.append(error.reason)
            self.errors.append(str(error))

    async def watch(self, connection: mrc.Connection) -> None:
        async for event in connection.events():
            self.events.append([type(event).__name__, event.plane, getattr(event, "reason", "")])

    async def send(self, connection: mrc.Connection) -> None:
        number = 0
        with contextlib.suppress(mrc.ConnectionClosed):
            while self.sends:
                data = content(number, self.sizes[number % len(self.sizes)])
                completion = await connection.post_send(data, imm=number)
                number += 1
                self.sent += 1
            await completion if number else None

    async def connect(self, endpoint: mrc.Endpoint, options: dict[str, Any]) -> None:
        timeout = options.get("timeout", 10)
        connects = [
            endpoint.connect(options["connect"], timeout=timeout)
            for _ in range(options.get("connections", 1))
        ]
        for result in await asyncio.gather(*connects, return_exceptions=True):
            if isinstance(result, mrc.Connection):
                self.hold(result)
            else:
                self.errors.append(f"{type(result).__name__}: {result}")

    def look(self, endpoint: mrc.Endpoint) -> dict[str, Any]:
        with contextlib.suppress(mrc.ConnectionClosed):
            if self.connection is not None:
                return {
                    "paths": {p.name: dataclasses.asdict(p) for p in self.connection.paths()},
                    "stats": dataclasses.asdict(self.connection.stats()),
                    "notices": self.connection.notices,
                    **self.totals(endpoint),
                }
        return self.totals(endpoint)

    def totals(self, endpoint: mrc.Endpoint) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "received": self.received,
            "wrong": self.wrong,
            "events": self.events,
            "ends": self.ends,
            "errors": self.errors,
            "excluded": endpoint.excluded,
            "counters": endpoint.counters(),
            "planes": {plane.name: dataclasses.asdict(plane) for plane in endpoint.planes()},
            "connections": len(self.connections),
            "rss_kib": resident_kib(),
            "cpu_s": time.process_time(),
        }

    async def stop(self) -> None:
        """Everything that was posted is acknowledged, or the connection has ended."""
        self.sends = False
        await asyncio.gather(*self.sending)

    async def close(self) -> None:
        await self.stop()
        for connection in self.connections:
            try:
                await connection.close()
            except mrc.ConnectionLost as error:
                self.errors.append(f"close: {error.reason}")


async def accept(talk: Talk, listener: mrc.Listener) -> None:
    async for connection in listener:
        talk.hold(connection)


async def obey(talk: Talk, endpoint: mrc.Endpoint, options: dict[str, Any]) -> None:
    """Does the commands until `close` or the end of standard input."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    command = ""
    while command != "close" and (command := (await reader.readline()).decode().strip()):
        start = time.monotonic()
        if command == "stop":
            await talk.stop()
        elif command == "read":
            talk.reads.set()
        elif command == "again":
            await talk.connect(endpoint, options)
        elif command == "close":
            await talk.close()
            # What came before the peer's close is still to be read.
            await asyncio.sleep(0.05)
        say({**talk.look(endpoint), "seconds": time.monotonic() - start})


async def main(options: dict[str, Any]) -> None:
    talk = Talk(options)
    try:
        async with mrc.Endpoint(options.get("planes"), mrc.Config(**options["config"])) as endpoint:
            if options.get("listen"):
                async with endpoint.listen(backlog=options.get("backlog", 64)) as listener:
                    accepting = asyncio.ensure_future(accept(talk, listener))
                    say({"ready": True, "excluded": endpoint.excluded})
                    await obey(talk, endpoint, options)
                    accepting.cancel()
            else:
                start = time.monotonic()
                await talk.connect(endpoint, options)
                seconds = time.monotonic() - start
                say({"ready": not talk.errors, "errors": talk.errors, "seconds": seconds})
                await obey(talk, endpoint, options)
    except mrc.MRCError as error:
        say({"ready": False, "errors": [f"{type(error).__name__}: {error}"]})


def take_descriptors(count: int) -> None:
    """So that those to come have large numbers."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 4000, count + 4000))
    for _ in range(count):
        os.dup(0)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    take_descriptors(chosen.get("descriptors", 0))
    uvloop.run(main({"config": {}, **chosen}))
