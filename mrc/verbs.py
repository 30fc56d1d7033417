# SPDX-License-Identifier: Apache-2.0
"""The synchronous layer: queue pairs, memory regions, posted writes, polled completions.

Thin: what verbs programs know, without threads and without asyncio. The engine works in the caller,
inside `Context.poll`; while nobody polls, nothing is sent, received or acknowledged.

    with verbs.Context(["eth1", "eth2"]) as context:
        qp = context.create_qp()
        qp.connect(verbs.exchange(sock, qp.attributes))
        memory = context.register(bytearray(1 << 20))
        remote = verbs.RemoteRegion.from_descriptor(verbs.exchange(sock, memory.descriptor))
        qp.post_receive(16)
        qp.post_write(b"hello", remote[:5], imm=1)
        for event in context.poll(1.0):
            print(event.kind, event.tag, event.status, event.imm)
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from mrc import _native, handshake, unclosed
from mrc._native import Engine, EngineEvent, PeerPlane, Pin
from mrc.config import Config
from mrc.errors import ConfigError, HandshakeError, MRCError, ProtocolError
from mrc.handshake import Kind, Lent, Setup
from mrc.memory import RemoteRegion, check_immediate, describe, flat, writable
from mrc.planes import LocalPlane, RemotePlane, discover, next_hop, pair
from mrc.steering import Steering, overhead

__all__ = ["MAX_WRITE", "MR", "QP", "Context", "Event", "RemoteRegion", "exchange"]

MAX_WRITE: Final = 1 << 30
"""Bytes of one write."""


def __dir__() -> list[str]:
    return __all__


_KINDS: Final = {
    _native.EVENT_QP: "qp",
    _native.EVENT_PLANE: "plane",
    _native.EVENT_EV: "ev",
    _native.EVENT_PROBE: "probe",
}


class Event(NamedTuple):
    """What `Context.poll` returns.

    Attributes:
        kind: `write` (a write of ours ended), `receive` (a write with immediate of the peer
            has arrived, and all before it), `qp` (a queue pair broke), `plane`, `ev`.
        qp: The queue pair; None for a plane, or one that was closed meanwhile.
        tag: Of the write.
        status: 0, or the core's negative status (`enum mrc_status`).
        imm: The immediate.
        plane: Number of the plane.
        state: Of the plane or EV.
    """

    kind: str
    qp: QP | None
    tag: int = 0
    status: int = 0
    imm: int = 0
    plane: int = 0
    state: str = ""


class MR:
    """A registered memory region; a context manager.

    Attributes:
        descriptor: What a peer needs, for `RemoteRegion.from_descriptor`.
    """

    def __init__(self, engine: Engine, buffer: Any, domain: int) -> None:
        view = writable(buffer, "a memory region")
        va, self._key = engine.register(view, domain)
        self._engine = engine
        self._size = len(view)
        self._closed = False
        self.descriptor: bytes = describe(key=self._key, va=va, size=self._size)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        over = self._closed or self._engine.closed
        return f"<mrc.verbs.MR of {self._size} bytes, {'revoked' if over else 'lent'}>"

    def __enter__(self) -> MR:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Revokes it: nothing is written there any more. Once is enough."""
        if not self._closed:
            self._closed = True
            self._engine.deregister(self._key)


