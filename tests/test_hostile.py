# SPDX-License-Identifier: Apache-2.0
"""Duplicates, late packets, forged ones and garbage do no harm, over a network in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packets import bth_at, change, with_icrc, with_lengths
from vnet import (
    ACK,
    MS,
    NACK,
    ON_RECEIVE,
    PLANE_UP,
    REQUEST,
    RESPONSE,
    SACK,
    SECOND,
    US,
    WRITES,
    Kept,
    Link,
    Net,
    pair,
)

MTU = 1024
ETHERNET = 14
TRIMMED = 1


def test_duplicates_never_complete_twice() -> None:
    """C64: every packet comes twice, and late."""
    net = Net(1, planes=[Link(duplicate=1.0, jitter=300 * US)] * 2, config={"burst": 1})
    connection = net.connect(mtu=MTU)
    for number in range(50):
        connection.write(0, 3 * MTU, imm=number)
    net.run()
    net.pass_time(10 * MS)
    assert [e.immediate for e in net.events(ON_RECEIVE)] == list(range(50))
    duplicates = sum(1 for r in net.trace("delivered", WRITES)) - 150
    assert connection.stats(1).packets_duplicate == duplicates


def test_replaying_a_finished_connection_makes_no_state_and_few_answers() -> None:
    """C59: every packet, while it lingers and after."""
    net = Net(1)
    net.keep()
    connection = net.connect()
    for number in range(20):
        connection.write(0, 5000, imm=number)
        connection.write(1, 5000, imm=number)
    net.run()
    for side in (0, 1):
        connection.close(side)
    net.pass_time(10 * MS)
    kept = [frame for frame in net.kept() if frame.host == 1]
    used = net.in_use(1)
    sent = net.sent(1, [SACK, NACK, ACK])
    for frame in kept:
        net.inject(frame)
    net.pass_time(100 * MS)
    assert len(kept) > 30
    assert net.in_use(1) == used
    assert net.sent(1, [SACK, NACK, ACK]) - sent <= 3
    net.pass_time(3 * SECOND)
    assert net.in_use(1)[0] == 0
    sent = net.sent(1, [SACK, NACK, ACK])
    for frame in kept:
        net.inject(frame)
    net.pass_time(100 * MS)
    assert net.in_use(1)[0] == 0
    assert net.sent(1, [SACK, NACK, ACK]) == sent
    assert net.counters(1).drop_unknown_qp > 0


def test_a_packet_for_an_unknown_queue_pair_is_counted_and_dropped() -> None:
    """C62."""
    net, connection = pair()
    net.keep()
    connection.write(0, 10)
    net.run()
    frame = next(f for f in net.kept() if f.host == 1 and f.data[bth(f)] in WRITES)
    packet = change(frame.data[ETHERNET:], bth_at(frame.data[ETHERNET:]) + 7, 0xFF, 0x55)
    sent = net.sent(1, [SACK, NACK, ACK])
    net.inject(replace(frame, data=frame.data[:ETHERNET] + with_icrc(packet)))
    net.pass_time(MS)
    assert net.counters(1).drop_unknown_qp == 1
    assert net.sent(1, [SACK, NACK, ACK]) == sent


def bth(frame: Kept) -> int:
    return ETHERNET + bth_at(frame.data[ETHERNET:])


def test_garbage_of_any_length_is_counted_and_dropped() -> None:
    """C62."""
    net, _ = pair()
    before = net.counters(1)
    for length in range(61):
        net.inject(Kept(host=1, plane=0, segment_size=0, data=bytes(range(length)) + b"\0"))
    net.pass_time(MS)
    after = net.counters(1)
    dropped = after.drop_short + after.drop_protocol - before.drop_short - before.drop_protocol
    assert dropped == 61


@pytest.mark.parametrize("opcode", [*WRITES, ACK, SACK, NACK, 0xDE])
def test_a_packet_from_a_strange_address_is_dropped_without_an_answer(opcode: int) -> None:
    net, connection = pair()
    net.keep()
    for side in (0, 1):
        connection.write(side, 3 * MTU, imm=1)
        connection.write(side, 10)
        connection.write(side, 3 * MTU)
        connection.write(side, 1, imm=2)
    net.rule("drop", opcodes=[ACK, SACK], host=1, count=30)
    net.run()
    frames = [f for f in net.kept() if f.data[bth(f)] == opcode]
    if opcode == NACK:
        frames = [nack_like(f) for f in net.kept() if f.data[bth(f)] == SACK]
    frame = frames[0]
    source = ETHERNET + 8
    forged = bytearray(frame.data)
    forged[source + 15] = 77
    packet = with_icrc(bytes(forged[ETHERNET:]))
    sent = net.sent(frame.host, [SACK, NACK, ACK])
    net.inject(replace(frame, data=frame.data[:ETHERNET] + packet))
    net.pass_time(MS)
    assert net.counters(frame.host).drop_source == 1
    assert net.sent(frame.host, [SACK, NACK, ACK]) == sent


def nack_like(sack: Kept) -> Kept:
    """A NACK with a SACK's addresses: its headers, the rest cut off (wire.md, NETH)."""
    packet = sack.data[ETHERNET:]
    at = bth_at(packet)
    body = bytearray(packet[: at + 12] + bytes(20) + bytes(4))
    body[at] = NACK
    body[at + 14] = TRIMMED
    body[at + 28] = 0x20  # cc_type
    return replace(sack, data=sack.data[:ETHERNET] + with_icrc(with_lengths(bytes(body))))


