# SPDX-License-Identifier: Apache-2.0
"""The transfer of files over messages: format, checks of what the other side says, dialogue.

A message with the immediate CONTROL is a JSON object; every other is data of the file under way.

    sender                                   receiver
    hello {version, files, bytes}       ->
                                        <-   hello {version, ...}
    entry {kind, name, size, mode, mtime} -> for each file and directory
                                        <-   go {offset, sha256}   what is there already
    start {offset}                      ->   0 if that is of another file
    data ... data                       ->   messages of at most BLOCK bytes
    end {size, sha256}                  ->
                                        <-   stored {}             it is whole, under its name
    done {}                             ->

A directory is answered by `stored` at once. Either side may send `failure {kind, message}` at any
time, and closes. SHA-256 is of the whole file, parts that were there before included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mrc.cli.common import CommandError, ExitCode, close_timeout, describe, exit_code, printable
from mrc.errors import ConnectionClosed, ProtocolError

if TYPE_CHECKING:
    from mrc.connection import Connection

__all__ = [
    "BLOCK",
    "CONTROL",
    "NAMES_KEPT",
    "Channel",
    "Control",
    "Done",
    "End",
    "Entry",
    "Failure",
    "FileList",
    "Go",
    "Hello",
    "PeerFailed",
    "Start",
    "Stored",
    "check_name",
    "check_protocol",
    "decode",
    "encode",
]

BLOCK: Final = 4 << 20
CONTROL: Final = 0x4A534F4E
"""Immediate of a control message: "JSON"."""

NAMES_KEPT: Final = 10_000
"""Files of which the JSON has name and checksum."""

PART_SUFFIX: Final = ".mrc-part"
"""How the name of a file ends that is not whole yet; no entry may be called so."""

_PROTOCOL: Final = "mrc-transfer"
_VERSION: Final = 1
_MOST_CONTROL: Final = 64 << 10
_MOST_BYTES: Final = 1 << 62
_KINDS: Final = ("io", "integrity", "interrupted", "protocol")
_LAST_WORD: Final = 1.0
"""Seconds for the other side's last word after the connection broke, or ours before it does."""


def check_name(name: str) -> tuple[str, ...]:
    """The components of a relative name that stays inside its directory.

    Raises:
        ProtocolError: It is none.
    """
    shown = printable(name)[:100]
    parts = tuple(name.split("/"))
    if not name or "\0" in name or len(name) > 4096:
        raise ProtocolError(f"the name {shown!r} is empty, too long or has a NUL")
    if any(part in {"", ".", ".."} for part in parts):
        raise ProtocolError(f"the name {shown!r} would leave the directory")
    if any(part.endswith(PART_SUFFIX) for part in parts):
        raise ProtocolError(f"the name {shown!r} is one of files that are not whole")
    return parts


def _check_sha256(text: str) -> None:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ProtocolError("a checksum is not 64 hexadecimal digits")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message of either side. `files` and `bytes` are for progress; None: unknown."""

    protocol: str = _PROTOCOL
    version: int = _VERSION
    files: int = 0
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file or directory that comes. `size` None: not known before its end."""

    kind: str
    name: str
    size: int | None
    mode: int
    mtime_ns: int

    def __post_init__(self) -> None:
        if self.kind not in {"file", "directory"}:
            raise ProtocolError(f"an entry of kind {printable(self.kind)[:100]}")
        check_name(self.name)
        if self.mode > 0o777:
            raise ProtocolError(f"mode {self.mode:o} is more than 777")


@dataclass(frozen=True, kw_only=True)
class Go:
    """The receiver is ready, and has the first `offset` bytes of something with this checksum."""

    offset: int
    sha256: str

    def __post_init__(self) -> None:
        _check_sha256(self.sha256)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the data begins: the receiver's offset, or 0."""

    offset: int


@dataclass(frozen=True, kw_only=True)
class End:
    """The file's data is complete."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        _check_sha256(self.sha256)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """It is whole, and under its name."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """Nothing more comes."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The side that says so cannot go on."""

    kind: str
    message: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ProtocolError(f"a failure of kind {printable(self.kind)[:100]}")


Control = Hello | Entry | Go | Start | End | Stored | Done | Failure

_TYPES: Final[dict[str, type[Control]]] = {
    kind.__name__.lower(): kind for kind in (Hello, Entry, Go, Start, End, Stored, Done, Failure)
}


def encode(control: Control) -> bytes:
    """A control message as bytes."""
    return json.dumps({"type": type(control).__name__.lower(), **asdict(control)}).encode()