class QP:
    """A queue pair.

    Attributes:
        attributes: Everything that the peer needs for its `connect`, as bytes.
        number: Its QPN, 24 bits.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context._engine
        config = context.config
        self._planes = context._describe()
        if not self._planes:
            raise HandshakeError("no plane has an IP address now")
        fitting = handshake.fit_mtu([plane.mtu - overhead(config) for plane in self._planes])
        local = self._engine.create_qp(
            context._domain,
            mtu=min(fitting, config.mtu or fitting),
            mpr=config.mpr,
            max_wimm=config.max_wimm,
            trim_nack=True,
        )
        self.number = local.number
        self._tags = itertools.count(1)
        self._posted: dict[int, tuple[Pin, int]] = {}
        setup = Setup(
            versions=handshake.VERSIONS,
            incarnation=self._engine.incarnation,
            planes=self._planes,
            pairs=(),
            routing=config.routing,
            attributes=local,
            lent=Lent(va=0, key=0, slots=2, slot_size=256, grants=1),  # no messages here
        )
        self.attributes = handshake.encode_setup(Kind.HELLO, setup)

    def __repr__(self) -> str:
        return f"<mrc.verbs.QP {self.number:#x}, {len(self._posted)} writes posted>"

    def connect(self, attributes: bytes) -> None:
        """Makes it ready to send and receive.

        Both sides pair their planes by the same rules: by id, by subnet, by order.

        Args:
            attributes: Of the peer's queue pair.

        Raises:
            ProtocolError: They are none.
            HandshakeError: No plane or protocol version in common.
        """
        kind, size = handshake.decode_header(attributes)
        body = attributes[handshake.HEADER_SIZE :]
        if kind != Kind.HELLO or size != len(body):
            raise ProtocolError("not the attributes of a queue pair")
        setup = handshake.decode_setup(body)
        if not setup.versions & handshake.VERSIONS:
            raise HandshakeError("no protocol version in common")
        planes = [
            PeerPlane(
                number=ours.number, remote=theirs.number, address=theirs.address, next_hop=hop
            )
            for ours, theirs in self._pairs(setup)
            if (hop := next_hop(self._context._planes[ours.number].interface, theirs.address))
        ]
        if not planes:
            raise HandshakeError("no plane in common")
        steering, path = self._context._steering, None
        if steering is not None:
            path = steering.template([plane.address for plane in planes])
        srh = self._context.config.srh
        peer = self._engine.add_peer(setup.incarnation, planes, path, srh=srh)
        self._engine.connect_qp(self.number, peer, setup.attributes)

    def _pairs(self, setup: Setup) -> list[tuple[RemotePlane, RemotePlane]]:
        # Matching is greedy, so both must do it from the same side: the smaller incarnation's.
        if self._engine.incarnation <= setup.incarnation:
            return pair(self._planes, setup.planes)
        return [(ours, theirs) for theirs, ours in pair(setup.planes, self._planes)]

    def post_write(
        self, src: Any, remote: RemoteRegion, imm: int | None = None, tag: int = 0
    ) -> None:
        """Posts a write, which ends in one `write` event.

        Args:
            src: Anything contiguous; exported, and to be left as it is, until then. At most 1 GiB.
            remote: Where to; at least as large.
            imm: 32 bits for a receive of the peer.
            tag: Comes back with the event.

        Raises:
            TypeError: `src` is no buffer, or `imm` no integer.
            ValueError: `src` does not fit, or `imm` is out of range.
            MRCError: The ring is full: poll first.
        """
        view = flat(src)
        if len(view) > min(len(remote), MAX_WRITE):
            raise ValueError(f"{len(view)} bytes do not fit {len(remote)}, or are more than 1 GiB")
        immediate = check_immediate(imm)
        pin, number = Pin(view), next(self._tags)
        self._posted[number] = (pin, tag)
        if not self._engine.submit_write(
            self.number, remote.key, remote.va, pin, number, immediate=immediate
        ):
            del self._posted[number]
            pin.release()
            raise MRCError("the ring is full: poll first")

    def post_receive(self, count: int = 1) -> None:
        """Lends the peer receives: each of its writes with immediate takes one, or breaks it.

        Raises:
            MRCError: The ring is full: poll first.
        """
        if not self._engine.submit_receives(self.number, count):
            raise MRCError("the ring is full: poll first")

    def _ended(self, number: int) -> int:
        """For `Context`: a write ended; gives its buffer back and returns the caller's tag."""
        pin, tag = self._posted.pop(number)
        pin.release()
        return tag

    def stats(self) -> dict[str, int]:
        """Counters of the core (`mrc_qp_stats`): bytes and ns."""
        return self._engine.qp_stats(self.number)

    def close(self) -> None:
        """Lets it go. Writes that have not ended never will, and their buffers are free."""
        if self._context._qps.pop(self.number, None) is None:
            return
        self._engine.close_qp(self.number)
        for pin, _ in self._posted.values():
            pin.release()
        self._posted.clear()


