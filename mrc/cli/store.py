# SPDX-License-Identifier: Apache-2.0
"""Where received data goes: a directory, standard output, or nowhere. Blocking: for a worker.

In a directory a file appears under its name only when it is whole: until then it is NAME.mrc-part
beside it, which is kept when the transfer breaks, for --resume. Names are followed component by
component without symbolic links, so that nothing outside can be reached.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import select
import stat
from typing import Any, Final, Protocol

from mrc.cli.common import CommandError, ExitCode, printable
from mrc.cli.transfer import PART_SUFFIX, Entry, check_name

__all__ = ["DirectoryStore", "DiscardStore", "Store", "StreamStore", "Target"]

_READ: Final = 1 << 20
_MOST_NAME: Final = 255
"""Bytes of a name in a directory: NAME_MAX of Linux."""


class Target(Protocol):
    """A file on its way in.

    Attributes:
        offset: Bytes of it, or of something else, that are there already.
    """

    offset: int

    def prefix(self) -> Any:
        """A SHA-256 hash object of these bytes."""

    def start(self, offset: int) -> None:
        """The data will begin at `offset`: all of what is there, or 0.

        Raises:
            CommandError: What is there is another file, and may not be replaced.
            OSError: It cannot be written.
        """

    def write(self, data: memoryview) -> None:
        """Adds data.

        Raises:
            CommandError: It cannot be written; says how far it came.
        """

    def commit(self) -> None:
        """The file is whole and checked: gives it its name.

        Raises:
            OSError: It cannot be done.
        """

    def abandon(self, *, keep: bool) -> None:
        """The file will not become whole; after `commit` does nothing."""


class Store(Protocol):
    """Takes what a sender sends."""

    def open(self, entry: Entry) -> Target:
        """Prepares for a file.

        Raises:
            CommandError: It is there already, or is being received.
            OSError: It cannot be created.
        """

    def make_directory(self, entry: Entry) -> None:
        """Makes a directory, unless it is there.

        Raises:
            OSError: It cannot be created.
        """


def write_error(name: str, error: OSError, done: int, size: int | None) -> CommandError:
    """An error of writing as it is told to both sides."""
    of = "" if size is None else f" of {size}"
    text = f"{printable(name)}: {error.strerror} (wrote {done}{of} bytes)"
    return CommandError(ExitCode.LOCAL_IO, text)


class DiscardTarget:
    """Data that is only counted and checked."""

    offset = 0

    def prefix(self) -> Any:
        """Of nothing."""
        return hashlib.sha256()

    def start(self, offset: int) -> None:
        """Nothing to prepare."""

    def write(self, data: memoryview) -> None:
        """Drops it."""

    def commit(self) -> None:
        """Nothing to keep."""

    def abandon(self, *, keep: bool) -> None:
        """Nothing to remove."""


class DiscardStore:
    """Takes everything, keeps nothing."""

    def open(self, entry: Entry) -> Target:
        """Prepares for nothing."""
        return DiscardTarget()

    def make_directory(self, entry: Entry) -> None:
        """Makes none."""


class StreamTarget(DiscardTarget):
    """Data that goes to a file descriptor as it comes."""

    def __init__(self, fd: int, entry: Entry) -> None:
        self._fd = fd
        self._entry = entry
        self._done = 0

    def write(self, data: memoryview) -> None:
        """Writes all of it, however slowly it is taken."""
        rest = data
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # whoever shares the pipe made it so
                    select.select([], [self._fd], [])
        except OSError as error:
            done = self._done + len(data) - len(rest)
            raise write_error(self._entry.name, error, done, self._entry.size) from None
        self._done += len(data)


class StreamStore:
    """Takes every file, one behind the other, to a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def open(self, entry: Entry) -> Target:
        """Prepares for nothing."""
        return StreamTarget(self._fd, entry)

    def make_directory(self, entry: Entry) -> None:
        """Makes none."""


