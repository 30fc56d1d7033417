# SPDX-License-Identifier: Apache-2.0
"""What is sent: files, directories with all that is in them, standard input."""

from __future__ import annotations

import errno
import hashlib
import os
import select
import stat
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mrc.cli.common import CommandError, ExitCode, printable
from mrc.cli.transfer import Entry
from mrc.errors import ProtocolError

__all__ = ["Found", "Item", "Reader", "Skipped", "collect"]

_READ: Final = 1 << 20
_GATHER: Final = 0.01
"""Seconds that a slow producer at standard input gets to fill a message up."""

STDIN_NAME: Final = "stdin"


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something to send.

    Attributes:
        entry: What the receiver is told.
        path: Where it is; None: standard input.
        named: By the user, and not found in a directory: it must not be left out.
    """

    entry: Entry
    path: Path | None
    named: bool = False


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Something in a directory that cannot be sent."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is to be sent, and what came of it.

    Attributes:
        items: In order.
        skipped: What is left out.
        changed: Names of files that were written to while they were read.
    """

    items: list[Item] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def skip(self, path: os.PathLike[str] | str, reason: str) -> None:
        """Notes that something is left out."""
        self.skipped.append(Skipped(path=printable(os.fspath(path)), reason=reason))


_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _kind(status: os.stat_result) -> str:
    """What something is that is neither a file nor a directory; "" if it is one."""
    return next((words for applies, words in _KINDS if applies(status.st_mode)), "")


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(
        kind="directory" if stat.S_ISDIR(status.st_mode) else "file",
        name=name,
        size=status.st_size if stat.S_ISREG(status.st_mode) else None,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        mtime_ns=max(0, status.st_mtime_ns),
    )


def _children(folder: Path, name: str, found: Found) -> list[Item]:
    """What is in a directory, in order of the names; links are not followed."""
    items = []
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError as error:
        found.skip(folder, str(error.strerror))
        return []
    for each in names:
        path = folder / each
        try:
            status = path.stat(follow_symlinks=False)
            if kind := _kind(status):
                found.skip(path, kind)
            else:
                items.append(Item(entry=_entry(f"{name}/{each}", status), path=path))
        except OSError as error:
            found.skip(path, str(error.strerror))
        except ProtocolError as error:
            found.skip(path, str(error))
    return items


def _walk(top: Item, found: Found) -> None:
    """Adds something and all that is in it, a directory before what it holds."""
    stack = [top]
    while stack:
        item = stack.pop()
        found.items.append(item)
        if item.entry.kind == "directory" and item.path is not None:
            stack.extend(reversed(_children(item.path, item.entry.name, found)))


def _named(text: str) -> Item:
    """What an argument names; a link as what it leads to, under the link's name.

    Raises:
        CommandError: It has no name, or is no file.
        OSError: It cannot be read.
    """
    if text == "-":
        entry = Entry(kind="file", name=STDIN_NAME, size=None, mode=0o644, mtime_ns=time.time_ns())
        return Item(entry=entry, path=None, named=True)
    if not text:
        raise CommandError(ExitCode.USAGE, "'' names nothing; the directory here is .")
    path = Path(text)
    status = path.stat()
    if kind := _kind(status):
        hint = ": send what it gives as standard input, -" if kind == "a FIFO" else ""
        raise CommandError(ExitCode.LOCAL_IO, f"{printable(text)} is {kind}{hint}")
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))  # before anything is sent
    name = path.name if path.name not in {"", ".."} else path.resolve().name
    at = path.resolve() if path.is_symlink() else path
    try:
        return Item(entry=_entry(name, status), path=at, named=True)
    except ProtocolError as error:
        raise CommandError(ExitCode.USAGE, f"{printable(text)}: {error}") from None


def collect(paths: Sequence[str]) -> Found:
    """Everything that the arguments name. Blocking, for long where there is much.

    Raises:
        CommandError: Something has no name, or the same as another, or is no file.
        OSError: Something that was named cannot be read.
    """
    found = Found()
    tops = [_named(text) for text in paths]
    names = Counter(top.entry.name for top in tops)
    for name, count in names.items():
        if count > 1:
            text = f"{count} of these would be called {printable(name)} at the receiver"
            raise CommandError(ExitCode.USAGE, text)
    for top in tops:
        _walk(top, found)
    return found


class Reader:
    """Reads one item, in a worker: every method blocks.

    Attributes:
        entry: As the item's, but as it is now: since it was listed time has passed.
        position: Bytes read so far.
    """

    def __init__(self, item: Item) -> None:
        """Opens it.

        Raises:
            OSError: It cannot be opened, or is no file any more.
        """
        self._path = item.path
        self._status: os.stat_result | None = None
        self.entry = item.entry
        self.position = 0
        if item.path is None:
            self._fd = 0
            return
        # What has taken its name meanwhile must neither block us nor lead elsewhere.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        self._fd = os.open(item.path, flags)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "is no file any more", os.fspath(item.path))
        self._status = status
        self.entry = _entry(item.entry.name, status)
        if not status.st_size:
            # Files of /proc and /sys say that they are empty: only reading tells.
            self.entry = replace(self.entry, size=None)

    def close(self) -> None:
        """Closes it, but for standard input."""
        if self._path is not None:
            os.close(self._fd)

    def prefix(self, size: int) -> Any:
        """A SHA-256 hash object of the first bytes; reading goes on behind them."""
        state = hashlib.sha256()
        buffer = memoryview(bytearray(_READ))
        while self.position < size:
            part = self.read(buffer[: size - self.position])
            state.update(buffer[:part])
        return state

    def restart(self) -> None:
        """Goes back to the beginning."""
        self.position = 0

    def read(self, buffer: memoryview) -> int:
        """Fills a buffer as far as the item goes; returns how far: 0 is its end.

        Raises:
            CommandError: The file ends before the size it had.
            OSError: It cannot be read.
        """
        size = self.entry.size
        try:
            filled = self._read_stream(buffer) if size is None else self._read_file(buffer, size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.entry.name) from None
        self.position += filled
        return filled

    def _read_file(self, buffer: memoryview, size: int) -> int:
        wanted = min(len(buffer), size - self.position)
        filled = 0
        while filled < wanted:
            part = os.preadv(self._fd, [buffer[filled:wanted]], self.position + filled)
            if part == 0:
                now = self.position + filled
                text = f"the file shrank from {size} to {now} bytes while it was sent"
                raise CommandError(ExitCode.LOCAL_IO, f"{printable(self.entry.name)}: {text}")
            filled += part
        return filled

    def _read_stream(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer):
            wait = _GATHER if filled else None
            if not select.select([self._fd], [], [], wait)[0]:
                break
            part = os.readv(self._fd, [buffer[filled:]])
            if part == 0:
                break
            filled += part
        return filled

    def changed(self) -> bool:
        """Whether the file was written to since it was opened."""
        before = self._status
        if before is None:
            return False
        now = os.fstat(self._fd)
        return (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
