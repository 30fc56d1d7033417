# SPDX-License-Identifier: Apache-2.0
"""Whole messages of any size over RDMA writes; flow control. Without a socket, loop or clock.

A `Messages` is one side of a connection. It is driven by calls (`send`, `take`, `on_write`,
`on_receive`) and does what it does through a `Port`. [choice] throughout: the specification ends
at writes.

* Each side lends the other `slots` and, behind them, a table of grants. A small message is one
  write with immediate into the next slot. A large one is announced in a slot; the receiver
  registers a buffer and grants it, the sender writes straight into it, and its last write's
  immediate says that it is done. Messages are delivered in the order of their slots.
* A slot is free again when its message is copied out of it, or granted. The receiver tells how
  many it has freed in all: in the header of whatever it sends, or else by a CREDIT for each half
  of the slots. A full queue keeps slots and grants back, which is what slows the sender.
* Nothing that carries credit needs credit. What a side may send without hearing from the other's
  Python is bounded (slots; one GRANT and one DONE for each grant; a CREDIT for each half of the
  slots; a CLOSE; a PING), and that many receives are posted before anything is sent. Writes with
  immediate beyond max_wimm wait in the core, for acknowledgements that no Python has to give.

An immediate is a type (4 bits) and an index (28 bits).
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final, Protocol

from mrc.errors import MessageTooLarge, ProtocolError
from mrc.handshake import Lent

__all__ = ["Arrived", "Limits", "Messages", "Port", "Sending", "lent_size"]


class _Type(enum.IntEnum):
    """The upper four bits of an immediate; what the index is."""

    SLOT = 1  # the slot's number, counted on for ever
    GRANT = 2  # the entry of the table of grants
    DONE = 3  # the entry whose buffer is full
    CREDIT = 4  # slots freed in all
    CLOSE = 5
    PING = 6


_INDEX: Final = (1 << 28) - 1
_SMALL: Final = 1
_ANNOUNCE: Final = 2
_HAS_IMMEDIATE: Final = 1

_HEADER: Final = struct.Struct(">BBHIQ")  # kind, flags, slots freed, immediate, size
_GRANT: Final = struct.Struct(">IIQQ")  # slot of the announcement, key, address, size

_COST: Final = 512
"""Bytes that a queued message is counted as beside its own: empty ones are not free."""

_DIRECT: Final = 4 << 20
"""From this size on a message waits for the buffer of `recv_into` instead of being copied."""

_RECEIVE_BATCH: Final = 16
_CONTROL_RECEIVES: Final = 8


class Port(Protocol):
    """What the message layer needs of the world."""

    def write(self, key: int, va: int, data: Any, tag: int, immediate: int | None) -> None:
        """Posts a write; `data` must be held until `Messages.on_write` hears of `tag`."""

    def lend_receives(self, count: int) -> None:
        """Posts receives."""

    def lend(self, buffer: memoryview) -> tuple[int, int] | None:
        """Lends a buffer to the peer; returns address and key.

        None: there is no room for it. `Messages.grant` is called when there may be.
        """

    def deregister(self, key: int) -> None:
        """Revokes it; afterwards nobody writes there."""

    def allocate(self, size: int) -> memoryview:
        """A buffer of this many bytes: zeros, or what the same peer sent before."""

    def sent(self, sending: Sending, status: int) -> None:
        """A send or write ended: 0, or a negative status of the core."""

    def arrived(self) -> None:
        """`Messages.take` may have a message now."""

    def peer_closed(self) -> None:
        """The peer will send no more messages."""


class Sending:
    """A message or one-sided write on its way; `data` is held until it has ended."""

    __slots__ = ("data", "grant", "immediate", "key", "offset", "size", "started", "va", "waiter")

    def __init__(self, data: Any, size: int, immediate: int | None, waiter: Any) -> None:
        self.data = data
        self.size = size
        self.immediate = immediate
        self.waiter = waiter
        self.started = False
        self.offset = 0
        self.key = self.va = 0
        self.grant: int | None = None

    @property
    def is_one_sided(self) -> bool:
        """Whether it is a write to memory that the application named."""
        return self.grant is None and bool(self.key or self.va)


class Arrived:
    """A message that was received or announced."""

    __slots__ = (
        *("buffer", "complete", "direct", "granted", "holds_slot", "immediate", "key"),
        *("orphan", "size", "slot"),
    )

    def __init__(self, slot: int, size: int, immediate: int | None) -> None:
        self.slot = slot
        self.size = size
        self.immediate = immediate
        self.buffer: Any = None
        self.key = 0
        self.complete = False  # all of it is in `buffer`
        self.granted = False
        self.direct = False  # `buffer` is the one of `recv_into`
        self.orphan = False  # whoever called `recv_into` has gone
        self.holds_slot = False  # the slot is freed by `take`


@dataclass(frozen=True, kw_only=True)
class Limits:
    """This side's settings (config.py has what they mean)."""

    slots: int
    slot_size: int
    grants: int
    max_queue: int
    post_window: int


