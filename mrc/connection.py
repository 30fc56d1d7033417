# SPDX-License-Identifier: Apache-2.0
"""Connection: messages and one-sided writes between two programs; what the application holds."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

from mrc import establish, unclosed
from mrc._native import PLANE_REASONS, PLANE_STATES
from mrc.config import Config
from mrc.control import parse_targets
from mrc.endpoint import Endpoint, endpoint_for
from mrc.errors import (
    ConcurrencyError,
    ConfigError,
    ConnectionClosedOK,
    ConnectionLost,
    MessageTooLarge,
)
from mrc.events import ConnectionStats, Event, EVInfo, PathStats
from mrc.handshake import Kind
from mrc.link import Link, PairedPlane
from mrc.localise import Fault
from mrc.memory import RemoteRegion, check_immediate, describe, flat, writable
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
    """A received message: `bytes(message)`, `len(message)`, or without a copy `message.data`.

    It is the caller's alone.

    Attributes:
        data: The bytes; writable when the message was large.
        imm: The immediate that came with it, or None.
    """

    __slots__ = ("data", "imm")

    def __init__(self, data: Any, imm: int | None) -> None:
        self.data: memoryview = memoryview(data)
        self.imm: int | None = imm

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

    __slots__ = ("_link", "_sending", "_size")

    def __init__(self, link: Link, sending: Sending, size: int) -> None:
        self._link = link
        self._sending = sending
        self._size = size

    def __repr__(self) -> str:
        waiter = self._sending.waiter
        if not waiter.done():
            state = "under way" if self._sending.started else "waiting"
        elif waiter.cancelled():
            state = "withdrawn"
        else:
            error = waiter.exception()
            state = "done" if error is None else f"failed: {error}"
        return f"<mrc.Completion of {self._size} bytes, {state}>"

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._sending.waiter).__await__()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._sending.waiter.done())

    def cancel(self) -> bool:
        """Withdraws the message, as long as none of it has been sent.

        Returns:
            Whether it is withdrawn: who awaits it gets CancelledError. False: it has begun, and
            will be delivered whole, or it has ended.
        """
        if not self._link.withdraw(self._sending):
            return False
        return bool(self._sending.waiter.cancel())


class MemoryRegion:
    """A buffer lent to the peer; a context manager.

    It is lent until `close`, or the connection's end, and cannot be resized until then. Its bytes
    must not be read before the peer has said, as by an immediate, that they are written: packets
    come in any order.

    Attributes:
        descriptor: 24 bytes that the peer needs, for `Connection.remote`; send them to it. Who
            knows them may write, in this connection.
    """

    def __init__(self, link: Link, buffer: Any) -> None:
        view = writable(buffer, "a memory region")
        self._link = link
        self._size = len(view)
        self._closed = False
        va, self._key = link.register(view)
        self.descriptor: bytes = describe(key=self._key, va=va, size=self._size)

    def __repr__(self) -> str:
        over = self._closed or self._link.error is not None
        return f"<mrc.MemoryRegion of {self._size} bytes, {'revoked' if over else 'lent'}>"

    def __len__(self) -> int:
        return self._size

    def __enter__(self) -> MemoryRegion:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Revokes it at once: when it returns nothing is written there any more.

        A later write of the peer ends in RemoteAccessError there, and breaks the connection. Once
        is enough.
        """
        if not self._closed:
            self._closed = True
            self._link.deregister(self._key)


