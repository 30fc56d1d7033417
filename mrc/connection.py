# SPDX-License-Identifier: Apache-2.0
"""Connection: messages and one-sided writes between two programs; what the application holds."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

from mrc import establish
from mrc._native import PLANE_REASONS, PLANE_STATES
from mrc.config import Config
from mrc.control import parse_target
from mrc.endpoint import Endpoint
from mrc.errors import (
    ConcurrencyError,
    ConnectionClosedOK,
    ConnectionLost,
    MessageTooLarge,
)
from mrc.events import ConnectionStats, Event, PathStats
from mrc.handshake import Kind
from mrc.link import Link, PairedPlane
from mrc.memory import RemoteRegion, check_immediate, describe, flat
from mrc.messages import Messages, Sending

__all__ = [
    "Completion",
    "Connecting",
    "Connection",
    "MemoryRegion",
    "Message",
    "connect",
]


class Message:
    """A received message. It is the caller's alone.

    Attributes:
        data: The bytes; writable when the message was large.
        imm: The immediate that came with it, or None.
    """

    __slots__ = ("data", "imm")

    def __init__(self, data: Any, imm: int | None) -> None:
        self.data = memoryview(data)
        self.imm = imm

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def __repr__(self) -> str:
        return f"<mrc.Message of {len(self.data)} bytes, imm={self.imm}>"


class Completion:
    """The end of a posted send: awaitable, as often as one likes.

    Awaiting returns None when the peer's transport has acknowledged the whole message, and raises
    what `Connection.send` raises. Cancelling who awaits does not cancel the send.
    """

    __slots__ = ("_link", "_sending")

    def __init__(self, link: Link, sending: Sending) -> None:
        self._link = link
        self._sending = sending

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._sending.waiter).__await__()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._sending.waiter.done())

    def cancel(self) -> bool:
        """Withdraws the message. False: it has begun, and will be delivered whole."""
        if not self._link.withdraw(self._sending):
            return False
        return bool(self._sending.waiter.cancel())


class MemoryRegion:
    """A buffer lent to the peer; a context manager.

    The buffer stays exported until `close`, and must not be read before the peer has said, as by
    an immediate, that it is written.

    Attributes:
        descriptor: What the peer needs, for `Connection.remote`; send it to it.
    """

    def __init__(self, link: Link, buffer: Any) -> None:
        view = flat(buffer)
        if view.readonly:
            raise BufferError("a memory region must be writable: give a bytearray, not bytes")
        self._link = link
        self._size = len(view)
        va, self._key = link.register(view)
        self.descriptor = describe(key=self._key, va=va, size=self._size)

    def __len__(self) -> int:
        return self._size

    def __enter__(self) -> MemoryRegion:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Revokes it at once: a later write of the peer ends in RemoteAccessError there."""
        self._link.deregister(self._key)


