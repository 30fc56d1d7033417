# SPDX-License-Identifier: Apache-2.0
"""Whole messages over writes: two sides joined by a fake that carries writes in order.

The fake checks what the core would make an error: a write outside what is lent, and an immediate
that finds no posted receive. Completions and deliveries happen in any order that hypothesis picks.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrc.errors import MessageTooLarge, ProtocolError
from mrc.handshake import Lent
from mrc.messages import Limits, Messages, Sending, lent_size


class Side:
    """A port whose writes wait in `wire` until `Pair` carries them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.regions: dict[int, tuple[int, memoryview]] = {}
        self.wire: deque[tuple[int, int, bytes, int, int | None]] = deque()
        self.receives = 0
        self.next_key = 1
        self.ended: list[tuple[Any, int]] = []
        self.wakes = 0
        self.peer_has_closed = False
        self.room = self.max_regions = 1 << 30
        self.memory = memoryview(bytearray(lent_size(limits)))
        va, key = self.register(self.memory)
        self.lent = Lent(
            va=va, key=key, slots=limits.slots, slot_size=limits.slot_size, grants=limits.grants
        )
        self.messages: Messages

    def write(self, key: int, va: int, data: Any, tag: int, immediate: int | None) -> None:
        self.wire.append((key, va, bytes(data), tag, immediate))

    def lend_receives(self, count: int) -> None:
        self.receives += count

    def register(self, buffer: memoryview) -> tuple[int, int]:
        key, self.next_key = self.next_key, self.next_key + 1
        self.regions[key] = (key << 32, buffer)
        return key << 32, key

    def lend(self, buffer: memoryview) -> tuple[int, int] | None:
        return self.register(buffer) if len(self.regions) < self.max_regions else None

    def deregister(self, key: int) -> None:
        del self.regions[key]

    def allocate(self, size: int) -> memoryview:
        if size > self.room:
            raise MemoryError
        return memoryview(bytearray(size))

    def sent(self, sending: Sending, status: int) -> None:
        self.ended.append((sending.waiter, status))

    def arrived(self) -> None:
        self.wakes += 1

    def peer_closed(self) -> None:
        self.peer_has_closed = True

    def place(self, key: int, va: int, data: bytes) -> None:
        if data:
            start, buffer = self.regions[key]
            assert start <= va <= va + len(data) <= start + len(buffer)
            buffer[va - start : va - start + len(data)] = data


class Pair:
    """Both sides, and the network between them."""

    def __init__(
        self, limits: Limits | None = None, other: Limits | None = None, kind: type[Side] = Side
    ) -> None:
        limits = limits or small_limits()
        self.sides = (kind(limits), kind(other or limits))
        for one, two in (self.sides, self.sides[::-1]):
            one.messages = Messages(one, one.limits, one.memory, two.lent)

    def carry(self, index: int) -> bool:
        """Executes the oldest write of a side, and tells it so."""
        one, two = self.sides[index], self.sides[1 - index]
        if not one.wire:
            return False
        key, va, data, tag, immediate = one.wire.popleft()
        two.place(key, va, data)
        if immediate is not None:
            assert two.receives > 0, "a write with immediate found no receive"
            two.receives -= 1
            two.messages.on_receive(immediate)
        one.messages.on_write(tag, 0)
        return True

    def settle(self) -> None:
        while self.carry(0) or self.carry(1):
            pass


def small_limits(**changes: int) -> Limits:
    numbers = {"slots": 4, "slot_size": 256, "grants": 2, "max_queue": 4096, "post_window": 65536}
    return Limits(**{**numbers, **changes})


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((seed + i * 7 + i // 251) & 0xFF for i in range(size))


def take(side: Side) -> tuple[bytes, int | None] | None:
    side.messages.want()
    arrived = side.messages.take()
    return None if arrived is None else (bytes(arrived.buffer), arrived.immediate)


def take_all(pair: Pair, index: int) -> list[bytes]:
    taken = []
    pair.settle()
    while (got := take(pair.sides[index])) is not None or pair.sides[index].messages.head:
        if got is not None:
            taken.append(got[0])
        pair.settle()
    return taken


@pytest.mark.parametrize("size", [0, 1, 239, 240, 241, 3000, 70_000, 300_000])
@pytest.mark.parametrize("immediate", [None, 0, 0xFFFFFFFF])
def test_a_message_of_any_size_arrives_whole(size: int, immediate: int | None) -> None:
    pair = Pair()
    pair.sides[0].messages.send(memoryview(pattern(size)), immediate, "a")
    pair.settle()
    got = take(pair.sides[1])
    pair.settle()
    assert (got or take(pair.sides[1])) == (pattern(size), immediate)
    assert pair.sides[0].ended == [("a", 0)]
    assert pair.sides[0].messages.idle
    assert len(pair.sides[1].regions) == 1


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"), st.integers(0, 1), st.sampled_from([0, 1, 200, 241, 2000, 9000])
        ),
        st.tuples(st.just("carry"), st.integers(0, 1), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(0, 1), st.integers(0, 2)),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([2, 3, 8]), st.integers(1, 3))