class WholeTarget:
    """A file that is there under its name: --resume asks whether it is the one."""

    def __init__(self, fd: int, entry: Entry) -> None:
        self._fd = fd
        self._entry = entry
        self.offset = os.fstat(fd).st_size

    def prefix(self) -> Any:
        """Of the whole file."""
        return _hash_file(self._fd, self.offset)

    def start(self, offset: int) -> None:
        """Refuses unless nothing is to come."""
        if offset != self.offset or offset != self._entry.size:
            raise CommandError(
                ExitCode.LOCAL_IO,
                f"{printable(self._entry.name)} exists and is another file: "
                "mrc-recv --overwrite replaces it",
            )

    def write(self, data: memoryview) -> None:
        """Refuses."""
        raise CommandError(ExitCode.LOST, "the peer sent data of a file that was whole")

    def commit(self) -> None:
        """It has its name."""
        self.abandon(keep=True)

    def abandon(self, *, keep: bool) -> None:
        """Leaves it alone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _hash_file(fd: int, size: int) -> Any:
    state = hashlib.sha256()
    for offset in range(0, size, _READ):
        state.update(os.pread(fd, min(_READ, size - offset), offset))
    return state


def _exists(entry: Entry) -> CommandError:
    hint = "mrc-recv --overwrite replaces it, mrc-recv --resume completes it"
    return CommandError(ExitCode.FAILED, f"{printable(entry.name)} exists: {hint}")


def _part_name(leaf: str) -> str:
    """What a file is called until it is whole; its own name may be as long as names can be."""
    room = _MOST_NAME - len(PART_SUFFIX)
    name = os.fsencode(leaf)
    if len(name) > room:
        digest = hashlib.sha256(name).hexdigest()[:16]
        name = name[: room - len(digest)] + digest.encode()
    return os.fsdecode(name) + PART_SUFFIX


class PartTarget:
    """A file that grows beside its name."""

    def __init__(
        self, folder: int, leaf: str, entry: Entry, *, resume: bool, replace: bool
    ) -> None:
        """Takes over `folder`, an open directory."""
        self._replace = replace
        self._folder = folder
        self._leaf = leaf
        self._entry = entry
        self._part = _part_name(leaf)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd = os.open(self._part, flags, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
                raise self._in_the_way() from None
            raise
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise self._in_the_way()
            self._lock()
        except BaseException:
            os.close(self._fd)
            raise
        self.offset = status.st_size if resume else 0

    def _in_the_way(self) -> CommandError:
        name = "/".join((*self._entry.name.split("/")[:-1], self._part))
        return CommandError(ExitCode.LOCAL_IO, f"{printable(name)} is no file of ours: remove it")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{printable(self._entry.name)} is being received by another mrc-recv"
            raise CommandError(ExitCode.LOCAL_IO, text) from None

    def prefix(self) -> Any:
        """Of what an earlier transfer left."""
        return _hash_file(self._fd, self.offset)

    def start(self, offset: int) -> None:
        """Continues, or begins anew where the sender's file is another."""
        self.offset = offset
        os.ftruncate(self._fd, offset)

    def write(self, data: memoryview) -> None:
        """Adds data."""
        try:
            while data:
                done = os.pwrite(self._fd, data, self.offset)
                self.offset += done
                data = data[done:]
        except OSError as error:
            raise write_error(self._entry.name, error, self.offset, self._entry.size) from None

    def commit(self) -> None:
        """Makes it durable, then gives it mode, time and name."""
        times = (self._entry.mtime_ns, self._entry.mtime_ns)
        os.fchmod(self._fd, self._entry.mode)
        os.utime(self._fd, ns=times)
        os.fsync(self._fd)
        if not self._replace and self._leaf in os.listdir(self._folder):
            raise _exists(self._entry)  # it has come meanwhile
        os.rename(self._part, self._leaf, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        self.abandon(keep=True)

    def abandon(self, *, keep: bool) -> None:
        """Keeps what came for --resume, or removes it."""
        if self._fd < 0:
            return
        if not keep or not os.fstat(self._fd).st_size:
            with contextlib.suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)
        os.close(self._fd)
        os.close(self._folder)
        self._fd = -1


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryStore:
    """Takes files and directories below a directory."""

    def __init__(self, path: str, *, overwrite: bool, resume: bool) -> None:
        """Opens the directory.

        Raises:
            OSError: It is none.
        """
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._overwrite = overwrite
        self._resume = resume

    def _descend(self, parts: tuple[str, ...], *, name: str) -> int:
        """Opens a directory below the root, making what is missing."""
        folder = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=folder)
                inner = os.open(part, _DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
        except OSError as error:
            os.close(folder)
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                # The kernel says the same of a link to a directory as of a file.
                what = "no directory (symbolic links are not followed)"
                text = f"{printable(name)}: {printable(part)} is {what}"
                raise CommandError(ExitCode.LOCAL_IO, text) from None
            raise
        return folder

    def open(self, entry: Entry) -> Target:
        """Prepares for a file."""
        *parents, leaf = check_name(entry.name)
        folder = self._descend(tuple(parents), name=entry.name)
        try:
            whole = self._existing(folder, leaf, entry)
            if whole is None:
                return PartTarget(folder, leaf, entry, resume=self._resume, replace=self._overwrite)
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)
        return whole

    def _existing(self, folder: int, leaf: str, entry: Entry) -> Target | None:
        """What is there under the name and stays; None: nothing, or it may be replaced."""
        try:
            status = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), entry.name)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            raise CommandError(  # root's --overwrite in /dev would cost the machine its devices
                ExitCode.FAILED,
                f"{printable(entry.name)} exists and is no file but a device, FIFO or socket: "
                "mrc-recv replaces none, receive into another directory",
            )
        if self._overwrite:
            return None
        if self._resume and stat.S_ISREG(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            return WholeTarget(os.open(leaf, flags, dir_fd=folder), entry)
        raise _exists(entry)

    def make_directory(self, entry: Entry) -> None:
        """Makes a directory, unless it is there."""
        folder = self._descend(check_name(entry.name), name=entry.name)
        try:
            # Its owner must be able to fill it.
            os.fchmod(folder, entry.mode | stat.S_IRWXU)
        finally:
            os.close(folder)
