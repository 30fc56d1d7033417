# SPDX-License-Identifier: Apache-2.0
"""What is sent: files, directories with all that is in them, standard input."""

from __future__ import annotations

import hashlib
import os
import select
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mrc.cli.common import CommandError, ExitCode, printable
from mrc.cli.transfer import Entry, check_name
from mrc.errors import ProtocolError

__all__ = ["Item", "Reader", "collect"]

_READ: Final = 1 << 20
_GATHER: Final = 0.01
"""Seconds that a slow producer at standard input gets to fill a message up."""

STDIN_NAME: Final = "stdin"


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something to send. `path` None: standard input."""

    entry: Entry
    path: Path | None


def _item(path: Path, name: str, status: os.stat_result) -> Item:
    entry = Entry(
        kind="directory" if stat.S_ISDIR(status.st_mode) else "file",
        name=name,
        size=status.st_size if stat.S_ISREG(status.st_mode) else None,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        mtime_ns=max(0, status.st_mtime_ns),
    )
    return Item(entry=entry, path=path)


def _walk(path: Path, name: str, skipped: list[str]) -> Iterator[Item]:
    """A directory and what is in it, in order of the names; links are not followed."""
    yield _item(path, name, path.stat())
    with os.scandir(path) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    for child in children:
        status = child.stat(follow_symlinks=False)
        inner = f"{name}/{child.name}"
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path / child.name, inner, skipped)
        elif stat.S_ISREG(status.st_mode):
            yield _item(path / child.name, inner, status)
        else:
            skipped.append(str(path / child.name))


def collect(paths: Sequence[str]) -> tuple[list[Item], list[str]]:
    """Everything that the arguments name, and what of it is skipped: links, devices, sockets.

    Raises:
        CommandError: Something has no name, or the same as another, or is no file.
        OSError: Something cannot be read.
    """
    items: list[Item] = []
    skipped: list[str] = []
    for text in paths:
        if text == "-":
            entry = Entry(
                kind="file", name=STDIN_NAME, size=None, mode=0o644, mtime_ns=time.time_ns()
            )
            items.append(Item(entry=entry, path=None))
            continue
        path = Path(text)
        status = path.stat()
        name = path.name if path.name not in {"", ".."} else path.resolve().name
        _check(name, text)
        if stat.S_ISDIR(status.st_mode):
            items.extend(_walk(path, name, skipped))
        elif stat.S_ISREG(status.st_mode):
            items.append(_item(path, name, status))
        else:
            raise CommandError(ExitCode.LOCAL_IO, f"{text}: is neither a file nor a directory")
    names = [item.entry.name for item in items]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        text = f"two of these would both be called {printable(twice)}"
        raise CommandError(ExitCode.USAGE, text)
    return items, skipped


def _check(name: str, text: str) -> None:
    try:
        check_name(name)
    except ProtocolError as error:
        raise CommandError(ExitCode.USAGE, f"{printable(text)}: {error}") from None


class Reader:
    """Reads one item, in a worker: every method blocks.

    Attributes:
        position: Bytes read so far.
    """

    def __init__(self, item: Item) -> None:
        """Opens it.

        Raises:
            OSError: It cannot be opened.
        """
        self._item = item
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._fd = 0 if item.path is None else os.open(item.path, flags)
        self.position = 0

    def close(self) -> None:
        """Closes it, but for standard input."""
        if self._item.path is not None:
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
        size = self._item.entry.size
        filled = self._read_stream(buffer) if size is None else self._read_file(buffer, size)
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
                raise CommandError(ExitCode.LOCAL_IO, f"{printable(self._item.entry.name)}: {text}")
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
        """Whether the file was written to since it was listed."""
        if self._item.path is None:
            return False
        status = os.fstat(self._fd)
        return status.st_mtime_ns != self._item.entry.mtime_ns or (
            status.st_size != self._item.entry.size
        )