def check_protocol(hello: dict[str, Any], protocol: str, version: int) -> None:
    """Checks what the peer says that it speaks.

    Raises:
        ProtocolError: It is something else.
    """
    theirs = (hello.get("protocol"), hello.get("version"))
    if theirs != (protocol, version):
        spoken = printable(f"{theirs[0]} {theirs[1]}")[:100]
        raise ProtocolError(f"the peer speaks {spoken}, not {protocol} {version}")


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value of JSON is what a field's annotation says; numbers are not negative."""
    if value is None:
        return "None" in annotation
    if isinstance(value, int) and not isinstance(value, bool):
        return annotation.startswith("int") and 0 <= value <= _MOST_BYTES
    return isinstance(value, str) and annotation == "str"


def decode(data: bytes) -> Control:
    """Reads a control message.

    Raises:
        ProtocolError: It is none.
    """
    if len(data) > _MOST_CONTROL:
        raise ProtocolError(f"a control message of {len(data)} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("a control message is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("a control message is not an object")
    name = value.pop("type", None)
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError("a control message of an unknown type: the peer is no file transfer")
    if kind is Hello:
        # First, for the fields of another protocol or version may be others.
        check_protocol(value, _PROTOCOL, _VERSION)
    annotations = {field.name: str(field.type) for field in fields(kind)}
    if set(value) != set(annotations):
        raise ProtocolError(f"the fields of {name} are {sorted(annotations)}")
    for field, annotation in annotations.items():
        if not _fits(value[field], annotation):
            raise ProtocolError(f"{name}.{field} is not {annotation}")
    return kind(**value)


class FileList:
    """Names and checksums of whole files for the JSON, up to `NAMES_KEPT` of them."""

    def __init__(self) -> None:
        self._files: list[dict[str, Any]] = []

    def add(self, name: str, end: End) -> None:
        """Notes a file that is whole at the receiver."""
        if len(self._files) < NAMES_KEPT:
            self._files.append({"name": name, "size_bytes": end.size, "sha256": end.sha256})

    def json(self) -> list[dict[str, Any]]:
        """`file_list`."""
        return list(self._files)


class PeerFailed(CommandError):
    """The other side cannot go on, and said why."""

    def __init__(self, failure: Failure) -> None:
        same = failure.kind == "integrity"
        code = ExitCode.INTEGRITY if same else ExitCode.LOST
        super().__init__(code, f"the peer says: {printable(failure.message)[:1000]}")


def _failure(error: BaseException) -> Failure:
    """What the other side is told about an error of ours."""
    if isinstance(error, asyncio.CancelledError):
        return Failure(kind="interrupted", message="interrupted")
    if isinstance(error, ProtocolError):
        return Failure(kind="protocol", message=describe(error))
    integrity = exit_code(error) is ExitCode.INTEGRITY
    return Failure(kind="integrity" if integrity else "io", message=describe(error))


_C = TypeVar("_C", bound=Control)


class Channel:
    """One side's end of the dialogue over a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def say(self, control: Control) -> None:
        """Sends a control message."""
        await self.connection.send(encode(control), imm=CONTROL)

    async def receive(self) -> Control | memoryview:
        """The next control message, or data.

        Raises:
            PeerFailed: The peer said so.
            ProtocolError: It is not what it should be.
            ConnectionClosed: As `Connection.recv`.
        """
        message = await self.connection.recv()
        if message.imm != CONTROL:
            return message.data
        control = decode(bytes(message.data))
        if isinstance(control, Failure):
            raise PeerFailed(control)
        return control

    async def expect(self, *kinds: type[_C]) -> _C:
        """The next message, which must be a control message of one of these kinds.

        Raises:
            ProtocolError: It is another.
        """
        control = await self.receive()
        for kind in kinds:
            if isinstance(control, kind):
                return control
        names = " or ".join(kind.__name__.lower() for kind in kinds)
        raise ProtocolError(f"the peer sent {type(control).__name__.lower()}, not {names}")

    async def unless_told(self, work: Coroutine[Any, Any, None], kind: type[_C]) -> _C:
        """Runs what sends and then waits for the answer to it; an early answer ends it.

        Raises:
            PeerFailed: The answer, also where `work` met the closed connection first.
        """
        answer = asyncio.ensure_future(self.expect(kind))
        sending = asyncio.ensure_future(work)
        try:
            await asyncio.wait({answer, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(sending.exception(), ConnectionClosed):
                await asyncio.wait({answer}, timeout=_LAST_WORD)
                if answer.done() and isinstance(answer.exception(), PeerFailed):
                    return await answer
            if answer.done() and not sending.done():
                await answer
                raise ProtocolError(f"the peer sent {kind.__name__.lower()} before the end")
            await sending
            return await answer
        finally:
            for task in (answer, sending):
                task.cancel()
            await asyncio.gather(answer, sending, return_exceptions=True)

    async def give_up(self, error: BaseException) -> None:
        """Tells the peer why we cannot go on, if it can be told, and ends the connection."""
        if not isinstance(error, ConnectionClosed | PeerFailed):
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await self.say(_failure(error))
        with contextlib.suppress(ConnectionClosed):
            await self.connection.close(timeout=close_timeout(failed=True))