def test_messages_arrive_once_and_in_order_whatever_the_timing(
    actions: list[tuple[str, int, int]], slots: int, grants: int
) -> None:
    pair = Pair(small_limits(slots=slots), small_limits(grants=grants))
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    got: tuple[list[bytes], list[bytes]] = ([], [])
    for action, index, number in actions:
        side = pair.sides[index]
        if action == "send":
            data = pattern(number, len(sent[index]))
            sent[index].append(data)
            side.messages.send(memoryview(data), None, None)
        elif action == "carry":
            for _ in range(number):
                pair.carry(index)
        elif number == 2:
            side.messages.forget()
        elif (taken := take(side)) is not None:
            got[1 - index].append(taken[0])
    for index in range(2):
        got[index].extend(take_all(pair, 1 - index))
    assert got == sent
    for side in pair.sides:
        assert side.messages.idle
        assert len(side.regions) == 1


def test_a_receiver_that_does_not_read_stops_the_sender_within_its_queue() -> None:
    pair = Pair(small_limits(max_queue=8192))
    for size in (200, 2000) * 100:
        pair.sides[0].messages.send(memoryview(pattern(size)), None, size)
    pair.settle()
    ended = [waiter for waiter, _ in pair.sides[0].ended]
    assert 0 < sum(ended) <= 8192 + 4 * 256
    assert len(take_all(pair, 1)) == 200


def test_empty_messages_do_not_fill_the_queue_without_bound() -> None:
    pair = Pair(small_limits(max_queue=8192))
    for _ in range(1000):
        pair.sides[0].messages.send(memoryview(b""), None, None)
    pair.settle()
    assert len(pair.sides[0].ended) <= 8192 // 512 + 4


def test_large_messages_overlap() -> None:
    pair = Pair(small_limits(max_queue=1 << 20))
    for _ in range(4):
        pair.sides[0].messages.send(memoryview(pattern(5000)), None, None)
    for _ in range(4):
        pair.carry(0)
    grants = [write for write in pair.sides[1].wire if (write[4] or 0) >> 28 == 2]
    assert len(grants) == 2


def test_control_passes_between_the_pieces_of_a_large_message() -> None:
    pair = Pair(small_limits(max_queue=1 << 24, slots=8))
    pair.sides[0].messages.send(memoryview(bytes(1 << 20)), None, "large")
    pair.carry(0)
    pair.carry(1)
    pair.sides[0].messages.send(memoryview(b"x"), None, "small")
    position = [len(write[2]) for write in pair.sides[0].wire].index(17)
    assert position <= 1
    pair.settle()
    assert [waiter for waiter, _ in pair.sides[0].ended] == ["small", "large"]


def test_recv_into_gets_a_large_message_without_a_copy() -> None:
    pair = Pair()
    buffer = memoryview(bytearray(6000))
    pair.sides[1].messages.offer(buffer)
    pair.sides[0].messages.send(memoryview(pattern(5000)), 7, None)
    pair.settle()
    arrived = pair.sides[1].messages.take()
    assert arrived is not None
    assert (arrived.direct, arrived.size, arrived.immediate) == (True, 5000, 7)
    assert buffer[:5000] == pattern(5000)


def test_a_message_too_large_for_the_buffer_stays_queued() -> None:
    pair = Pair()
    pair.sides[0].messages.send(memoryview(pattern(5000)), None, None)
    pair.settle()
    with pytest.raises(MessageTooLarge) as caught:
        pair.sides[1].messages.offer(memoryview(bytearray(4999)))
    assert caught.value.size == 5000
    assert take_all(pair, 1) == [pattern(5000)]


