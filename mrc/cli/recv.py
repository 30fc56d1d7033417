# SPDX-License-Identifier: Apache-2.0
"""mrc-recv: receives files into a directory, to standard output, or to nowhere."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mrc.cli.choice import explain_planes
from mrc.cli.common import (
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    add_deny_argument,
    add_listen_argument,
    describe,
    exit_code,
    inform,
    listening,
    printable,
    refuse_clashes,
    run,
    say,
)
from mrc.cli.progress import Counter, Progress, result_line, summary
from mrc.cli.store import DirectoryStore, DiscardStore, Store, StreamStore, Target
from mrc.cli.traffic import Tell, Traffic, planes_json, teller
from mrc.cli.transfer import (
    NAMES_KEPT,
    Channel,
    Done,
    End,
    Entry,
    FileList,
    Go,
    Hello,
    Start,
    Stored,
)
from mrc.cli.worker import Hasher, Worker
from mrc.control import DEFAULT_PORT
from mrc.errors import ProtocolError

if TYPE_CHECKING:
    from mrc.connection import Connection
    from mrc.events import PlaneInfo

__all__ = ["main"]

_COMMAND: Final = "mrc-recv"
_UNWRITTEN: Final = 4
"""Messages that may wait for the disk; beyond that the sender is slowed."""

_RESULTS_KEPT: Final = 1000
_DISK_MOMENT: Final = 2.0
_HELLO_TIMEOUT: Final = 10.0


class Receiver:
    """One transfer on its way in.

    Attributes:
        files: Those that are whole.
    """

    def __init__(self, channel: Channel, store: Store, counter: Counter) -> None:
        self.files = FileList()
        self._channel = channel
        self._store = store
        self._counter = counter
        self._disk = Worker("mrc-disk")
        self._hasher = Hasher()

    async def close(self) -> None:
        """Ends the threads, after a moment for what the disk has still to do."""
        await asyncio.wait({self._disk.submit(int)}, timeout=_DISK_MOMENT)
        self._disk.close()
        self._hasher.close()

    async def run(self) -> None:
        """Takes everything that the sender has.

        Raises:
            CommandError: It cannot be stored, or the sender cannot go on.
            ProtocolError: The sender is none.
            ConnectionClosed: It went away.
        """
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                hello = await self._channel.expect(Hello)
        except TimeoutError:
            raise ProtocolError(f"the peer said nothing for {_HELLO_TIMEOUT:.0f} s") from None
        self._counter.total = hello.bytes
        await self._channel.say(Hello())
        while isinstance(entry := await self._channel.expect(Entry, Done), Entry):
            if entry.kind == "directory":
                await self._directory(entry)
            else:
                self.files.add(entry.name, await self._file(entry))
                self._counter.files += 1
            await self._channel.say(Stored())

    async def _directory(self, entry: Entry) -> None:
        try:
            await self._disk.submit(self._store.make_directory, entry)
        except OSError as error:
            raise _local(entry, error) from None

    async def _file(self, entry: Entry) -> End:
        try:
            target = await self._disk.submit(self._store.open, entry)
        except OSError as error:
            raise _local(entry, error) from None
        keep = True
        try:
            await self._begin(target)
            end = await self._data(target, entry)
            size = self._size
            if entry.size not in {None, size} or end.size != size:
                raise ProtocolError(
                    f"{printable(entry.name)} ended at {size} of {entry.size} bytes"
                )
            if await self._hasher.hexdigest() != end.sha256:
                keep = False
                text = f"{printable(entry.name)}: the checksum (SHA-256) differs"
                raise CommandError(ExitCode.INTEGRITY, text)
            await self._disk.submit(target.commit)
            return end
        except OSError as error:
            raise _local(entry, error) from None
        finally:
            # Behind the writes under way; its future is not waited for, as we may be cancelled.
            self._disk.submit(lambda: target.abandon(keep=keep))

    async def _begin(self, target: Target) -> None:
        """Settles with the sender where the data begins."""
        state = await self._disk.submit(target.prefix)
        self._hasher.restart(state)
        await self._channel.say(Go(offset=target.offset, sha256=state.hexdigest()))
        offset = (await self._channel.expect(Start)).offset
        if offset not in {0, target.offset}:
            raise ProtocolError(f"the peer starts at {offset}")
        if offset == 0:
            self._hasher.restart()
        await self._disk.submit(target.start, offset)
        self._size = offset
        self._counter.skipped += offset
        self._counter.done += offset

    async def _data(self, target: Target, entry: Entry) -> End:
        """Takes the data; returns once all of it is written and hashed."""
        under_way: deque[asyncio.Future[Any]] = deque()
        try:
            while isinstance(data := await self._channel.receive(), memoryview):
                self._size += len(data)
                self._counter.done += len(data)
                if entry.size is not None and self._size > entry.size:
                    raise ProtocolError(f"{printable(entry.name)} is longer than announced")
                under_way.append(self._disk.submit(target.write, data))
                under_way.append(self._hasher.update(data))
                del data
                while len(under_way) > 2 * _UNWRITTEN or (under_way and under_way[0].done()):
                    await under_way.popleft()
            if not isinstance(data, End):
                raise ProtocolError(f"the peer sent {type(data).__name__.lower()}, not end")
            while under_way:
                await under_way.popleft()
            return data
        finally:
            for future in under_way:
                future.cancel()


def _local(entry: Entry, error: OSError) -> BaseException:
    """An error of the disk, with the file's name; others as they are."""
    if exit_code(error) is not ExitCode.LOCAL_IO:
        return error
    text = f"{printable(entry.name)}: {error.strerror or error}"
    return CommandError(ExitCode.LOCAL_IO, text)