class Connection:
    """A reliable connection over all planes that two hosts have in common.

    Made by `connect` and `Listener.accept`. An async context manager: closes on success, aborts on
    an exception. Any number of sends may run at once; messages arrive in the order of the calls.
    One `recv` at a time. All methods belong to the loop that made the connection; in a child of
    fork() they raise AfterForkError, but for `close` and `abort`, which do nothing there.
    """

    def __init__(self, link: Link, endpoint: Endpoint, made: unclosed.Site) -> None:
        self._link = link
        self._endpoint = endpoint
        self._made = made
        self._receiving = False
        self._watching = False
        self._turn = asyncio.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        error = self._link.error
        if error is not None:
            state = f"lost: {error}" if isinstance(error, ConnectionLost) else "closed"
        else:
            state = "closing" if self.closed else "open"
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
        unclosed.warn(self, self._made)
        if not link.loop.is_closed():
            self.abort()

    # Messages.

    async def send(self, data: Any, *, imm: int | None = None) -> None:
        """Sends a message; returns when the peer's transport has acknowledged all of it.

        Not before the peer's program has made room for it: a slow receiver slows its sender.
        Cancelling withdraws the message if no packet of it has left; else it is delivered whole.

        Args:
            data: Anything contiguous with the buffer protocol. Not copied when large: leave it as
                it is until this returns (after a cancellation: until it has been delivered).
            imm: An integer of 32 bits that comes with the message.

        Raises:
            ConnectionClosedOK: Either side has closed; the message was not sent.
            ConnectionLost: The connection broke; whether the message arrived is not known.
            TypeError: `data` is no buffer, or `imm` no integer.
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
        """Begins to send a message; waits first while `max_inflight` bytes are under way.

        Args:
            data: As `send`: leave it as it is until the completion has ended.
            imm: As `send`.

        Returns:
            What to await for the message's acknowledgement.

        Raises:
            ConnectionClosedOK: Either side has closed.
            ConnectionLost: The connection broke.
            TypeError: `data` is no buffer, or `imm` no integer.
            ValueError: `imm` is out of range, or the buffer is not contiguous.
        """
        view, imm = flat(data), check_immediate(imm)
        link, size = self._link, len(view)
        async with self._turn:  # else small ones would pass by large ones for ever
            await self._room_for(size)
            sending = link.send(view, imm)
        link.inflight += size

        def ended(_: object) -> None:
            link.inflight -= size
            link.wake_room()

        sending.waiter.add_done_callback(ended)
        return Completion(link, sending, size)

    async def _room_for(self, size: int) -> None:
        link = self._link
        link.check_open()
        while link.inflight and link.inflight + size > link.endpoint.config.max_inflight:
            waiter: asyncio.Future[None] = link.loop.create_future()
            link.room.append(waiter)
            try:
                await waiter
            finally:
                link.room.remove(waiter)
            link.check_open()

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
        """Receives the next message into the beginning of `buffer`; returns its size in bytes.

        Its immediate, if it has one, is not told: use `recv` for those.

        A large message that has not begun to arrive is placed there by the transport, without a
        copy. After a cancellation the buffer stays exported, and may be written to, until the
        message under way has arrived; nothing is lost.

        Raises:
            MessageTooLarge: It does not fit, and stays queued.
            BufferError: The buffer is read-only.
            TypeError: It is no buffer.
            ValueError: It is not contiguous.
            ConnectionClosedOK: The connection was closed, and every message has been received.
            ConnectionLost: It broke, and every whole message has been received.
            ConcurrencyError: Another `recv` or `recv_into` is running.
        """
        view = writable(buffer, "the buffer of recv_into")
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
        link.check_alive()
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

        Args:
            buffer: Anything contiguous that can be written to. It is exported until then.

        Raises:
            BufferError: It is read-only.
            TypeError: It is no buffer.
            ValueError: It is not contiguous.
            ConnectionClosed: The connection is.
            MRCError: The endpoint has no room for it: see `Config.max_regions`.
        """
        self._link.check_open()
        return MemoryRegion(self._link, buffer)

    def remote(self, descriptor: Any) -> RemoteRegion:
        """The peer's memory that a `MemoryRegion.descriptor` of it describes.

        Raises:
            ProtocolError: It is no descriptor.
            TypeError: It is not even bytes-like.
        """
        return RemoteRegion.from_descriptor(descriptor)

    async def write(self, src: Any, remote: RemoteRegion, *, imm: int | None = None) -> None:
        """Writes to the peer's memory; returns when the peer's transport has placed all of it.

        Cancelling withdraws the write if none of it has left; else all of it is written, and its
        immediate follows.

        Args:
            src: Anything contiguous with the buffer protocol; leave it as it is until then (after
                a cancellation: until a later write has returned).
            remote: Where to, from its beginning on; at least as large.
            imm: Given, an empty message with it follows for the peer's `recv`, behind the data.

        Raises:
            RemoteAccessError: The peer does not lend this memory (any more), or that of another
                write under way. Nothing is written from then on, and the connection breaks: on
                both sides ConnectionLost, "remote access refused".
            ConnectionClosedOK: Either side has closed; nothing was written.
            ConnectionLost: The connection broke; what was written is not known.
            TypeError: `src` is no buffer, `remote` no remote region, or `imm` no integer.
            ValueError: `src` is larger than `remote`, or `imm` is out of range.
        """
        if not isinstance(remote, RemoteRegion):
            raise TypeError(f"remote is what `Connection.remote` returns, not {remote!r}")
        view = flat(src)
        if len(view) > len(remote):
            raise ValueError(f"{len(view)} bytes do not fit a remote region of {len(remote)}")
        await self._finish(self._link.put(view, remote.key, remote.va, check_immediate(imm)))

    # What is going on.

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more: either side has closed it, or it broke.

        What had arrived before can still be received.
        """
        link = self._link
        return link.error is not None or link.closing or link.messages.peer_has_closed

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
        return self._endpoint

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

        Raises:
            ConcurrencyError: Another one is waiting for the next event.
        """
        while (event := await self._next_event()) is not None:
            yield event

    async def _next_event(self) -> Event | None:
        self._link.check_process()
        if self._watching:
            raise ConcurrencyError("another one is waiting for this connection's next event")
        self._watching = True
        try:
            return await self._link.next_event()
        finally:
            self._watching = False

    def disable_plane(self, name: str) -> None:
        """Takes a plane of the endpoint out of use for data, on all its connections.

        Raises:
            ConfigError: There is no such plane.
        """
        self._endpoint.disable_plane(name)

    def enable_plane(self, name: str) -> None:
        """Gives it back.

        Raises:
            ConfigError: There is no such plane.
        """
        self._endpoint.enable_plane(name)

    def deny(self, what: int | str) -> None:
        """As `Endpoint.deny`, on this connection alone.

        Raises:
            ConfigError: There is no such thing.
            ConnectionClosed: The connection is over.
        """
        self._link.check_alive()
        self._link.evs.deny(what, denied=True)

    def allow(self, what: int | str) -> None:
        """Takes a `deny` of the same, on this connection, back.

        Raises:
            ConfigError: There is no such thing.
            ConnectionClosed: The connection is over.
        """
        self._link.check_alive()
        self._link.evs.deny(what, denied=False)

    def evs(self) -> tuple[EVInfo, ...]:
        """Every path that data may take, or may not, as it is now.

        Raises:
            ConnectionClosed: The connection is over.
        """
        self._link.check_alive()
        return self._link.evs.list()

    def faults(self) -> tuple[Fault, ...]:
        """Which links or switches explain the paths that are assumed bad now, most paths first.

        Those that carry data are taken for whole, so that one that has just failed is not named
        before its losses are known. Without a topology there are none.

        Raises:
            ConnectionClosed: The connection is over.
        """
        self._link.check_alive()
        return self._link.evs.faults()

    # The end.

    async def close(self, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - as promised
        """Closes in good order: what was sent is delivered first. Once is enough.

        Cancelled, it aborts.

        Args:
            timeout: Seconds, more than 0, until what is left is given up.

        Raises:
            ConnectionLost: The time was up, or the connection broke, before the peer had
                acknowledged all messages.
            ConfigError: `timeout` is no such number.
        """
        check_timeout(timeout)
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
            if link.close_sent:
                link.end(ConnectionClosedOK("the connection is closed"), Kind.CLOSE)
            else:
                what = f"unsent messages after {timeout} s of closing"
                link.end(ConnectionLost("aborted", what))
        except BaseException:
            self.abort()
            raise
        if isinstance(link.error, ConnectionLost) and not link.close_sent:
            raise link.end_told()

    def abort(self) -> None:
        """Ends it at once: nothing is flushed, and the peer sees `ConnectionLost`.

        Calls that wait raise the same here. Once is enough, and after `close` nothing happens.
        """
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
        self._made = unclosed.here()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        names = ", ".join(f"{host} port {port}" for host, port in self._targets)
        return f"<mrc.Connecting to {names}: await it, or enter it by `async with`>"

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._connect().__await__()

    async def _connect(self) -> Connection:
        hub = self._endpoint._hub
        try:
            await hub.start()
            link = await establish.connect(hub, self._targets, timeout=self._timeout)
        except BaseException:
            if self._owns:
                hub.close()
            raise
        if self._owns:
            hub.close_when_unused()
        return Connection(link, self._endpoint, self._made)

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

        async with mrc.connect("b.example") as connection:
            await connection.send(b"hello")

    Cancelling leaves nothing behind.

    Args:
        target: `host`, `host:port`, `[v6]:port` or `mrc://host:port`, or several that are one peer.
        planes: Interfaces to carry data, each as `[ID=]INTERFACE[/ADDRESS]`; None: all that can.
            ID is what both hosts call the plane, where subnets do not tell.
        config: Settings of the endpoint; None: the defaults.
        timeout: Seconds, more than 0, until it must carry data. Finding and opening the planes
            comes before.
        endpoint: To share; then neither `planes` nor `config` may be given.

    Raises:
        ConfigError: At once: `target` or `timeout` is not what it should be.
        TypeError, ValueError: At once: an argument is of another type, or contradicts another.
        CapabilityError: When awaited, as what follows: this process may not open raw sockets.
        ConfigError: An interface of `planes` does not exist, or nothing can be a plane.
        ConnectRefused: Nobody listens there.
        ConnectTimeout: Nobody answered in time, or no plane carries data.
        HandshakeError: There is no such host, or no way to it; it answered, but cannot be talked
            to, or has no plane in common with this one.
        ConcurrencyError: `endpoint` belongs to another event loop.
        OSError: The system refused something else.
    """
    made = endpoint_for(planes, config, endpoint)
    check_timeout(timeout)
    targets = parse_targets(target)
    return Connecting(targets, made, timeout=timeout, owns=endpoint is None)


def check_timeout(timeout: float) -> None:
    """Refuses what is no time to wait.

    Raises:
        ConfigError: It is not a number, not more than 0, or endless.
    """
    fits = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not fits or not 0 < timeout < math.inf:
        raise ConfigError(f"timeout = {timeout!r} is not a number of seconds, more than 0")
