# SPDX-License-Identifier: Apache-2.0
"""mrc-send: sends files, directories or standard input to a host that runs mrc-recv."""

from __future__ import annotations

import argparse
import asyncio
import mmap
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from mrc.cli.choice import explain_planes
from mrc.cli.common import (
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    add_deny_argument,
    connecting,
    inform,
    positive_seconds,
    printable,
    run,
    say,
    target,
)
from mrc.cli.progress import Counter, Progress, file_count, quantity, result_line, summary
from mrc.cli.source import Found, Item, Reader, collect
from mrc.cli.traffic import Tell, Traffic, planes_json, teller
from mrc.cli.transfer import BLOCK, Channel, Done, End, FileList, Go, Hello, Start, Stored
from mrc.cli.worker import Hasher, Worker

if TYPE_CHECKING:
    from mrc.connection import Connection

__all__ = ["main"]

_COMMAND: Final = "mrc-send"
_BLOCKS: Final = 8
"""Blocks that are read, hashed or on their way at once."""

_PATIENCE: Final = 2.0
"""Seconds until a sender says that it waits for the receiver."""
_COMPLAINTS: Final = 20
"""Skipped entries that are said one by one."""
_LISTED: Final = 1000
"""Skipped entries in the JSON."""


class _Block:
    """A buffer, and what still reads it."""

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, BLOCK))  # takes memory only as it is filled
        self.hashed: asyncio.Future[None] | None = None
        self.sent: Any = None
        self.size = 0


class Sender:
    """One transfer on its way out.

    Attributes:
        files: Those that the receiver has whole.
        answered: Whether the receiver is there for us.
        started: When the receiver was ready, in seconds of `time.monotonic()`.
    """

    def __init__(self, channel: Channel, counter: Counter, found: Found) -> None:
        self.files = FileList()
        self.answered = False
        self.started = time.monotonic()
        self._found = found
        self._channel = channel
        self._counter = counter
        self._end = End(size=0, sha256="0" * 64)
        self._disk = Worker("mrc-disk")
        self._hasher = Hasher()
        self._blocks = [_Block() for _ in range(_BLOCKS)]

    def close(self) -> None:
        """Ends the threads."""
        self._disk.close()
        self._hasher.close()

    async def run(self) -> None:
        """Sends everything.

        Raises:
            CommandError: Something cannot be read, or the receiver cannot go on.
            OSError: Something cannot be read.
            ConnectionClosed: The receiver went away.
        """
        items = self._found.items
        files = sum(item.entry.kind == "file" for item in items)
        await self._channel.say(Hello(files=files, bytes=self._counter.total))
        await self._channel.expect(Hello)
        self.answered = True
        self.started = time.monotonic()
        for item in items:
            if item.entry.kind == "directory":
                await self._channel.say(item.entry)
                await self._channel.expect(Stored)
            else:
                await self._file(item)
        await self._channel.say(Done())

    async def _file(self, item: Item) -> None:
        try:
            reader = await self._disk.submit(Reader, item)
        except OSError as error:
            if item.named or item.path is None:
                raise
            self._found.skip(item.path, str(error.strerror))
            return
        try:
            await self._channel.say(reader.entry)
            await self._begin(reader, await self._channel.expect(Go))
            await self._channel.unless_told(self._data(reader), Stored)
            self._counter.files += 1
            self.files.add(item.entry.name, self._end)
            if await self._disk.submit(reader.changed):
                self._found.changed.append(item.entry.name)
        finally:
            self._disk.submit(reader.close)

    async def _begin(self, reader: Reader, there: Go) -> None:
        """Skips what the receiver has, if it is the beginning of this file."""
        self._hasher.restart()
        offset = 0
        if 0 < there.offset <= (reader.entry.size or 0):
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
        self._end = End(size=reader.position, sha256=await self._hasher.hexdigest())
        await self._channel.say(self._end)

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