@pytest.mark.parametrize("carried", range(8))
def test_a_cancelled_recv_into_loses_nothing_at_any_moment(carried: int) -> None:
    pair = Pair()
    buffer = bytearray(300_000)
    pair.sides[1].messages.offer(memoryview(buffer))
    pair.sides[0].messages.send(memoryview(pattern(300_000)), None, None)
    for _ in range(carried):
        pair.carry(0)
        pair.carry(1)
    pair.sides[1].messages.forget()
    pair.settle()
    if pair.sides[1].messages.head is not None and pair.sides[1].messages.head.complete:
        buffer[:] = bytes(len(buffer))
    assert take_all(pair, 1) == [pattern(300_000)]


def test_a_buffer_offered_once_is_not_lent_twice() -> None:
    pair = Pair()
    buffer = memoryview(bytearray(5000))
    pair.sides[1].messages.offer(buffer)
    for seed in range(2):
        pair.sides[0].messages.send(memoryview(pattern(5000, seed)), None, None)
    pair.settle()
    assert pair.sides[1].messages.take() is not None
    pair.settle()
    assert buffer == pattern(5000, 0)
    assert take_all(pair, 1) == [pattern(5000, 1)]


def test_a_send_that_has_not_begun_is_withdrawn() -> None:
    pair = Pair()
    sendings = [pair.sides[0].messages.send(memoryview(b"%d" % i), None, i) for i in range(6)]
    assert not pair.sides[0].messages.withdraw(sendings[0])
    assert pair.sides[0].messages.withdraw(sendings[5])
    assert not pair.sides[0].messages.withdraw(sendings[5])
    assert take_all(pair, 1) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_small_message_may_be_changed_at_once_even_while_it_waits() -> None:
    pair = Pair()
    data = bytearray(b"first")
    for _ in range(6):
        pair.sides[0].messages.send(memoryview(data), None, None)
    data[:] = b"again"
    assert take_all(pair, 1) == [b"first"] * 6


@pytest.mark.parametrize("size", [0, 100, 300_000])
@pytest.mark.parametrize("immediate", [None, 5])
def test_a_one_sided_write_lands_and_its_immediate_follows(
    size: int, immediate: int | None
) -> None:
    pair = Pair()
    target = bytearray(size)
    va, key = pair.sides[1].register(memoryview(target))
    pair.sides[0].messages.write(memoryview(pattern(size)), key, va, immediate, "w")
    pair.settle()
    assert target == pattern(size)
    assert take(pair.sides[1]) == (None if immediate is None else (b"", 5))
    assert pair.sides[0].ended == [("w", 0)]


def test_what_arrived_before_the_end_can_still_be_taken() -> None:
    pair = Pair()
    for data in (b"a", b"b", pattern(5000), b"c"):
        pair.sides[0].messages.send(memoryview(data), None, None)
    for _ in range(4):
        pair.carry(0)
    pair.sides[1].messages.fail()
    assert take_all(pair, 1) == [b"a", b"b"]
    assert len(pair.sides[1].regions) == 1


def test_close_comes_behind_every_message() -> None:
    pair = Pair()
    for data in (b"a", pattern(5000)):
        pair.sides[0].messages.send(memoryview(data), None, None)
    pair.settle()
    pair.sides[0].messages.close()
    pair.settle()
    assert pair.sides[1].peer_has_closed
    assert take_all(pair, 1) == [b"a", pattern(5000)]


def test_sends_that_the_closed_peer_never_took_end() -> None:
    pair = Pair(small_limits(max_queue=600))
    for data in (pattern(5000), b"b"):
        pair.sides[0].messages.send(memoryview(data), None, data[:1])
    pair.settle()
    pair.sides[1].messages.close()
    pair.settle()
    assert pair.sides[0].ended == [(b"b", 0), (pattern(1), -23)]


def test_nothing_is_granted_behind_a_close() -> None:
    """A message that was granted before ends, and makes no room for the one behind it."""
    pair = Pair(small_limits(grants=1, max_queue=1 << 20))
    for name in "ab":
        pair.sides[0].messages.send(memoryview(pattern(70_000)), None, name)
    while not any(
        immediate is not None and immediate >> 28 == 2 for *_, immediate in pair.sides[1].wire
    ):
        pair.carry(0)
    pair.sides[1].messages.close()
    pair.settle()
    assert sorted(pair.sides[0].ended) == [("a", 0), ("b", -23)]


