# SPDX-License-Identifier: Apache-2.0
"""Duplicates, late packets, forged ones and garbage do no harm, over a network in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from packets import bth_at, change, with_icrc, with_lengths
from vnet import (
    ACK,
    MS,
    NACK,
    ON_QP,
    ON_RECEIVE,
    PLANE_UP,
    QP_ERROR,
    REGION_VA,
    REQUEST,
    RESPONSE,
    SACK,
    SECOND,
    US,
    WRITES,
    Connection,
    Kept,
    Link,
    Net,
    pair,
)

from mrc import wire

MTU = 1024
ETHERNET = 14
TRIMMED = 1
UNEXP_EVENT = 0x19
REGION = 1 << 21
WRITE_MIDDLE, WRITE_ONLY, WRITE_ONLY_IMM = 0xC7, 0xCA, 0xCB
EV_PROBE = 1
REMOTE_ACCESS = -17
REMOTE_OPERATION = -18
INVALID_REQUEST = -19


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
    net.settle()
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
    """A NACK with a SACK's addresses: its headers, the rest cut off (MRC 1.0, NETH)."""
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
    for at in (11, 12 + 28, 12 + 29):  # PSN; tx_timestamp (MRC 1.0, BTH and EETH)
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


# What follows forges packets field by field: wrong in one respect, sound in all others.


def forged(frame: Kept, *, dscp: int = -1, **fields: Any) -> Kept:
    """The frame's packet with other fields."""
    packet: Any = wire.decode(frame.data[ETHERNET:])
    packet["dscp"] = packet["dscp"] if dscp < 0 else dscp
    packet["fields"].update(fields)
    return replace(frame, data=frame.data[:ETHERNET] + wire.encode(packet))


def remade(frame: Kept, opcode: int, **fields: Any) -> Kept:
    """A packet of another opcode with the frame's addresses and BTH, and these fields."""
    packet: Any = wire.decode(frame.data[ETHERNET:])
    common = ("se", "dest_qp", "ack_request", "rtx", "ts", "psn")
    kept_fields = {name: packet["fields"][name] for name in common}
    packet = {**packet, "opcode": opcode, "fields": {**kept_fields, **fields}}
    del packet["name"]
    return replace(frame, data=frame.data[:ETHERNET] + wire.encode(packet))


def fields_of(frame: Kept) -> Any:
    return wire.decode(frame.data[ETHERNET:])["fields"]


def opcode_of(frame: Kept) -> int:
    return frame.data[bth(frame)]


def kept(net: Net, host: int, opcodes: Sequence[int]) -> Kept:
    """The last frame with one of these opcodes that came to a host."""
    return [f for f in net.kept() if f.host == host and opcode_of(f) in opcodes][-1]


def busy_pair(*, mtu: int = MTU) -> tuple[Net, Connection]:
    """Two hosts that have exchanged one message and one immediate each way, from PSN 100 on."""
    net = Net(1, config={"burst": 1})
    connection = net.connect(mtu=mtu, psn=100)
    net.settle()
    net.keep()
    for side in (0, 1):
        connection.write(side, 3 * mtu)
        connection.write(side, 8, imm=7)
    net.run()
    net.pass_time(10 * MS)
    net.events()
    return net, connection


def is_alive(net: Net, connection: Connection) -> bool:
    """Both directions still carry a message, unharmed."""
    got = [connection.stats(side).bytes_received for side in (0, 1)]
    for side in (0, 1):
        connection.write(side, 5 * MTU)
    net.run()
    return all(
        connection.stats(side).bytes_received - before == 5 * MTU for side, before in enumerate(got)
    )


@pytest.mark.parametrize("opcode", [SACK, ACK, RESPONSE, REQUEST])
def test_a_control_packet_with_a_trim_mark_still_needs_its_icrc(opcode: int) -> None:
    """A trim mark excuses a write from its ICRC, nothing else: no switch trims control."""
    net, connection = busy_pair()
    frame = kept(net, 0, [opcode])
    marked = forged(frame, dscp=12)
    broken = replace(marked, data=marked.data[:-1] + bytes([marked.data[-1] ^ 1]))
    before = net.counters(0)
    sent = net.sent(0, [NACK, RESPONSE])
    net.inject(broken)
    net.pass_time(MS)
    assert net.counters(0).drop_icrc == before.drop_icrc + 1
    assert net.sent(0, [NACK, RESPONSE]) == sent
    net.inject(marked)
    net.pass_time(MS)
    assert net.counters(0).drop_icrc == before.drop_icrc + 1
    assert net.sent(0, [NACK]) == 0
    assert is_alive(net, connection)