def lent_size(limits: Limits) -> int:
    """Bytes of the memory that a side lends to the other."""
    return limits.slots * limits.slot_size + limits.grants * _GRANT.size


class Messages:
    """One side's messages. Every method returns at once."""

    def __init__(self, port: Port, limits: Limits, memory: memoryview, remote: Lent) -> None:
        self._port = port
        self._limits = limits
        self._memory = memory
        self._remote = remote
        self._tag = 0
        self._posted: dict[int, Callable[[int], None]] = {}
        # Sending.
        self._outbox: deque[Sending] = deque()
        self._announced: dict[int, Sending] = {}
        self._ready: deque[Sending] = deque()
        self._ready_bytes = 0
        self._piece = max(64 << 10, min(4 << 20, limits.post_window // 4))
        self._inline = remote.slot_size - _HEADER.size
        self._slot = 0  # next to use
        self._credit = remote.slots  # that may be used
        self._credited = 0  # freed by the peer in all
        # Receiving.
        self._inbox: deque[Arrived] = deque()
        self._waiting: deque[Arrived] = deque()
        self._granted: dict[int, Arrived] = {}
        self._free_grants = list(range(min(limits.grants, remote.grants)))
        self._next_slot = 0
        self._freed = 0
        self._told_freed = 0
        self._queued = 0
        self._consumed = 0
        self._wanted = False
        self._offer: memoryview | None = None
        self._direct = False
        self._starved = False
        self._failed = False
        self._closed = False
        self.peer_has_closed = False
        self._port.lend_receives(
            2 * limits.slots + 2 * limits.grants + _CONTROL_RECEIVES + _RECEIVE_BATCH
        )

    # Sending.

    def send(self, data: Any, immediate: int | None, waiter: Any) -> Sending:
        """Sends a message; `Port.sent` hears of its end.

        Args:
            data: One-dimensional bytes-like; held, unless it fits a slot, until the end.
            immediate: 32 bits that come with it.
            waiter: Kept in the result for the caller.
        """
        size = len(data)
        sending = Sending(data, size, immediate, waiter)
        if self._credit and not self._outbox:
            self._launch(sending)
        else:
            if size <= self._inline:
                sending.data = bytes(data)
            self._outbox.append(sending)
        return sending

    def write(self, data: Any, key: int, va: int, immediate: int | None, waiter: Any) -> Sending:
        """Writes to the peer's memory; with an immediate, an empty message follows the data."""
        sending = Sending(data, len(data), immediate, waiter)
        sending.key, sending.va = key, va
        self._ready.append(sending)
        self._pump()
        return sending

    def withdraw(self, sending: Sending) -> bool:
        """Takes back what has not begun. False: it has, and will be delivered whole."""
        queue = self._ready if sending.is_one_sided else self._outbox
        if sending.started or sending not in queue:
            return False
        queue.remove(sending)
        sending.data = None
        return True

    @property
    def idle(self) -> bool:
        """Nothing of ours is on its way or waits for it."""
        return not (self._outbox or self._announced or self._ready or self._posted)

    def close(self) -> None:
        """Tells the peer, behind everything sent so far, that no more messages follow."""
        self._closed = True
        self._control(_Type.CLOSE, 0)

    def ping(self) -> None:
        """Makes the core ask for the peer's acknowledgement of something."""
        self._control(_Type.PING, 0)

    def fail(self) -> None:
        """Lets go of all that is on its way (the queue pair is closed).

        What has arrived can still be taken, up to the first message that is not complete.
        """
        for queue in (self._outbox, self._announced, self._ready, self._posted, self._waiting):
            queue.clear()
        for arrived in self._granted.values():
            self._port.deregister(arrived.key)
        self._granted.clear()
        self._inbox = deque(takewhile(lambda arrived: arrived.complete, self._inbox))
        self._failed = True

    def _post(
        self, va: int, data: Any, done: Callable[[int], None], *, key: int, immediate: int | None
    ) -> None:
        tag = self._tag = self._tag + 1
        self._posted[tag] = done
        self._port.write(key, va, data, tag, immediate)

    def _control(self, kind: _Type, index: int) -> None:
        self._post(
            self._remote.va,
            b"",
            _nothing,
            key=self._remote.key,
            immediate=kind << 28 | index & _INDEX,
        )

    def _launch(self, sending: Sending) -> None:
        """Puts a message, or its announcement, into the next slot."""
        slot, self._slot = self._slot, self._slot + 1
        self._credit -= 1
        sending.started = True
        immediate = sending.immediate
        self._told_freed = self._freed
        small = sending.size <= self._inline
        header = _HEADER.pack(
            _SMALL if small else _ANNOUNCE,
            immediate is not None,
            self._freed & 0xFFFF,
            immediate or 0,
            sending.size,
        )
        tag = self._tag = self._tag + 1
        if small:
            header = b"".join((header, sending.data)) if sending.size else header
            sending.data = None
            self._posted[tag] = partial(self._port.sent, sending)
        else:
            self._announced[slot & _INDEX] = sending
            self._posted[tag] = _nothing
        remote = self._remote
        va = remote.va + slot % remote.slots * remote.slot_size
        self._port.write(remote.key, va, header, tag, _Type.SLOT << 28 | slot & _INDEX)

    def _flush(self) -> None:
        while self._credit and self._outbox:
            self._launch(self._outbox.popleft())

    def _pump(self) -> None:
        """Posts pieces of what may be written, up to the window."""
        while self._ready and self._ready_bytes < self._limits.post_window:
            sending = self._ready[0]
            offset, size = sending.offset, min(self._piece, sending.size - sending.offset)
            last = offset + size == sending.size
            sending.started = True
            sending.offset += size
            self._ready_bytes += size
            immediate = None
            if last:
                self._ready.popleft()
                if sending.grant is not None:
                    immediate = _Type.DONE << 28 | sending.grant
            # A one-sided write with an immediate ends when the message behind it has arrived.
            notify = last and sending.grant is None and sending.immediate is not None
            self._post(
                sending.va + offset,
                sending.data[offset : offset + size],
                partial(self._piece_done, sending, size, last and not notify),
                key=sending.key,
                immediate=immediate,
            )
            if notify:
                sending.data, sending.size = b"", 0
                self._outbox.append(sending)
                self._flush()

    def _piece_done(self, sending: Sending, size: int, is_end: bool, status: int) -> None:
        self._ready_bytes -= size
        if is_end or status:
            sending.data = None
            self._port.sent(sending, status)
        self._pump()

    def on_write(self, tag: int, status: int) -> None:
        """A write of ours ended."""
        done = self._posted.pop(tag, None)
        if done is not None:
            done(status)

    # Receiving.

    def on_receive(self, immediate: int) -> None:
        """A write with immediate of the peer has arrived.

        Raises:
            ProtocolError: The peer broke a rule of this layer.
        """
        self._consumed += 1
        if self._consumed == _RECEIVE_BATCH:
            self._port.lend_receives(_RECEIVE_BATCH)
            self._consumed = 0
        kind, index = immediate >> 28, immediate & _INDEX
        if kind == _Type.SLOT:
            self._on_slot(index)
        elif kind == _Type.DONE:
            self._on_done(index)
        elif kind == _Type.GRANT:
            self._on_grant(index)
        elif kind == _Type.CREDIT:
            self._on_credit(index, 28)
        elif kind == _Type.CLOSE:
            self._on_close()
        elif kind != _Type.PING:
            raise ProtocolError(f"messages: an immediate of type {kind}")

    def _on_slot(self, index: int) -> None:
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        if index != slot & _INDEX or slot - self._freed >= self._limits.slots:
            raise ProtocolError(f"messages: slot {index} used out of turn")
        start = slot % self._limits.slots * self._limits.slot_size
        kind, flags, freed, immediate, size = _HEADER.unpack_from(self._memory, start)
        self._on_credit(freed, 16)
        arrived = Arrived(index, size, immediate if flags & _HAS_IMMEDIATE else None)
        if kind == _SMALL and size <= self._limits.slot_size - _HEADER.size:
            start += _HEADER.size
            arrived.buffer = bytes(self._memory[start : start + size])
            arrived.complete = True
            arrived.holds_slot = self._queued + size + _COST > self._limits.max_queue
            self._queued += size + _COST
            if not arrived.holds_slot:
                self._free_slot()
        elif kind == _ANNOUNCE and size <= 1 << 62:
            self._waiting.append(arrived)
        else:
            raise ProtocolError(f"messages: a slot of kind {kind} with {size} bytes")
        self._inbox.append(arrived)
        if not arrived.complete:
            self.grant()
        if self._inbox[0] is arrived:
            # Also when it is only announced: `recv_into` wants to know its size.
            self._port.arrived()

    def _on_credit(self, freed: int, bits: int) -> None:
        new = (freed - self._credited) & ((1 << bits) - 1)
        if not new:
            return
        if new + self._credit > self._remote.slots:
            raise ProtocolError(f"messages: {new} slots freed that were not in use")
        self._credited += new
        self._credit += new
        self._flush()

    def _free_slot(self) -> None:
        self._freed += 1
        if 2 * (self._freed - self._told_freed) >= self._limits.slots:
            self._told_freed = self._freed
            self._control(_Type.CREDIT, self._freed)

    def _on_grant(self, index: int) -> None:
        if index >= self._limits.grants:
            raise ProtocolError(f"messages: grant {index} does not exist")
        start = self._limits.slots * self._limits.slot_size + index * _GRANT.size
        slot, key, va, size = _GRANT.unpack_from(self._memory, start)
        sending = self._announced.pop(slot, None)
        if sending is None or sending.size != size or va + size > 1 << 64:
            raise ProtocolError(f"messages: {size} bytes at {va:#x} granted for slot {slot}")
        sending.key, sending.va, sending.grant = key, va, index
        self._ready.append(sending)
        self._pump()

    def _on_done(self, index: int) -> None:
        arrived = self._granted.pop(index, None)
        if arrived is None:
            raise ProtocolError(f"messages: grant {index} is not in use")
        self._port.deregister(arrived.key)
        self._free_grants.append(index)
        if arrived.orphan:
            self._adopt(arrived)
        arrived.complete = True
        self.grant()
        if self._inbox[0] is arrived:
            self._port.arrived()

    def _on_close(self) -> None:
        self.peer_has_closed = True
        unsent = [*self._outbox, *self._announced.values()]
        self._outbox.clear()
        self._announced.clear()
        for sending in unsent:
            self._port.sent(sending, _PEER_CLOSED)
        self._port.peer_closed()

    def _adopt(self, arrived: Arrived) -> None:
        """Copies a message out of the buffer of a `recv_into` that was cancelled."""
        buffer = self._port.allocate(arrived.size)
        buffer[:] = arrived.buffer
        arrived.buffer = buffer
        arrived.direct = arrived.orphan = False
        self._queued += arrived.size

    # What the application asks for.

    @property
    def head(self) -> Arrived | None:
        """The next message, complete or not."""
        return self._inbox[0] if self._inbox else None

    def take(self) -> Arrived | None:
        """The next message, if it is complete."""
        if not self._inbox or not self._inbox[0].complete:
            return None
        arrived = self._inbox.popleft()
        self._wanted, self._offer = False, None
        self._queued -= _COST if arrived.direct else arrived.size + _COST
        if arrived.holds_slot and not self._failed:
            self._free_slot()
        if self._waiting:
            self.grant()
        return arrived

    def want(self) -> None:
        """Somebody waits for the next message, however large.

        Raises:
            MemoryError: It is larger than memory; it stays where it is.
        """
        self._wanted, self._direct, self._starved = True, False, False
        self.grant()
        if self._starved:
            raise MemoryError(f"the next message has {self._inbox[0].size} bytes")

    def offer(self, buffer: memoryview) -> None:
        """Somebody waits for the next message, to be placed in this buffer.

        Raises:
            MessageTooLarge: It does not fit; it stays queued.
        """
        head = self.head
        if head is not None and head.size > len(buffer):
            raise MessageTooLarge(head.size, len(buffer))
        self._offer, self._direct = buffer, True
        self.grant()

    def forget(self) -> None:
        """Nobody waits any more: the call ended or was cancelled."""
        self._wanted, self._offer = False, None
        head = self.head
        if head is not None and head.direct:
            if head.complete:
                self._adopt(head)
            else:
                head.orphan = True

    def grant(self) -> None:
        """Lends buffers for announced messages, in order, as far as the queue allows.

        None behind our CLOSE, which has ended at the peer whatever was not granted before it.
        """
        while self._waiting and self._free_grants and not self._closed:
            arrived = self._waiting[0]
            buffer = self._buffer_for(arrived)
            if buffer is None:
                return
            lent = self._port.lend(buffer)
            if lent is None:
                arrived.direct = False
                return
            self._waiting.popleft()
            arrived.buffer = buffer
            arrived.granted = True
            self._queued += _COST if arrived.direct else arrived.size + _COST
            va, arrived.key = lent
            index = self._free_grants.pop()
            self._granted[index] = arrived
            remote = self._remote
            self._post(
                remote.va + remote.slots * remote.slot_size + index * _GRANT.size,
                _GRANT.pack(arrived.slot, arrived.key, va, arrived.size),
                _nothing,
                key=remote.key,
                immediate=_Type.GRANT << 28 | index,
            )
            self._free_slot()

    def _buffer_for(self, arrived: Arrived) -> memoryview | None:
        if self._inbox[0] is arrived:
            if self._offer is not None and arrived.size <= len(self._offer):
                arrived.direct = True
                return self._offer[: arrived.size]
            if self._wanted:
                return self._allocate(arrived.size)
        if self._direct and arrived.size >= _DIRECT:
            return None
        if self._queued + arrived.size + _COST > self._limits.max_queue:
            return None
        return self._allocate(arrived.size)

    def _allocate(self, size: int) -> memoryview | None:
        try:
            return self._port.allocate(size)
        except MemoryError:
            self._starved = True
            return None


_PEER_CLOSED: Final = -23


def _nothing(status: int) -> None:
    """The end of a write for which nobody waits; that it failed is told by the queue pair."""
