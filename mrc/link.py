# SPDX-License-Identifier: Apache-2.0
"""What a connection is inside: its queue pair, messages, control connection, and how it ends.

A `Link` belongs to its endpoint, which hands it the engine's events; the `Connection` that the
application holds is only a handle, so that forgetting one can be noticed. Nothing here waits but
the two small tasks that watch the control connection and confirm a crash.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mrc import _native, handshake
from mrc._native import Attributes, EngineEvent, PeerPlane, Pin, TableFull
from mrc.buffers import Blocks
from mrc.control import Control, dial, expect
from mrc.errors import (
    AfterForkError,
    ConnectionClosed,
    ConnectionClosedOK,
    ConnectionLost,
    MRCError,
    ProtocolError,
    RemoteAccessError,
)
from mrc.events import Event, PathBad, PathGood, PlaneLost, PlaneRecovered
from mrc.evs import EntropyValues
from mrc.handshake import Kind, Lent
from mrc.messages import Limits, Messages, Sending, lent_size

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["Link", "PairedPlane"]

_log = logging.getLogger("mrc")

_EVENTS_KEPT: Final = 1024
_PLANE_UP: Final = 2
_EV_GOOD: Final = 0
_EV_ASSUMED_BAD: Final = 2

_REASONS: Final = {
    _native.REMOTE_ACCESS: "remote access refused",
    _native.RETRY_EXCEEDED: "retries exceeded",
    _native.PEER_SILENT: "peer silent",
    _native.PEER_RESTARTED: "peer restarted",
    _native.PEER_CLOSED: "aborted",
}

_TOLD: Final = {"peer silent", "protocol error", "remote access refused", "retries exceeded"}
"""Ends that the peer hears of as such; of any other it hears that we have aborted."""

_NEIGHBOUR_PATIENCE: Final = 1.0
"""Seconds after which a plane whose neighbour has not been found is told as lost."""


@dataclass(frozen=True, kw_only=True)
class PairedPlane:
    """A plane of ours and the peer's end of it.

    Attributes:
        name: Of our interface.
        local: How the engine knows it.
        local_address: Ours.
        remote_name: Of the peer's interface.
    """

    name: str
    local: PeerPlane
    local_address: str
    remote_name: str

    def __repr__(self) -> str:
        ours, theirs = (
            f"{self.name} {self.local_address}",
            f"{self.remote_name} {self.peer_address}",
        )
        return f"<mrc.PairedPlane {ours} to {theirs}>"

    @property
    def peer_address(self) -> str:
        """The peer's address."""
        return str(self.local.address)