def test_a_refusal_must_name_what_is_under_way_to_end_a_queue_pair() -> None:
    """Who guesses address and queue pair number has 24 more bits to guess."""
    net, connection = busy_pair()
    ack = kept(net, 0, [ACK])
    last = fields_of(ack)["psn"]
    stale = net.counters(0).drop_stale
    wrong = [last + 1, last - 1, last + 5000, (last + (1 << 23)) & 0xFFFFFF]
    for psn in wrong:
        net.inject(forged(ack, syndrome=0x62, psn=psn))
    net.pass_time(MS)
    assert net.counters(0).drop_stale == stale + len(wrong)
    assert net.events() == []
    assert is_alive(net, connection)


def test_a_nack_that_ends_a_queue_pair_must_name_what_is_under_way() -> None:
    net, connection = busy_pair()
    sack = kept(net, 0, [SACK])
    last = fields_of(sack)["cack_psn"]
    rest = {name: fields_of(sack)[name] for name in ("entropy", "spdcid", "dpdcid", "cc_fl")}
    rest |= {"reason": UNEXP_EVENT, "vendor_info": 0, "tx_timestamp": 0}
    stale = net.counters(0).drop_stale
    wrong = [last + 1, last - 1, last + 5000, (last + (1 << 23)) & 0xFFFFFF]
    for psn in wrong:
        net.inject(remade(sack, NACK, nack_psn=psn, **rest))
    net.pass_time(MS)
    assert net.counters(0).drop_stale == stale + len(wrong)
    assert net.events() == []
    assert is_alive(net, connection)