class Connection:
    """A reliable connection over all planes that two hosts have in common.

    An async context manager: closes on success, aborts on an exception. Any number of sends may
    run at once; messages arrive in the order of the calls. One `recv` at a time. All methods belong
    to the loop that made the connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._receiving = False
        self._process = os.getpid()
        frame = sys._getframe(1)
        self._made_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<mrc.Connection to {self._link.peer_name}, {state}>"

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is None or link.error is not None or os.getpid() != self._process:
            return
        if not link.loop.is_closed():
            self.abort()
        warnings.warn(
            f"connection made at {self._made_at} was not closed", ResourceWarning, stacklevel=1
        )

    # Messages.

    async def send(self, data: Any, *, imm: int | None = None) -> None:
        """Sends a message; returns when the peer's transport has acknowledged all of it.

        Not before the peer's program has made room for it: a slow receiver slows its sender.
        Cancelling withdraws the message if no packet of it has left; else it is delivered whole.

        Args:
            data: Anything contiguous with the buffer protocol. Not copied when large: leave it as
                it is until this returns (after a cancellation: until it has been delivered).
            imm: 32 bits that come with the message.

        Raises:
            ConnectionClosedOK: Either side has closed.
            ConnectionLost: The connection broke; whether the message arrived is not known.
            ValueError: `imm` is out of range, or the buffer is not contiguous.
        """
        sending = self._link.send(flat(data), check_immediate(imm))
        await self._finish(sending)

    async def _finish(self, sending: Sending) -> None:
        try:
            await sending.waiter
        except asyncio.CancelledError:
            self._link.withdraw(sending)
            raise

    async def post_send(self, data: Any, *, imm: int | None = None) -> Completion:
        """Begins to send a message, after waiting while `max_inflight` bytes are under way.

        Raises:
            ConnectionClosedOK: Either side has closed.
            ConnectionLost: The connection broke.
            ValueError: `imm` is out of range, or the buffer is not contiguous.
        """
        view, imm = flat(data), check_immediate(imm)
        link, size = self._link, len(view)
        most = link.endpoint.config.max_inflight
        link.check_open()
        while link.inflight and link.inflight + size > most:
            waiter: asyncio.Future[None] = link.loop.create_future()
            link.room.append(waiter)
            try:
                await waiter
            finally:
                link.room.remove(waiter)
            link.check_open()
        sending = link.send(view, imm)
        link.inflight += size

        def ended(_: object) -> None:
            link.inflight -= size
            link.wake_room()

        sending.waiter.add_done_callback(ended)
        return Completion(link, sending)

    async def recv(self) -> Message:
        """The next message. Cancelling loses nothing.

        Raises:
            ConnectionClosedOK: The connection was closed, and every message has been received.
            ConnectionLost: It broke, and every whole message has been received.
            ConcurrencyError: Another `recv` or `recv_into` is running.
            MemoryError: The message is larger than memory; `recv_into` may take it.
        """
        messages = self._begin_receive()
        try:
            while (arrived := messages.take()) is None:
                self._check_receive()
                messages.want()
                await self._wait_for_arrival()
            return Message(arrived.buffer, arrived.immediate)
        finally:
            self._end_receive()

    async def recv_into(self, buffer: Any) -> int:
        """Receives the next message into `buffer`; returns its size in bytes.

        A large message that has not begun to arrive is placed there by the transport, without a
        copy. After a cancellation the buffer stays exported, and may be written to, until the
        message under way has arrived; nothing is lost.

        Raises:
            MessageTooLarge: It does not fit, and stays queued.
            BufferError: The buffer is read-only.
            ConnectionClosedOK: The connection was closed, and every message has been received.
            ConnectionLost: It broke, and every whole message has been received.
            ConcurrencyError: Another `recv` or `recv_into` is running.
        """
        view = flat(buffer)
        if view.readonly:
            raise BufferError("recv_into needs a writable buffer: a bytearray, not bytes")
        messages = self._begin_receive()
        try:
            while True:
                head = messages.head
                if head is not None and head.complete:
                    if not head.direct and head.size > len(view):
                        raise MessageTooLarge(head.size, len(view))
                    messages.take()
                    if not head.direct:
                        view[: head.size] = head.buffer
                    return head.size
                self._check_receive()
                messages.offer(view)
                await self._wait_for_arrival()
        finally:
            self._end_receive()

    def _begin_receive(self) -> Messages:
        link = self._link
        link.check_process()
        if self._receiving:
            raise ConcurrencyError("another recv of this connection is running")
        self._receiving = True
        return link.messages

    def _check_receive(self) -> None:
        link = self._link
        if link.error is not None:
            raise link.error
        if link.closing or link.messages.peer_has_closed:
            raise ConnectionClosedOK("the connection is closed")

    async def _wait_for_arrival(self) -> None:
        # Only a wake-up: the message stays queued until `take`, so a cancellation loses nothing.
        waiter = self._link.receiver = self._link.loop.create_future()
        await waiter

    def _end_receive(self) -> None:
        self._receiving = False
        self._link.receiver = None
        if self._link.error is None:
            self._link.messages.forget()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Every message, until the connection is closed in good order."""
        while True:
            try:
                message = await self.recv()
            except ConnectionClosedOK:
                return
            yield message

    # Memory.

    def register(self, buffer: Any) -> MemoryRegion:
        """Lends a writable buffer to this peer, which may write to it until it is closed.

        Raises:
            BufferError: It is read-only.
            ConnectionClosed: The connection is.
        """
        self._link.check_open()
        return MemoryRegion(self._link, buffer)

    def remote(self, descriptor: Any) -> RemoteRegion:
        """The peer's memory that a `MemoryRegion.descriptor` of it describes.

        Raises:
            ProtocolError: It is no descriptor.
        """
        return RemoteRegion.from_descriptor(descriptor)

    async def write(self, src: Any, remote: RemoteRegion, *, imm: int | None = None) -> None:
        """Writes to the peer's memory; returns when the peer's transport has placed all of it.

        Args:
            src: Anything contiguous with the buffer protocol; leave it as it is until then.
            remote: Where to; at least as large.
            imm: Given, an empty message with it follows for the peer's `recv`, behind the data.

        Raises:
            RemoteAccessError: The peer does not lend this memory (any more); the connection breaks.
            ConnectionClosed: As `send`.
            ValueError: `src` is larger than `remote`, or `imm` is out of range.
        """
        view = flat(src)
        if len(view) > len(remote):
            raise ValueError(f"{len(view)} bytes do not fit a remote region of {len(remote)}")
        await self._finish(self._link.put(view, remote.key, remote.va, check_immediate(imm)))

    # What is going on.

    @property
    def closed(self) -> bool:
        """Whether the connection is over, one way or the other."""
        return self._link.error is not None

    @property
    def peer(self) -> str:
        """The peer's address and port of the control connection."""
        return self._link.peer_name

    @property
    def planes(self) -> tuple[PairedPlane, ...]:
        """The planes in common."""
        return self._link.planes

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know of the set-up, as planes that are not used."""
        return self._link.notices

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint it belongs to."""
        return self._link.endpoint

    def paths(self) -> tuple[PathStats, ...]:
        """Every plane of this connection as it is now.

        Raises:
            ConnectionClosed: The connection is over.
        """
        return tuple(self._path(plane) for plane in self._link.planes)

    def _path(self, plane: PairedPlane) -> PathStats:
        link = self._link
        link.check_alive()
        stats = link.engine.plane_stats(link.peer, plane.local.number)
        same: dict[str, Any] = {f.name: stats[f.name] for f in fields(PathStats) if f.name in stats}
        same.update(
            state=PLANE_STATES[stats["state"]],
            reason=PLANE_REASONS[stats["reason"]],
            changed=stats["changed"] / 1e9,
            bursts=bool(stats["bursts"]),
        )
        return PathStats(
            name=plane.name,
            peer_name=plane.remote_name,
            local_address=plane.local_address,
            peer_address=str(plane.local.address),
            rtt_us=stats["rtt"] / 1e3,
            rtt_min_us=stats["rtt_min"] / 1e3,
            **same,
        )

    def stats(self) -> ConnectionStats:
        """The connection as a whole as it is now.

        Raises:
            ConnectionClosed: The connection is over.
        """
        link = self._link
        link.check_alive()
        stats = link.engine.qp_stats(link.qp)
        same = {f.name: stats[f.name] for f in fields(ConnectionStats) if f.name in stats}
        return ConnectionStats(rtt_us=stats["rtt"] / 1e3, **same)

    async def events(self) -> AsyncIterator[Event]:
        """What happens to the paths, from the connection's start on; ends with the connection.

        The last 1024 are kept for who comes late; each is given once.
        """
        while (event := await self._link.next_event()) is not None:
            yield event

    def disable_plane(self, name: str) -> None:
        """Takes a plane of the endpoint out of use for data (on all its connections)."""
        self._link.endpoint.disable_plane(name)

    def enable_plane(self, name: str) -> None:
        """Gives it back."""
        self._link.endpoint.enable_plane(name)

    # The end.

    async def close(self, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - as promised
        """Closes in good order: what was sent is delivered first. Once is enough.

        Args:
            timeout: Seconds until what is left is given up.

        Raises:
            ConnectionLost: The time was up with messages unsent; they are lost.
        """
        link = self._link
        if os.getpid() != self._process or link.error is not None:
            return
        if not link.closing:
            link.begin_close()
        try:
            async with asyncio.timeout(timeout):
                while link.error is None:
                    await asyncio.shield(link.ended)
        except TimeoutError:
            unsent = not link.messages.idle
            if not unsent:
                link.end(ConnectionClosedOK("the connection is closed"), Kind.CLOSE)
                return
            lost = ConnectionLost("aborted", f"unsent messages after {timeout} s of closing")
            link.end(lost)
            raise lost from None
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Ends it at once: nothing is flushed, and the peer sees `ConnectionLost`."""
        if os.getpid() == self._process:
            self._link.end(ConnectionLost("aborted", "by this side"))


class Connecting:
    """What `connect` returns: await it, or enter it by `async with`."""

    def __init__(
        self, targets: list[tuple[str, int]], endpoint: Endpoint, *, timeout: float, owns: bool
    ) -> None:
        self._targets = targets
        self._endpoint = endpoint
        self._timeout = timeout
        self._owns = owns
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._connect().__await__()

    async def _connect(self) -> Connection:
        try:
            await self._endpoint.start()
            link = await establish.connect(self._endpoint, self._targets, timeout=self._timeout)
        except BaseException:
            if self._owns:
                self._endpoint.close_now()
            raise
        if self._owns:
            self._endpoint.close_when_unused()
        return Connection(link)

    async def __aenter__(self) -> Connection:
        self._connection = await self._connect()
        return self._connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._connection is not None
        await self._connection.__aexit__(kind, error, trace)


def connect(
    target: str | Sequence[str],
    *,
    planes: Sequence[str] | None = None,
    config: Config | None = None,
    timeout: float = 10.0,
    endpoint: Endpoint | None = None,
) -> Connecting:
    """Connects to a peer that listens: `await mrc.connect(...)` or `async with mrc.connect(...)`.

    Args:
        target: `host`, `host:port`, `[v6]:port` or `mrc://host:port`, or several that are one peer.
        planes: Interfaces to carry data, `[ID=]INTERFACE[/ADDRESS]`; None: all that can.
        config: Settings of the endpoint.
        timeout: Seconds until it must carry data.
        endpoint: To share; then neither `planes` nor `config` may be given.

    Raises (when awaited):
        CapabilityError: This process may not open raw sockets.
        ConfigError: A plane or target is not what it should be.
        ConnectRefused: Nobody listens there.
        ConnectTimeout: Nobody answered in time, or no plane carries data.
        HandshakeError: They answered, but cannot be talked to, or have no plane in common.
    """
    if endpoint is not None and (planes is not None or config is not None):
        raise ValueError("planes and config are the endpoint's: give them to Endpoint()")
    names = [target] if isinstance(target, str) else list(target)
    targets = [parse_target(name) for name in names]
    owns = endpoint is None
    return Connecting(targets, endpoint or Endpoint(planes, config), timeout=timeout, owns=owns)