async def receive(
    connection: Connection,
    store: Store,
    result: Result,
    *,
    quiet: bool = False,
    tell: Tell | None = None,
) -> None:
    """Serves one connection; adds to the result what it was, also when it fails.

    Args:
        connection: From mrc-send.
        store: Where to.
        result: For `--json`.
        quiet: Show no progress.
        tell: Takes a line of each event of the paths; None: they are not said.
    """
    counter = Counter()
    channel = Channel(connection)
    receiver = Receiver(channel, store, counter)
    started = time.monotonic()
    traffic = Traffic(connection, tell)
    progress = Progress(counter, lambda: traffic.planes, quiet=quiet)
    try:
        async with traffic, progress:
            try:
                await receiver.run()
            except BaseException as error:
                traffic.sample()  # while it can be asked
                await channel.give_up(error)
                raise
    finally:
        await receiver.close()
        seconds = time.monotonic() - started
        one = {
            **summary(counter, seconds),
            "peer": connection.peer,
            "planes": planes_json(traffic.planes),
            **traffic.events_json(),
        }
        _add(result, one, receiver.files)
        progress.show_planes(seconds)
    await connection.close()


def _add(result: Result, one: dict[str, Any], files: FileList) -> None:
    """Adds one transfer to the totals of all."""
    for key in ("files", "bytes", "bytes_resumed", "seconds", "path_events_omitted"):
        result[key] += one[key]
    seconds = result["seconds"]
    result["gbps"] = round(result["bytes"] * 8 / 1e9 / seconds, 6) if seconds > 0 else 0.0
    events = result["path_events"] + one["path_events"]
    result["path_events"] = events[-_RESULTS_KEPT:]
    result["path_events_omitted"] += len(events) - len(result["path_events"])
    result["file_list"] = [*result["file_list"], *files.json()][-NAMES_KEPT:]
    result["transfers"] = [*result["transfers"], one][-_RESULTS_KEPT:]
    planes = result["planes"]
    for name, counts in one["planes"].items():
        sums = planes.setdefault(name, dict.fromkeys(counts, 0))
        for key in ("bytes", "retransmitted", "lost"):
            sums[key] += counts[key]
        sums["state"] = counts["state"]
    total = sum(counts["bytes"] for counts in planes.values())
    for counts in planes.values():
        counts["share"] = round(counts["bytes"] / total, 6) if total else 0.0


