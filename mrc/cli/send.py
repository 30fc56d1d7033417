# SPDX-License-Identifier: Apache-2.0
"""mrc-send: sends files, directories or standard input to a host that runs mrc-recv."""

from __future__ import annotations

import argparse
import asyncio
import mmap
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mrc.cli.common import (
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    config_from,
    planes_from,
    positive_seconds,
    printable,
    run,
    say,
)
from mrc.cli.progress import Counter, Progress, ending, summary
from mrc.cli.source import Item, Reader, collect
from mrc.cli.traffic import Traffic, planes_json
from mrc.cli.transfer import BLOCK, Channel, Done, End, Go, Hello, Start, Stored
from mrc.cli.worker import Hasher, Worker

if TYPE_CHECKING:
    from mrc.connection import Connection

__all__ = ["main"]

_COMMAND: Final = "mrc-send"
_BLOCKS: Final = 8
"""Blocks that are read, hashed or on their way at once."""


class _Block:
    """A buffer, and what still reads it."""

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, BLOCK))  # takes memory only as it is filled
        self.hashed: asyncio.Future[None] | None = None
        self.sent: Any = None
        self.size = 0


class Sender:
    """One transfer on its way out."""

    def __init__(self, channel: Channel, counter: Counter) -> None:
        self._channel = channel
        self._counter = counter
        self._disk = Worker("mrc-disk")
        self._hasher = Hasher()
        self._blocks = [_Block() for _ in range(_BLOCKS)]

    def close(self) -> None:
        """Ends the threads."""
        self._disk.close()
        self._hasher.close()

    async def run(self, items: Sequence[Item]) -> None:
        """Sends everything.

        Raises:
            CommandError: Something cannot be read, or the receiver cannot go on.
            OSError: Something cannot be read.
            ConnectionClosed: The receiver went away.
        """
        files = sum(item.entry.kind == "file" for item in items)
        await self._channel.say(Hello(files=files, bytes=self._counter.total))
        await self._channel.expect(Hello)
        for item in items:
            if item.entry.kind == "directory":
                await self._channel.say(item.entry)
                await self._channel.expect(Stored)
            else:
                await self._file(item)
                self._counter.files += 1
        await self._channel.say(Done())

    async def _file(self, item: Item) -> None:
        reader = await self._disk.submit(Reader, item)
        try:
            await self._channel.say(item.entry)
            await self._begin(reader, item, await self._channel.expect(Go))
            await self._channel.unless_told(self._data(reader), Stored)
            if await self._disk.submit(reader.changed):
                say(_COMMAND, f"{printable(item.entry.name)} was changed while it was sent")
        finally:
            self._disk.submit(reader.close)

    async def _begin(self, reader: Reader, item: Item, there: Go) -> None:
        """Skips what the receiver has, if it is the beginning of this file."""
        self._hasher.restart()
        offset = 0
        if 0 < there.offset <= (item.entry.size or 0):
            state = await self._disk.submit(reader.prefix, there.offset)
            if state.hexdigest() == there.sha256:
                offset = there.offset
                self._hasher.restart(state)
            else:
                reader.restart()
        self._counter.done += offset
        self._counter.skipped += offset
        await self._channel.say(Start(offset=offset))

    async def _data(self, reader: Reader) -> None:
        """Reads, hashes and sends, all three at once; ends with the checksum."""
        free = deque(self._blocks)
        busy: deque[_Block] = deque()
        reading = self._read(reader, free.popleft())
        while (block := await reading).size:
            if not free:
                free.append(await self._reuse(busy.popleft()))
            reading = self._read(reader, free.popleft())
            data = block.view[: block.size]
            block.hashed = self._hasher.update(data)
            block.sent = await self._channel.connection.post_send(data)
            busy.append(block)
        while busy:
            await self._reuse(busy.popleft())
        digest = await self._hasher.hexdigest()
        await self._channel.say(End(size=reader.position, sha256=digest))

    def _read(self, reader: Reader, block: _Block) -> asyncio.Future[_Block]:
        def fill() -> _Block:
            block.size = reader.read(block.view)
            return block

        return self._disk.submit(fill)

    async def _reuse(self, block: _Block) -> _Block:
        """Waits until nobody reads a block any more."""
        assert block.hashed is not None
        await block.hashed
        await block.sent
        self._counter.done += block.size
        return block


async def send(connection: Connection, items: Sequence[Item], result: Result) -> None:
    """Sends everything over a connection; fills the result, also when it fails."""
    sizes = [item.entry.size for item in items if item.entry.kind == "file"]
    known = [size for size in sizes if size is not None]
    counter = Counter(sum(known) if len(known) == len(sizes) else None)
    channel = Channel(connection)
    sender = Sender(channel, counter)
    traffic = Traffic(connection)
    progress = Progress(counter, lambda: traffic.planes)
    started = time.monotonic()
    try:
        async with traffic, progress:
            try:
                await sender.run(items)
            except BaseException as error:
                await channel.give_up(error)
                raise
    finally:
        sender.close()
        seconds = time.monotonic() - started
        result.update(summary(counter, seconds))
        result["planes"] = planes_json(traffic.planes)
        result["path_events"] = list(traffic.events)
        progress.show(ending(counter, traffic.planes, seconds))


async def _send(arguments: argparse.Namespace, result: Result) -> None:
    import mrc  # noqa: PLC0415  (not for --help)

    if arguments.paths.count("-") > 1:
        raise CommandError(ExitCode.USAGE, "- (standard input) is named twice")
    result.update(files=0, bytes=0, bytes_resumed=0, seconds=0.0, gbps=0.0)
    result.update(planes={}, path_events=[])
    items, skipped = collect(arguments.paths)
    for path in skipped:
        say(_COMMAND, f"skipped, being neither a file nor a directory: {printable(path)}")
    async with mrc.connect(
        arguments.target,
        planes=planes_from(arguments),
        config=config_from(arguments),
        timeout=arguments.timeout,
    ) as connection:
        paths = (f"{path.name} to {path.peer_address}" for path in connection.paths())
        say(_COMMAND, f"planes: {', '.join(paths)}")
        await send(connection, items, result)


def parser() -> Parser:
    """The arguments of mrc-send."""
    made = Parser(_COMMAND, "Sends files to a host that runs mrc-recv, over all planes.")
    made.add_argument(
        "paths", nargs="+", metavar="PATH", help="files or directories; -: standard input"
    )
    made.add_argument("target", metavar="HOST[:PORT]", help="where mrc-recv waits")
    made.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="longest wait for the connection (default 10)",
    )
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs mrc-send; returns its exit code."""
    return run(parser(), _send, argv)