class Context:
    """An engine driven by its caller, with its planes; a context manager. For one thread."""

    def __init__(self, planes: Sequence[str] | None = None, config: Config | None = None) -> None:
        """Opens it.

        Args:
            planes: Interfaces, each as `[ID=]INTERFACE[/ADDRESS]`; None: all that can be one.
            config: Settings; None: the defaults.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: A named interface does not exist, nothing can be a plane, or the planes
                are not those of a host of the topology.
        """
        self.config = config or Config()
        found = discover(planes, dad_timeout=self.config.dad_timeout)
        if not found.planes:
            raise ConfigError("no interface can be a plane")
        self._planes: tuple[LocalPlane, ...] = found.planes
        self._steering = Steering.of(self.config, found.planes)
        self._domain = 1
        self._qps: dict[int, QP] = {}
        self._engine = Engine(self.config, threaded=False)
        self._process = os.getpid()
        self._made = unclosed.here()
        self._events: deque[Event] = deque()
        try:
            for plane in self._planes:
                self._engine.add_plane(plane.number, plane.interface.name, plane.interface.address)
        except BaseException:
            self._engine.close()
            raise

    def __repr__(self) -> str:
        if self._engine.closed:
            return "<mrc.verbs.Context, closed>"
        planes = ", ".join(plane.interface.name for plane in self._planes)
        return f"<mrc.verbs.Context on {planes}, {len(self._qps)} queue pairs>"

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.closed and os.getpid() == self._process:
            unclosed.warn(self, self._made)
            self.close()

    def close(self) -> None:
        """Closes every queue pair and ends the engine; nothing is flushed. Once is enough."""
        if self._engine.closed:
            return
        for qp in list(self._qps.values()):
            qp.close()
        self._engine.close()

    def _describe(self) -> tuple[RemotePlane, ...]:
        """Our planes as to be told to a peer."""
        return tuple(
            RemotePlane(
                number=plane.number,
                id=plane.id,
                name=plane.interface.name,
                address=plane.interface.address,
                prefix=plane.interface.prefix,
                mtu=plane.interface.mtu,
            )
            for plane in self._planes
            if plane.interface.address is not None
        )

    def register(self, buffer: Any) -> MR:
        """Lends a writable buffer to the peers of all queue pairs of this context.

        Raises:
            BufferError: It is read-only.
        """
        return MR(self._engine, buffer, self._domain)

    def create_qp(self) -> QP:
        """A new queue pair."""
        qp = QP(self)
        self._qps[qp.number] = qp
        return qp

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        """Works, and returns what has happened.

        Args:
            timeout: Seconds to wait for the first event; 0: works once; None: for ever.

        Returns:
            Events in the order in which they happened; empty when the time was up.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if not self._take():
                self._engine.run(-1 if left == math.inf else max(0, int(left * 1e9)))
                self._take()
            if self._events or left <= 0:
                events = list(self._events)
                self._events.clear()
                return events

    def _take(self) -> int:
        return self._engine.poll(self._on_write, self._on_receive, self._on_event)

    def _on_write(self, number: int, tag: int, status: int) -> None:
        qp = self._qps.get(number)
        if qp is not None:
            self._events.append(Event("write", qp, tag=qp._ended(tag), status=status))

    def _on_receive(self, number: int, immediate: int) -> None:
        qp = self._qps.get(number)
        if qp is not None:
            self._events.append(Event("receive", qp, imm=immediate))

    def _on_event(self, event: EngineEvent) -> None:
        states = _native.PLANE_STATES if event.type == _native.EVENT_PLANE else _native.EV_STATES
        self._events.append(
            Event(
                _KINDS[event.type],
                self._qps.get(event.qp),
                status=event.status,
                plane=event.plane,
                state=states[event.state] if event.type != _native.EVENT_QP else "",
            )
        )


@contextlib.contextmanager
def _blocking(sock: socket.socket) -> Iterator[None]:
    before = sock.gettimeout()
    if before == 0:
        sock.settimeout(None)
    try:
        yield
    finally:
        sock.settimeout(before)


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Sends up to 64 KiB to the peer by a connected TCP socket; returns what the peer's call sends.

    Raises:
        ProtocolError: More than 64 KiB, here or there.
        EOFError: The peer ended the connection.
        OSError: The socket failed, or its time was up.
    """
    if len(data) > handshake.MAX_BODY + handshake.HEADER_SIZE:
        raise ProtocolError(f"exchange: {len(data)} bytes are more than 64 KiB")
    with _blocking(sock):
        sock.sendall(len(data).to_bytes(4, "big") + data)
        size = int.from_bytes(_read(sock, 4), "big")
        if size > handshake.MAX_BODY + handshake.HEADER_SIZE:
            raise ProtocolError(f"exchange: {size} bytes are more than 64 KiB")
        return _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError("the peer ended the connection")
        data += piece
    return bytes(data)