def send_line(arguments: argparse.Namespace, port: int, planes: Sequence[PlaneInfo]) -> str:
    """The exact command for the other host."""
    host = arguments.listen[0]
    if host is None or host in {"::", "0.0.0.0"}:
        addresses = (plane.address for plane in planes)
        usable = (a for a in addresses if a and not a.startswith("fe80:"))
        host = next(usable, socket.gethostname())
    if port != DEFAULT_PORT:
        host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    words = ["mrc-send"]
    if arguments.udp_port != DEFAULT_PORT:
        words += ["--udp-port", str(arguments.udp_port)]
    return f"{' '.join(words)} FILE {shlex.quote(host)}"


def _store(arguments: argparse.Namespace) -> Store:
    if arguments.discard:
        return DiscardStore()
    if arguments.to == "-":
        return StreamStore(sys.stdout.fileno())
    return DirectoryStore(
        arguments.to or ".", overwrite=arguments.overwrite, resume=arguments.resume
    )


def _say_where(arguments: argparse.Namespace, port: int, planes: Sequence[PlaneInfo]) -> None:
    named = ", ".join(f"{plane.name} {plane.address or '(no address)'}" for plane in planes)
    inform(arguments, f"planes: {named}")
    inform(arguments, f"waiting; on the other host: {send_line(arguments, port, planes)}")


async def _serve(arguments: argparse.Namespace, result: Result) -> None:
    _check(arguments)
    result.update(files=0, bytes=0, bytes_resumed=0, seconds=0.0, gbps=0.0)
    result.update(planes={}, path_events=[], path_events_omitted=0, file_list=[], transfers=[])
    store = _store(arguments)
    await explain_planes(arguments, result)
    if arguments.dry_run:
        return
    async with listening(arguments) as listener:
        _say_where(arguments, listener.port, listener.endpoint.planes())
        async for connection in listener:
            async with connection:
                try:
                    await receive(
                        connection,
                        store,
                        result,
                        quiet=arguments.quiet,
                        tell=teller(arguments),
                    )
                except Exception as error:
                    if arguments.once:
                        raise
                    result["transfers"][-1]["error"] = describe(error)
                    say(_COMMAND, f"{connection.peer}: {describe(error)}")
                else:
                    line = result_line(result["transfers"][-1])
                    inform(arguments, f"received from {connection.peer}: {line}")
            if arguments.once:
                return


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what does not go together.

    Raises:
        CommandError: It does not.
    """
    stream, discard = arguments.to == "-", arguments.discard
    sink = "-" if stream else "--discard"
    refuse_clashes(
        {
            "--discard keeps nothing, so it takes no DIR": discard and arguments.to is not None,
            "--resume and --overwrite do not go together": (
                arguments.resume and arguments.overwrite
            ),
            f"--resume needs a directory, not {sink}": arguments.resume and (stream or discard),
            f"--overwrite needs a directory, not {sink}": (
                arguments.overwrite and (stream or discard)
            ),
            "--json and - are both standard output": arguments.json and stream,
        }
    )


def parser() -> Parser:
    """The arguments of mrc-recv."""
    made = Parser(_COMMAND, "Receives files from mrc-send over all planes.")
    made.add_argument(
        "to", nargs="?", metavar="DIR|-", help="where to (default: here); -: standard output"
    )
    made.add_argument("--discard", action="store_true", help="check what comes, keep nothing")
    add_listen_argument(made)
    made.add_argument("--resume", action="store_true", help="complete what an earlier run began")
    made.add_argument("--overwrite", action="store_true", help="replace files that exist")
    add_deny_argument(made)
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs mrc-recv; returns its exit code."""
    return run(parser(), _serve, argv)
