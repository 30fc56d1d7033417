# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the library; this is the whole tree.

    MRCError
    ├── ConnectionClosed (ConnectionError)         the connection is not usable any more
    │   ├── ConnectionClosedOK                     either side closed it in good order
    │   └── ConnectionLost                         it broke; `reason` says how
    ├── ConnectTimeout (TimeoutError)              nobody answered in time, or no plane carries data
    ├── ConnectRefused (ConnectionRefusedError)    the host is there, but nobody listens
    ├── HandshakeError (ConnectionError)           they answered, but cannot be talked to
    ├── RemoteAccessError (PermissionError)        the peer's memory is not lent to us there
    ├── MessageTooLarge (ValueError)               the message does not fit the given buffer
    ├── CapabilityError (PermissionError)          this process may not open raw sockets
    ├── ProtocolError (ValueError)                 bytes or values that are not MRC
    ├── ConfigError (ValueError)                   a setting is out of range or contradictory
    ├── ConcurrencyError (RuntimeError)            two calls at once where only one makes sense
    └── AfterForkError (RuntimeError)              used in a child of fork()

Each is also the builtin in parentheses, so that generic code catches it. Besides these, wrong
arguments raise TypeError, ValueError or BufferError as everywhere, and calls of the operating
system OSError.
"""

from __future__ import annotations

import errno

__all__ = [
    "AfterForkError",
    "CapabilityError",
    "ConcurrencyError",
    "ConfigError",
    "ConnectRefused",
    "ConnectTimeout",
    "ConnectionClosed",
    "ConnectionClosedOK",
    "ConnectionLost",
    "HandshakeError",
    "MRCError",
    "MessageTooLarge",
    "ProtocolError",
    "RemoteAccessError",
]


class MRCError(Exception):
    """Base of everything that this library raises on purpose."""


class ConnectionClosed(MRCError, ConnectionError):
    """The connection is not usable any more."""


class ConnectionClosedOK(ConnectionClosed):
    """Either side closed the connection in good order; nothing was lost."""


class ConnectionLost(ConnectionClosed):
    """The connection broke.

    Attributes:
        reason: One of `REASONS`.
    """

    REASONS = (
        "aborted",  # by `abort`, here or at the peer
        "peer crashed",  # its process ended without a word
        "peer restarted",  # it is there again, but it is another
        "peer silent",  # no answer on any plane for `dead_after`
        "retries exceeded",  # one packet was not acknowledged however often it was sent
        "remote access refused",  # a write met memory that the peer does not lend
        "protocol error",  # the peer broke a rule
    )

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason


class ConnectTimeout(MRCError, TimeoutError):
    """No address of the peer answered in time, or none of the planes carries data."""


class ConnectRefused(MRCError, ConnectionRefusedError):
    """The peer's host says on every address that nobody listens on this port."""


class HandshakeError(MRCError, ConnectionError):
    """The set-up failed: another protocol or version, no plane in common, no such host."""


class RemoteAccessError(MRCError, PermissionError):
    """The peer does not lend this memory: key, range or right is wrong, or it was revoked."""


class MessageTooLarge(MRCError, ValueError):
    """The next message is larger than the buffer; it stays queued.

    Attributes:
        size: Of the message, in bytes.
    """

    def __init__(self, size: int, room: int) -> None:
        super().__init__(f"the next message has {size} bytes, the buffer {room}")
        self.size = size
        self._room = room

    def __reduce__(self) -> tuple[type[MessageTooLarge], tuple[int, int]]:
        return type(self), (self.size, self._room)


class CapabilityError(MRCError, PermissionError):
    """This process may not open raw sockets; the message says what to do about it."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPERM, what)

    def __reduce__(self) -> tuple[type[CapabilityError], tuple[str]]:
        return type(self), (str(self.strerror),)


class ProtocolError(MRCError, ValueError):
    """Bytes or values that are not MRC: the message says what is wrong where."""


class ConfigError(MRCError, ValueError):
    """A setting is out of range or contradicts another; the message names it."""


class ConcurrencyError(MRCError, RuntimeError):
    """Two calls at once where only one makes sense, as two `recv` of one connection."""


class AfterForkError(MRCError, RuntimeError):
    """An endpoint or connection was used in a child of fork(): open a new one there."""