def test_a_window_that_was_not_agreed_to_change_does_not() -> None:
    """A SACK with mpr = 1, where the set-up said 32 and nobody offered Dynamic MPR."""
    net, connection = busy_pair()
    net.inject(forged(kept(net, 0, [SACK]), mpr=1))
    net.rule("drop", opcodes=[SACK, ACK], host=1, count=10**6)
    for _ in range(20):
        connection.write(0, 64 * MTU)
    most = 0
    for _ in range(200):
        net.pass_time(MS // 2)
        most = max(most, connection.stats(0).window_packets)
    assert most > 128
    net.clear_rules()
    net.run()


@pytest.mark.parametrize(
    "lie",
    [
        {"cack_psn": 5000, "sack_bitmap": (1 << 64) - 1},
        {"cack_psn": 0},
        {"sack_offset": 32767, "sack_bitmap": (1 << 64) - 1},
        {"sack_offset": -32768, "sack_bitmap": (1 << 64) - 1, "ack_psn_offset": -32768},
        {"sack_offset": 3, "sack_bitmap": (1 << 64) - 1, "ooo_count": 32767},
        {"ack_psn_offset": 32767},
        {"pr": 1, "ooo_count": 32767, "sack_bitmap": 0},
        {"rcvd_bytes": 0xFFFFFF, "rcv_cwnd_pen": 127},
        {"rcvd_bytes": 0x7FFFFF, "rcv_cwnd_pen": 127, "m": 2, "entropy": 0xFFFFFFFF},
        {"r_c": 1, "rcvd_bytes": 0},
        {"r_c": 1, "rcv_cwnd_pen": 1, "m": 3, "cc_type": 15, "cc_fl": 15},
        {"mpr": 255},
    ],
    ids=str,
)
def test_a_sack_that_lies_harms_nobody_but_its_sender(lie: dict[str, int]) -> None:
    """Amid a transfer, a hundred times over; all arrives, and another peer notices nothing."""
    net = Net(1, hosts=3, config={"burst": 1})
    connection = net.connect(psn=100)
    other = net.connect(0, 2, psn=100)
    net.settle()
    net.keep()
    connection.write(0, 8 * MTU)
    net.run()
    frame = kept(net, 0, [SACK])
    for _ in range(100):
        connection.write(0, 8 * MTU)
        other.write(0, 8 * MTU)
        net.inject(forged(frame, **lie))
        net.pass_time(50 * US)
    net.run()
    assert connection.stats(1).bytes_received == 808 * MTU
    assert other.stats(1).bytes_received == 800 * MTU
    assert net.counters(0).chunks == 0


@pytest.mark.parametrize(
    ("lie", "status"),
    [
        ({"va": (1 << 64) - 4}, REMOTE_ACCESS),
        ({"va": (1 << 64) - MTU}, REMOTE_ACCESS),
        ({"va": 0}, REMOTE_ACCESS),
        ({"va": REGION_VA - 1}, REMOTE_ACCESS),
        ({"va": REGION_VA + REGION - MTU + 1}, REMOTE_ACCESS),
        ({"r_key": 0x12345678}, REMOTE_ACCESS),
        ({"payload": "00" * 2 * MTU}, INVALID_REQUEST),
    ],
    ids=str,
)
@pytest.mark.parametrize("opcode", [WRITE_MIDDLE, WRITE_ONLY, WRITE_ONLY_IMM])
def test_a_write_out_of_bounds_ends_its_queue_pair_and_no_other(
    opcode: int, lie: dict[str, Any], status: int
) -> None:
    """The network compares every byte of the memory around the region with what it was."""
    net, connection = busy_pair()
    other = net.connect()
    net.settle()
    frame = kept(net, 1, WRITES)
    write = {name: fields_of(frame)[name] for name in ("rqmsn", "msn", "va", "r_key")}
    write |= {"dma_length": 4, "payload": "00" * MTU, **lie}
    if opcode == WRITE_ONLY_IMM:
        write["immediate"] = 1
    net.inject(remade(forged(frame, psn=fields_of(frame)["psn"] + 1), opcode, **write))
    net.pass_time(10 * MS)
    assert [event.status for event in net.events(ON_QP) if event.host == 1] == [status]
    assert connection.stats(1).state == QP_ERROR
    assert net.counters(1).remote_access == (status == REMOTE_ACCESS)
    assert is_alive(net, other)


def test_a_write_of_nothing_needs_no_memory_and_a_wrong_dma_length_moves_none() -> None:
    """No byte is touched, so no address is looked at; dma_length is told, never obeyed."""
    net, connection = busy_pair()
    frame = kept(net, 1, WRITES)
    nothing = {"rqmsn": 9, "msn": 9, "va": 0, "r_key": 0, "dma_length": 0xFFFFFFFF, "payload": ""}
    placed = connection.stats(1).bytes_received
    net.inject(remade(forged(frame, psn=fields_of(frame)["psn"] + 1), WRITE_ONLY, **nothing))
    net.pass_time(10 * MS)
    assert connection.stats(1).bytes_received == placed
    assert net.events(ON_QP) == []


def test_immediates_beyond_the_budget_end_their_queue_pair_and_no_other() -> None:
    """More WriteIMM ahead of a hole than max_wimm allows: UNEXP_EVENT."""
    net, _ = busy_pair()
    other = net.connect()
    net.settle()
    frame = kept(net, 1, WRITES)
    first = fields_of(frame)["psn"] + 2
    write = {"rqmsn": 1, "msn": 1, "va": 0, "r_key": 0, "dma_length": 0, "payload": ""}
    for number in range(65):
        one = forged(frame, psn=first + number)
        net.inject(remade(one, WRITE_ONLY_IMM, immediate=number, **write))
    net.pass_time(10 * MS)
    assert [e.status for e in net.events(ON_QP) if e.host == 1] == [REMOTE_OPERATION]
    assert net.counters(1).immediates == 0
    assert net.sent(1, [NACK]) > 0
    assert is_alive(net, other)


def test_a_flood_of_probes_from_one_peer_leaves_the_others_their_answers() -> None:
    """Each peer has its own allowance: another's planes come up amid 500 000 a second."""
    net = Net(1, hosts=3)
    net.connect(1, 0)
    net.keep()
    net.settle()
    probe = next(f for f in net.kept() if f.host == 0 and is_ev_probe(f) and source_of(f) == 1)
    for _ in range(2500):
        net.inject(probe)
    other = net.connect(2, 0)
    for _ in range(250):
        for _ in range(10):
            net.inject(probe)
        net.pass_time(20 * US)
    assert net.counters(0).drop_rate > 2_000
    assert {other.plane(0, plane).state for plane in (0, 1)} == {PLANE_UP}
    lost = [other.plane(0, n).probes_sent - other.plane(0, n).probes_answered for n in (0, 1)]
    assert max(lost) <= 1


def test_strangers_get_no_more_answers_than_their_allowance() -> None:
    """1000 answers a second to all strangers together, and never a longer one than the request
    by more than its fixed header: nothing to amplify with."""
    net, _ = busy_pair()
    probe = next(f for f in net.kept() if f.host == 0 and is_ev_probe(f))
    packet: Any = wire.decode(probe.data[ETHERNET:])
    sent = net.sent(0, [RESPONSE])
    for second in range(3):
        for number in range(2000):
            packet["src"] = f"fd66::{second:x}:{number:x}"
            net.inject(replace(probe, data=probe.data[:ETHERNET] + wire.encode(packet)))
        net.pass_time(SECOND)
    assert net.sent(0, [RESPONSE]) - sent < 3 * 1000
    assert net.counters(0).drop_rate >= 3 * 1000


def source_of(frame: Kept) -> int:
    """The host whose address it bears: the network numbers them from ::1 on."""
    return frame.data[ETHERNET + 8 + 15] - 1


def is_ev_probe(frame: Kept) -> bool:
    return opcode_of(frame) == REQUEST and fields_of(frame)["op"] == EV_PROBE


def test_a_frame_of_a_thousand_tiny_segments_is_dropped_as_one() -> None:
    """What a local sender can claim in a virtio header must not cost a packet's work each."""
    net, connection = busy_pair()
    frame = kept(net, 1, WRITES)
    counted = net.counters(1)
    net.inject(replace(frame, segment_size=1))
    net.pass_time(MS)
    assert net.counters(1).drop_short == counted.drop_short + 1
    assert net.counters(1).packets_received == counted.packets_received
    assert is_alive(net, connection)