class Link:
    """One connection's inside.

    Attributes:
        error: Why it is over; None while it is not.
        evs: Its paths to the peer, once it has begun.
        notices: What a person should know of the set-up, as planes left out.
        close_sent: All of ours was acknowledged, and the peer is told that no more comes.
    """

    def __init__(self, endpoint: Hub, *, mtu: int) -> None:
        config = endpoint.config
        self.endpoint = endpoint
        self.engine = endpoint.engine
        self.domain = endpoint.next_domain()
        self.loop = asyncio.get_running_loop()
        self.attributes: Attributes = self.engine.create_qp(
            self.domain, mtu=mtu, mpr=config.mpr, max_wimm=config.max_wimm, trim_nack=True
        )
        self.qp = self.attributes.number
        self._limits = Limits(
            slots=config.slots,
            slot_size=config.slot_size,
            grants=config.grants,
            max_queue=config.max_queue,
            post_window=config.post_window,
        )
        self._memory = memoryview(bytearray(lent_size(self._limits)))
        self._blocks = Blocks()
        self._keys: set[int] = set()
        try:
            va, key = self.register(self._memory)
        except BaseException:
            self.engine.close_qp(self.qp)
            raise
        self.lent = Lent(
            va=va, key=key, slots=config.slots, slot_size=config.slot_size, grants=config.grants
        )
        self.messages: Messages
        self._begun = False
        self.control: Control | None = None
        self.targets: list[tuple[str, int]] = []
        self.peer = -1
        self.peer_incarnation = 0
        self.planes: tuple[PairedPlane, ...] = ()
        self.notices: tuple[str, ...] = ()
        self.evs: EntropyValues
        self.error: ConnectionClosed | None = None
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.closing = False
        self.receiver: asyncio.Future[None] | None = None
        self.room: deque[asyncio.Future[None]] = deque()
        self.inflight = 0
        self._pending: set[Sending] = set()
        self._pins: dict[int, Pin] = {}
        self._backlog: deque[tuple[Any, ...]] = deque()
        self.close_sent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspicion = ""
        self._plane_up: asyncio.Future[None] | None = None
        self._carried: set[str] = set()
        self._lost: set[str] = set()
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._event_waiter: asyncio.Future[None] | None = None

    def begin(
        self, control: Control, setup: handshake.Setup, planes: Sequence[PairedPlane]
    ) -> None:
        """Connects the queue pair to the peer that this set-up describes."""
        self.control = control
        self.planes = tuple(planes)
        self.peer_incarnation = setup.incarnation
        self.peer = self.endpoint.add_peer(
            setup.incarnation, [plane.local for plane in planes], control.site
        )
        self.engine.connect_qp(self.qp, self.peer, setup.attributes)
        self.evs = EntropyValues(self.endpoint, self.qp, [plane.local.address for plane in planes])
        self.messages = Messages(self, self._limits, self._memory, setup.lent)
        # Waits for the engine: the peer may use the receives as soon as it hears of them.
        self.engine.qp_stats(self.qp)
        self._begun = True

    def enforce(self) -> None:
        """What is denied to all links has changed."""
        if self._begun and self.error is None:
            self.evs.enforce()

    def watch(self) -> None:
        """Heeds the control connection from now on, and planes that never come up."""
        self._spawn(self._watch_control())
        self._spawn(self._miss_neighbours())

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The port of the message layer.

    def write(self, key: int, va: int, data: Any, tag: int, immediate: int | None) -> None:
        """Posts a write, or keeps it while the ring is full."""
        pin = self._pins[tag] = Pin(data)
        if self._backlog or not self.engine.submit_write(
            self.qp, key, va, pin, tag, immediate=immediate
        ):
            self._backlog.append((key, va, pin, tag, immediate))
            self.endpoint.backlogged.add(self)

    def lend_receives(self, count: int) -> None:
        """Posts receives, or keeps them while the ring is full."""
        if self._backlog or not self.engine.submit_receives(self.qp, count):
            self._backlog.append((count,))
            self.endpoint.backlogged.add(self)

    def flush_backlog(self) -> bool:
        """Posts what the ring had no room for; True when nothing is left."""
        while self._backlog:
            first = self._backlog[0]
            if len(first) == 1:
                posted = self.engine.submit_receives(self.qp, first[0])
            else:
                key, va, pin, tag, immediate = first
                posted = self.engine.submit_write(self.qp, key, va, pin, tag, immediate=immediate)
            if not posted:
                return False
            self._backlog.popleft()
        return True

    def register(self, buffer: Any) -> tuple[int, int]:
        """Lends a buffer to the peer, for as long as the link lasts or until `deregister`."""
        va, key = self.engine.register(buffer, self.domain)
        self._keys.add(key)
        return va, key

    def deregister(self, key: int) -> None:
        """Revokes it."""
        self._keys.discard(key)
        self.engine.deregister(key)
        self.endpoint.region_is_free()

    def lend(self, buffer: memoryview) -> tuple[int, int] | None:
        """As `register`, for a message, which waits (None) while the table of regions is full."""
        try:
            return self.register(buffer)
        except TableFull:
            self.endpoint.starved.add(self)
            return None

    def grant(self) -> None:
        """A region may be had now for a message that waits for one."""
        if self.error is None:
            self.messages.grant()

    def allocate(self, size: int) -> memoryview:
        """A buffer for a message."""
        return self._blocks.allocate(size)

    def sent(self, sending: Sending, status: int) -> None:
        """A message or write of ours ended."""
        is_refused = status == _native.REMOTE_ACCESS and sending.is_one_sided
        if status and status != _native.PEER_CLOSED and not is_refused:
            return  # the queue pair is done for; its event says why
        self._pending.discard(sending)
        waiter = sending.waiter
        if waiter is None or waiter.done():
            return
        if not status:
            waiter.set_result(None)
        elif is_refused:
            _fail(waiter, RemoteAccessError("the peer does not lend this memory, or no longer"))
        else:
            _fail(waiter, ConnectionClosedOK("the peer closed the connection"))

    def arrived(self) -> None:
        """The next message may be there."""
        receiver = self.receiver
        if receiver is not None and not receiver.done():
            receiver.set_result(None)

    def peer_closed(self) -> None:
        """The peer is done: no more messages either way."""
        self.arrived()
        self.wake_room()
        self._advance()

    # What the connection asks for.

    def send(self, data: Any, immediate: int | None) -> Sending:
        """Begins to send a message; the result's waiter is a future."""
        self.check_open()
        sending = self.messages.send(data, immediate, self.loop.create_future())
        self._pending.add(sending)
        return sending

    def put(self, data: Any, key: int, va: int, immediate: int | None) -> Sending:
        """Begins a one-sided write; the result's waiter is a future."""
        self.check_open()
        sending = self.messages.write(data, key, va, immediate, self.loop.create_future())
        self._pending.add(sending)
        return sending

    def withdraw(self, sending: Sending) -> bool:
        """Takes back what has not begun. False: it will be delivered whole."""
        if self.error is not None or not self.messages.withdraw(sending):
            return False
        self._pending.discard(sending)
        if self.closing or self.messages.peer_has_closed:
            self._advance()
        return True

    def check_process(self) -> None:
        """Raises in a child of fork()."""
        if self.engine.forked:
            raise AfterForkError("not usable after fork: open a new endpoint in the child")

    def check_alive(self) -> None:
        """Raises if there is no queue pair any more."""
        self.check_process()
        if self.error is not None:
            raise self.end_told()

    def end_told(self) -> ConnectionClosed:
        """`error` for one who asks: raised itself, it would keep the frames of who caught it."""
        assert self.error is not None
        return copy.copy(self.error)

    def check_open(self) -> None:
        """Raises what a new send must raise, if anything."""
        self.check_alive()
        if self.closing or self.messages.peer_has_closed:
            raise ConnectionClosedOK("the connection is closed")

    def wake_room(self) -> None:
        """Whoever waits to post may look again."""
        for waiter in self.room:
            if not waiter.done():
                waiter.set_result(None)

    # What the endpoint hands on.

    def on_write(self, tag: int, status: int) -> None:
        """A write of ours ended."""
        pin = self._pins.pop(tag, None)
        if pin is None:
            return
        pin.release()
        self.messages.on_write(tag, status)
        if self.closing or self.messages.peer_has_closed:
            self._advance()

    def on_receive(self, immediate: int) -> None:
        """A write with immediate of the peer has arrived."""
        try:
            self.messages.on_receive(immediate)
        except (MRCError, MemoryError) as error:
            # Nothing more may leave: the events of other connections are behind this one.
            _log.error("connection to %s: %s", self.peer_name, error)
            self.end(ConnectionLost("protocol error", str(error)))

    def on_event(self, event: EngineEvent) -> None:
        """Anything else of this queue pair or its peer."""
        if not self._begun:
            return
        if event.type == _native.EVENT_QP:
            self._on_broken(event.status)
        elif event.type == _native.EVENT_PLANE:
            self._on_plane(event)
        elif event.type == _native.EVENT_EV and event.state in {_EV_GOOD, _EV_ASSUMED_BAD}:
            kind = PathGood if event.state == _EV_GOOD else PathBad
            name = self.endpoint.plane_name(event.plane)
            hops = self.evs.hops(event.ev)
            self._tell(kind(time=event.time / 1e9, plane=name, ev=event.ev, hops=hops))

    def _on_broken(self, status: int) -> None:
        if self.messages.peer_has_closed or self.close_sent:
            self.end(ConnectionClosedOK("the connection is closed"))
            return
        reason = _REASONS.get(status, "protocol error")
        if reason == "peer silent" and self.control is not None and self.control.ended:
            reason = "peer crashed"
        planes = ", ".join(map(self._state_of, self.planes))
        detail = f"{self.peer_name}, queue pair {self.qp:#08x}, planes {planes}"
        if status not in _REASONS:
            detail = f"{detail}: status {status}"
        self.end(ConnectionLost(reason, detail))

    def _state_of(self, plane: PairedPlane) -> str:
        """A plane, for a message: "p0 up", "p1 silent"."""
        stats = self.engine.plane_stats(self.peer, plane.local.number)
        state = _native.PLANE_REASONS[stats["reason"]] or _native.PLANE_STATES[stats["state"]]
        return f"{plane.name} {state}"

    def _on_plane(self, event: EngineEvent) -> None:
        name = self.endpoint.plane_name(event.plane)
        state = _native.PLANE_STATES[event.state]
        reason = _native.PLANE_REASONS[event.reason]
        if state == "up":
            self._carried.add(name)
            self._lost.discard(name)
            if self._plane_up is not None and not self._plane_up.done():
                self._plane_up.set_result(None)
            self._tell(PlaneRecovered(time=event.time / 1e9, plane=name))
        elif state == "out" and (name in self._carried or reason != "address"):
            self._lose(name, reason, event.time)

    def _lose(self, name: str, reason: str, time_ns: int) -> None:
        """Tells of a plane's outage: once, for the first reason that was seen."""
        if name in self._lost:
            return
        self._lost.add(name)
        if name not in self._carried and reason in {"silent", "mtu", "address"}:
            _log.warning("%s: plane %s carries nothing: %s", self.peer_name, name, reason)
        self._tell(PlaneLost(time=time_ns / 1e9, plane=name, reason=reason))

    async def _miss_neighbours(self) -> None:
        """Tells of planes that still have none; at first no plane knows its neighbour."""
        await asyncio.sleep(_NEIGHBOUR_PATIENCE)
        for plane in self.planes:
            stats = self.engine.plane_stats(self.peer, plane.local.number)
            reason = _native.PLANE_REASONS[stats["reason"]]
            if plane.name not in self._carried and reason == "address":
                self._lose(plane.name, reason, time.monotonic_ns())

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        if self._event_waiter is not None and not self._event_waiter.done():
            self._event_waiter.set_result(None)

    async def next_event(self) -> Event | None:
        """The next event for the application; None: the connection is over."""
        while not self._events:
            if self.error is not None:
                return None
            self._event_waiter = self.loop.create_future()
            try:
                await self._event_waiter
            finally:
                self._event_waiter = None
        return self._events.popleft()

    async def plane_up(self) -> None:
        """Waits until a plane carries data."""
        while self.error is None:
            self._plane_up = self.loop.create_future()
            for plane in self.planes:
                stats = self.engine.plane_stats(self.peer, plane.local.number)
                if stats["state"] == _PLANE_UP:
                    return
            await self._plane_up
        raise self.end_told()

    # The end.

    @property
    def peer_name(self) -> str:
        """The peer's address on the control connection, for messages."""
        return self.control.peer if self.control is not None else "nobody"

    def begin_close(self) -> None:
        """No more sends; what is under way is finished, then the peer is told."""
        self.closing = True
        self.arrived()
        self.wake_room()
        self._advance()

    def _advance(self) -> None:
        """The steps of a clean close, each once what came before is acknowledged."""
        if self.error is not None or not self.messages.idle:
            return
        if not self.close_sent:
            self.close_sent = True
            self.messages.close()
        elif self.messages.peer_has_closed:
            self.end(ConnectionClosedOK("the connection is closed"), Kind.CLOSE)

    def end(self, error: ConnectionClosed, word: Kind = Kind.ABORT) -> None:
        """Lets go of everything at once. All that waits gets `error`; once is enough."""
        if self.error is not None:
            return
        self.error = error
        if self.control is not None:
            reason = getattr(error, "reason", "")
            self.control.close(word, reason if reason in _TOLD else "aborted")
        if not self.engine.closed:
            self.engine.close_qp(self.qp)
        if self._begun:
            self.messages.fail()
        self._blocks.close()
        for key in self._keys:
            self.engine.deregister(key)
        self._keys.clear()
        for pin in self._pins.values():
            pin.release()
        self._pins.clear()
        self._backlog.clear()
        for task in self._tasks:
            task.cancel()
        self._release_waiters()
        self.endpoint.forget(self)

    def _release_waiters(self) -> None:
        for sending in self._pending:
            if sending.waiter is not None and not sending.waiter.done():
                _fail(sending.waiter, self.end_told())
            sending.data = None
        self._pending.clear()
        self.arrived()
        self.wake_room()
        for waiter in (self._plane_up, self._event_waiter, self.ended):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # Watching the peer.

    async def _watch_control(self) -> None:
        control = self.control
        assert control is not None
        try:
            while True:
                kind, body = await control.read()
                if kind == Kind.CLOSE:
                    # What the peer sent before is in the completion ring by now.
                    self.endpoint.poll()
                    self.end(ConnectionClosedOK("the peer closed the connection"), Kind.CLOSE)
                elif kind == Kind.ABORT:
                    await self._on_abort(handshake.decode_abort(body))
                else:
                    raise ProtocolError(f"{kind.name} came after the set-up")
        except EOFError:
            self.suspect("peer crashed")
        except ProtocolError as error:
            _log.error("control connection of %s: %s", control.peer, error)
            self.end(ConnectionLost("protocol error", str(error)))
        finally:
            control.close()

    async def _on_abort(self, reason: str) -> None:
        if reason == "remote access refused":
            # Its queue pair tells ours which write that was, on the planes.
            await asyncio.wait([self.ended], timeout=self.endpoint.config.crash_after)
        self.end(ConnectionLost(reason, f"told by {self.peer_name}"))

    def suspect(self, reason: str) -> None:
        """A hint that the peer is gone: unless it shows a sign of life, `reason` is the end."""
        if self.error is None and not self._suspicion:
            self._spawn(self._confirm())
        self._suspicion = reason

    def _signs(self) -> int:
        stats = self.engine.qp_stats(self.qp)
        names = ("writes_completed", "bytes_received", "messages_received", "sacks_received")
        return sum(stats[name] for name in names)

    async def _confirm(self) -> None:
        while await self._shows_life():
            if self.control is None or not self.control.ended:
                self._suspicion = ""
                return
            # A process that ends lets go of its sockets before its engine: it is asked again.
            self._suspicion = "peer crashed"
            await asyncio.sleep(self.endpoint.config.crash_after)
        if self._suspicion == "peer crashed" and await self._is_another():
            self._suspicion = "peer restarted"
        self.end(ConnectionLost(self._suspicion, self.peer_name))

    async def _shows_life(self) -> bool:
        before = self._signs()
        self.engine.check_peer(self.peer)
        self.messages.ping()
        deadline = time.monotonic() + self.endpoint.config.crash_after
        while time.monotonic() < deadline:
            await asyncio.sleep(self.endpoint.config.crash_after / 20)
            if self._signs() != before:
                return True
        return False

    async def _is_another(self) -> bool:
        """Whether somebody else answers now where the peer listened."""
        if not self.targets:
            return False
        try:
            async with asyncio.timeout(1.0):
                interfaces = [plane.interface for plane in self.endpoint.local_planes]
                control = await dial(self.targets, interfaces)
                try:
                    control.write(handshake.encode(Kind.IDENTIFY))
                    _, body = await expect(control, Kind.IDENTITY)
                    return handshake.decode_identity(body) != self.peer_incarnation
                finally:
                    control.close()
        except (OSError, EOFError, MRCError):
            return False


def _fail(waiter: asyncio.Future[None], error: Exception) -> None:
    waiter.set_exception(error)
    waiter.exception()  # nobody need look at it