def test_an_answer_with_the_wrong_id_or_time_stamp_is_nobodys() -> None:
    """Case A26: an answer counts by address, plane, id and time stamp."""
    net = Net(1)
    net.keep()
    net.connect()
    net.settle()
    frame = next(f for f in net.kept() if f.host == 0 and f.data[bth(f)] == RESPONSE)
    packet = frame.data[ETHERNET:]
    stale = net.counters(0).drop_stale
    for at in (11, 12 + 28, 12 + 29):  # PSN; tx_timestamp (wire.md, BTH and EETH)
        forged = with_icrc(change(packet, bth_at(packet) + at, packet[bth_at(packet) + at] ^ 1))
        net.inject(replace(frame, data=frame.data[:ETHERNET] + forged))
    net.inject(frame)  # it was answered already
    net.pass_time(0)
    assert net.counters(0).drop_stale - stale == 4


def test_a_strangers_port_status_update_changes_nothing() -> None:
    net, connection = pair()
    net.keep()
    net.port(1, 1, up=False)
    net.pass_time(2 * MS)
    net.port(1, 1, up=True)
    net.settle()
    status = next(
        f
        for f in net.kept()
        if f.host == 0 and f.data[bth(f)] == REQUEST and f.data[bth(f) + 13] & 3 == 0
    )
    forged = bytearray(status.data)
    forged[ETHERNET + 8 + 15] = 77
    packet = with_icrc(bytes(forged[ETHERNET:]))
    net.inject(replace(status, data=status.data[:ETHERNET] + packet))
    net.pass_time(0)
    assert net.counters(0).drop_source == 1
    assert connection.plane(0, 1).state == PLANE_UP


def test_sacks_from_the_past_do_no_harm() -> None:
    net, connection = pair()
    net.keep()
    connection.write(0, 50 * MTU)
    net.run()
    sacks = [f for f in net.kept() if f.host == 0 and f.data[bth(f)] in (SACK, ACK)]
    net.rule("delay", value=5 * MS, skip=10, count=5)
    connection.write(0, 50 * MTU)
    net.pass_time(60 * US)
    for frame in sacks:
        net.inject(frame)
    net.run()
    assert len(sacks) > 1
    assert connection.stats(1).bytes_received == 100 * MTU


def test_a_sack_of_what_was_never_sent_is_counted_and_ignored() -> None:
    net = Net(1, config={"burst": 1})
    connection = net.connect(mtu=MTU, psn=100)
    net.settle()
    net.keep()
    connection.write(0, 10 * MTU)
    net.run()
    frame = next(f for f in net.kept() if f.host == 0 and f.data[bth(f)] == SACK)
    packet = change(frame.data[ETHERNET:], bth_at(frame.data[ETHERNET:]) + 12 + 14, 0x10)
    net.rule("drop", count=10**6)
    connection.write(0, 10 * MTU)
    net.inject(replace(frame, data=frame.data[:ETHERNET] + with_icrc(packet)))
    net.pass_time(MS)
    assert net.counters(0).drop_stale == 1
    assert not net.is_idle
    net.clear_rules()
    net.run()