async def send(
    connection: Connection,
    found: Found,
    result: Result,
    *,
    quiet: bool = False,
    tell: Tell | None = None,
) -> None:
    """Sends everything over a connection; fills the result, also when it fails.

    Args:
        connection: To mrc-recv.
        found: What to send.
        result: For `--json`.
        quiet: Show no progress.
        tell: Takes a line of each event of the paths; None: they are not said.

    Raises:
        CommandError, OSError, ConnectionClosed: As `Sender.run`.
    """
    counter = Counter(_total(found))
    channel = Channel(connection)
    sender = Sender(channel, counter, found)
    traffic = Traffic(connection, tell)
    progress = Progress(counter, lambda: traffic.planes, quiet=quiet)
    patience = asyncio.get_running_loop().call_later(_PATIENCE, _say_that_it_waits, sender, quiet)
    try:
        async with traffic, progress:
            try:
                await sender.run()
            except BaseException as error:
                traffic.sample()  # while it can be asked
                await channel.give_up(error)
                raise
    finally:
        patience.cancel()
        sender.close()
        seconds = time.monotonic() - sender.started
        result.update(summary(counter, seconds))
        result.update(traffic.events_json(), planes=planes_json(traffic.planes))
        result.update(file_list=sender.files.json(), changed=len(found.changed))
        _list_skipped(found, result)
        progress.show_planes(seconds)


def _total(found: Found) -> int | None:
    """Bytes of all files; None: unknown, for standard input is one of them."""
    total = 0
    for item in found.items:
        if item.entry.kind == "file":
            if item.entry.size is None:
                return None
            total += item.entry.size
    return total


def _say_that_it_waits(sender: Sender, quiet: bool) -> None:
    if not sender.answered and not quiet:
        say(_COMMAND, "waiting for the receiver, which may be busy with another sender")


def _list_skipped(found: Found, result: Result) -> None:
    result["skipped"] = len(found.skipped)
    result["skipped_list"] = [asdict(each) for each in found.skipped[:_LISTED]]


def _complain(found: Found) -> None:
    """Says what was not sent, or not as it was.

    Raises:
        CommandError: There is something.
    """
    for each in found.skipped[:_COMPLAINTS]:
        say(_COMMAND, f"skipped {each.path}: {each.reason}")
    for name in found.changed[:_COMPLAINTS]:
        say(_COMMAND, f"{printable(name)} was changed while it was sent")
    if found.skipped:
        text = f"not all was sent: {len(found.skipped)} skipped, see above"
        raise CommandError(ExitCode.LOCAL_IO, text)
    if found.changed:
        text = f"not all was sent as it is: {len(found.changed)} changed, see above"
        raise CommandError(ExitCode.FAILED, text)


async def _collect(paths: Sequence[str]) -> Found:
    """What to send, found in a thread: Ctrl-C ends a long search at once."""
    worker = Worker("mrc-search")
    try:
        return await worker.submit(collect, paths)
    finally:
        worker.close()


async def _send(arguments: argparse.Namespace, result: Result) -> None:
    if arguments.paths.count("-") > 1:
        raise CommandError(ExitCode.USAGE, "- (standard input) is named twice")
    result.update(files=0, bytes=0, bytes_resumed=0, seconds=0.0, gbps=0.0)
    result.update(planes={}, path_events=[], path_events_omitted=0)
    result.update(file_list=[], changed=0, skipped=0, skipped_list=[])
    found = await _collect(arguments.paths)
    _list_skipped(found, result)
    await explain_planes(arguments, result)
    if arguments.dry_run:
        _describe(found, arguments, result)
        return
    async with connecting(arguments, patience=arguments.timeout) as connection:
        paths = (f"{path.name} to {path.peer_address}" for path in connection.paths())
        inform(arguments, f"planes: {', '.join(paths)}")
        await send(connection, found, result, quiet=arguments.quiet, tell=teller(arguments))
    inform(arguments, f"sent {result_line(result)}")
    _complain(found)


def _describe(found: Found, arguments: argparse.Namespace, result: Result) -> None:
    """Says what would be sent."""
    total = _total(found)
    result["files"] = sum(item.entry.kind == "file" for item in found.items)
    size = "of unknown size" if total is None else quantity(total)
    say(_COMMAND, f"would send {file_count(result['files'])}, {size}, to {arguments.target}")
    _complain(found)


def parser() -> Parser:
    """The arguments of mrc-send."""
    made = Parser(_COMMAND, "Sends files to a host that runs mrc-recv, over all planes.")
    made.add_argument(
        "paths", nargs="+", metavar="PATH", help="files or directories; -: standard input"
    )
    made.add_argument("target", type=target, metavar="HOST[:PORT]", help="where mrc-recv waits")
    made.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="longest wait for the connection (default 10)",
    )
    add_deny_argument(made)
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs mrc-send; returns its exit code."""
    return run(parser(), _send, argv)