def test_a_message_larger_than_memory_raises_and_stays() -> None:
    pair = Pair()
    pair.sides[1].room = 5000
    pair.sides[0].messages.send(memoryview(pattern(6000)), None, None)
    pair.settle()
    with pytest.raises(MemoryError, match="6000"):
        pair.sides[1].messages.want()
    pair.sides[1].room = 6000
    assert take_all(pair, 1) == [pattern(6000)]


class SparseSide(Side):
    """Of what is written only both ends are carried, so that the pages between stay untouched."""

    def __init__(self, limits: Limits) -> None:
        self.pieces: list[tuple[int, int]] = []
        super().__init__(limits)

    def write(self, key: int, va: int, data: Any, tag: int, immediate: int | None) -> None:
        self.wire.append((key, va, data, tag, immediate))

    def allocate(self, size: int) -> memoryview:
        return memoryview(mmap.mmap(-1, size))

    def place(self, key: int, va: int, data: Any) -> None:
        if key == self.lent.key:
            super().place(key, va, bytes(data))
            return
        start, _ = self.regions[key]
        self.pieces.append((va - start, len(data)))
        super().place(key, va, bytes(data[:1]))
        super().place(key, va + len(data) - 1, bytes(data[-1:]))


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5])
def test_a_message_beyond_32_bits_goes_in_pieces_that_fit_them(size: int) -> None:
    """Case C51: pieces follow each other without gap or overlap, each short enough for a RETH."""
    pair = Pair(small_limits(slot_size=1024, post_window=1 << 40), kind=SparseSide)
    data = mmap.mmap(-1, size)
    data[0], data[size - 1] = 1, 3
    pair.sides[0].messages.send(memoryview(data), None, "sent")
    pair.settle()
    pair.sides[1].messages.want()
    pair.settle()
    arrived = pair.sides[1].messages.take()
    assert arrived is not None
    assert (arrived.size, arrived.buffer[0], arrived.buffer[size - 1]) == (size, 1, 3)
    pieces = pair.sides[1].pieces  # type: ignore[attr-defined]
    ends = [at + length for at, length in pieces]
    assert [at for at, _ in pieces] == [0, *ends[:-1]]
    assert ends[-1] == size
    assert max(length for _, length in pieces) <= 1 << 30
    assert pair.sides[0].ended == [("sent", 0)]


@pytest.mark.parametrize(
    "immediate",
    [0, 1 << 28 | 1, 2 << 28, 2 << 28 | 99, 3 << 28, 4 << 28 | 1, 7 << 28, 15 << 28],
)
def test_a_peer_that_breaks_the_rules_is_told_so(immediate: int) -> None:
    pair = Pair()
    with pytest.raises(ProtocolError, match="messages"):
        pair.sides[0].messages.on_receive(immediate)


def test_a_grant_that_leaves_the_address_space_is_against_the_rules() -> None:
    """Written there, it would be refused here, and nobody would hear of it."""
    side = Pair(small_limits(max_queue=600)).sides[0]
    side.messages.send(memoryview(pattern(5000)), None, None)
    grant = struct.pack(">IIQQ", 0, 1, (1 << 64) - 4999, 5000)
    start = side.limits.slots * side.limits.slot_size
    side.memory[start : start + len(grant)] = grant
    with pytest.raises(ProtocolError, match="granted"):
        side.messages.on_receive(2 << 28)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, (1 << 32) - 1), max_size=20), st.binary(min_size=1072, max_size=1072)
)
def test_no_peer_can_do_more_than_break_the_rules(immediates: list[int], memory: bytes) -> None:
    side = Pair().sides[0]
    side.memory[:] = memory
    for immediate in immediates:
        try:
            side.messages.on_receive(immediate)
        except ProtocolError:
            continue
    assert lent_size(side.limits) == len(memory)


def test_numbers_wrap_around() -> None:
    pair = Pair()
    start = (1 << 28) - 3
    for side in pair.sides:
        for name in ("_slot", "_next_slot", "_freed", "_told_freed", "_credited"):
            setattr(side.messages, name, start - start % 4)
    for index in range(40):
        pair.sides[0].messages.send(memoryview(pattern(index * 20)), None, None)
    assert take_all(pair, 1) == [pattern(index * 20) for index in range(40)]
