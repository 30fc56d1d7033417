# SPDX-License-Identifier: Apache-2.0
"""What an endpoint of the core does, one behaviour each, over a network in virtual time.

Every test also proves that nothing that must always hold was broken (`native/vnet_check.c`).
Cases are those of MRC 1.0 unless another source is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from native.build import is_sanitized
from vnet import (
    ACK,
    ADAPTIVE,
    EQUAL,
    EV_ASSUMED_BAD,
    EV_DENIED,
    EV_GOOD,
    EV_SKIP,
    FLUSHED,
    IMMEDIATES,
    MS,
    NACK,
    ON_EV,
    ON_PROBE,
    ON_QP,
    ON_RECEIVE,
    ON_WRITE,
    ONLY,
    PEER_RESTARTED,
    PEER_SILENT,
    QP_ERROR,
    REGION_VA,
    REMOTE_ACCESS,
    REMOTE_OPERATION,
    REQUEST,
    RESPONSE,
    RETRY_EXCEEDED,
    SACK,
    SECOND,
    US,
    WRITES,
    Link,
    Net,
    pair,
)

MTU = 1024
SIZES = [0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU - 1, 2 * MTU, 2 * MTU + 1, 77 * MTU + 3]
TRIMMED, TRIMMED_LASTHOP = 1, 2


def statuses(net: Net, host: int) -> list[int]:
    return [event.status for event in net.events(ON_WRITE) if event.host == host]


# ---- Writes ----


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("version", [4, 6])
def test_a_write_of_any_size_arrives_whole_in_as_many_packets_as_it_needs(
    size: int, version: int
) -> None:
    net = Net(1, ipv4=[0, 1] if version == 4 else [])
    connection = net.connect(mtu=MTU)
    connection.write(0, size)
    net.run()
    assert statuses(net, 0) == [0]
    assert net.sent(0) == max(1, -(-size // MTU))
    assert connection.stats(1).bytes_received == size


@pytest.mark.parametrize("size", SIZES)
def test_an_immediate_of_any_size_is_received_once(size: int) -> None:
    net, connection = pair()
    connection.write(1, size, imm=77)
    net.run()
    assert [(e.host, e.immediate) for e in net.events(ON_RECEIVE)] == [(0, 77)]


def test_the_smaller_mtu_of_both_counts() -> None:
    net = Net(1)
    setup = net.connect(mtu=256)
    setup.write(0, 1000)
    net.run()
    assert net.sent(0) == 4


def test_an_immediate_comes_after_all_data_before_it_whatever_the_paths_delays() -> None:
    """C53: the network compares all data before an immediate with its source."""
    net = Net(2, planes=[Link(delay=n * 100 * US) for n in (1, 3, 7, 15)])
    connection = net.connect()
    for round_number in range(50):
        connection.write(0, 20 * MTU)
        connection.write(0, 1, imm=round_number)
    net.run()
    assert [e.immediate for e in net.events(ON_RECEIVE)] == list(range(50))


def test_writes_complete_in_order_and_by_the_transport_acknowledgement_only() -> None:
    net, connection = pair()
    rule = net.rule("drop", opcodes=[ACK], host=1, count=10**6)
    connection.write(0, 10 * MTU)
    net.pass_time(20 * MS)
    assert connection.stats(0).inflight == 0
    assert statuses(net, 0) == []
    net.clear_rules()
    net.run()
    assert statuses(net, 0) == [0]
    assert rule == 0


def test_a_lost_transport_acknowledgement_is_repeated_when_a_probe_asks() -> None:
    net, connection = pair()
    rule = net.rule("drop", opcodes=[ACK], host=1, count=3)
    connection.write(0, 100)
    net.run(SECOND)
    assert net.hits(rule) == 3
    assert net.sent(0, WRITES) == 1


def test_lost_sacks_cost_no_data_packet() -> None:
    net, connection = pair()
    net.rule("drop", opcodes=[SACK], host=1, count=6)
    connection.write(0, 20 * MTU)
    net.run(SECOND)
    assert net.sent(0) == 20


def test_a_zero_length_write_takes_one_psn() -> None:
    """C49."""
    net = Net(1, config={"burst": 1})
    connection = net.connect(mtu=MTU, psn=1000)
    for size in (0, MTU + 1, 0, 0, 1):
        connection.write(0, size)
    net.run()
    first = sorted({record.psn for record in net.trace("sent", WRITES)})
    assert first == list(range(1000, 1006))
    assert connection.stats(1).messages_received == 5


def test_psns_wrap_in_the_middle_of_loss_and_reordering() -> None:
    """C48."""
    link = Link(jitter=200 * US, loss=0.03)
    net = Net(5, planes=[link, link], config={"burst": 1})
    connection = net.connect(mtu=MTU, mpr=1, psn=0xFFFFF0)
    for number in range(200):
        connection.write(0, 10, imm=number)
    net.run()
    assert [e.immediate for e in net.events(ON_RECEIVE)] == list(range(200))


def test_without_a_driver_that_drains_the_delayed_sack_timer_acknowledges() -> None:
    net = Net(1, drained=False, config={"burst": 1})
    connection = net.connect(mtu=MTU)
    net.settle()
    connection.write(0, 5 * MTU)
    connection.write(0, 5 * MTU)
    net.run(20 * MS)
    assert net.sent(0, [0xDE]) == 0


# ---- Limits ----


def test_no_more_immediates_are_in_flight_than_the_peer_allows() -> None:
    """The network counts them; here: they all come."""
    net = Net(1, planes=[Link(delay=MS)] * 2)
    connection = net.connect(max_wimm=3)
    net.settle()
    for number in range(40):
        connection.write(0, 50, imm=number)
    net.pass_time(3 * MS // 2)
    assert connection.stats(0).wimm_outstanding == 3
    net.run()
    assert [e.immediate for e in net.events(ON_RECEIVE)] == list(range(40))


def test_no_psn_is_sent_beyond_the_peers_window() -> None:
    """One packet is held up: what may be sent without it is the window, 128 packets."""
    net = Net(1, planes=[Link(rate_bps=10**10)] * 2, config={"burst": 1})
    connection = net.connect(mtu=MTU, mpr=1, psn=0)
    net.settle()
    net.rule("drop", psn=0, count=10**6)
    connection.write(0, 1000 * MTU)
    net.pass_time(200 * MS)
    assert max(record.psn for record in net.trace("sent", WRITES)) == 127
    net.clear_rules()
    net.run()


def test_a_full_table_of_writes_is_back_pressure() -> None:
    net = Net(1, config={"max_writes": 4})
    connection = net.connect()
    assert [connection.try_write(0, 10) for _ in range(5)] == [0, 0, 0, 0, -2]
    net.run()
    assert connection.try_write(0, 10) == 0
    net.run()


def test_pools_that_are_too_small_slow_down_and_break_nothing() -> None:
    config = {"max_chunks": 3, "max_immediates": 2, "max_controls": 2}
    net = Net(7, planes=[Link(loss=0.02, jitter=MS)] * 2, config=config)
    connection = net.connect()
    for number in range(50):
        connection.write(0, 30 * MTU, imm=number)
    net.run()
    assert len(net.events(ON_RECEIVE)) == 50


def test_queue_pairs_share_a_pool_of_records_that_is_too_small() -> None:
    net = Net(7, planes=[Link(rate_bps=10**9)] * 2, config={"max_chunks": 2})
    connections = [net.connect() for _ in range(9)]
    for number in range(10):
        for connection in connections:
            connection.write(0, 30 * MTU, imm=number)
    net.run()
    assert len(net.events(ON_RECEIVE)) == 90


# ---- Congestion ----


def test_a_marked_packet_is_acknowledged_at_once_and_its_ev_skipped() -> None:
    net = Net(
        *(1,),
        drained=False,
        config={"burst": 1, "sack_delay": 50 * MS, "sack_threshold": 10**6},
    )
    connection = net.connect(mtu=MTU)
    net.settle()
    net.rule("mark", skip=3)
    connection.write(0, 9 * MTU)
    net.pass_time(MS)
    marked = net.trace("marked")[0]
    sack = next(record for record in net.trace("sent", [SACK]) if record.code == 1)
    assert sack.time == marked.time + Link().delay
    assert sack.entropy == marked.ev
    assert (marked.ev, marked.plane, EV_SKIP) in connection.evs(0)
    net.run()
    assert connection.plane(0, marked.plane).ce_marks == 1
    for _ in range(3 * 128):  # it has two turns to miss
        connection.write(0, 10)
    net.run()
    assert (marked.ev, marked.plane, EV_GOOD) in connection.evs(0)


@pytest.mark.parametrize(
    ("dscp", "reason"), [(12, TRIMMED), (16, TRIMMED_LASTHOP)], ids=["fabric", "last hop"]
)
@pytest.mark.parametrize("version", [4, 6])
def test_a_trimmed_packet_is_asked_for_at_once_and_sent_again_within_an_rtt(
    version: int, dscp: int, reason: int
) -> None:
    net = Net(1, config={"burst": 1, "trimming": 1}, ipv4=[0, 1] if version == 4 else [])
    connection = net.connect(mtu=MTU)
    net.settle()
    rule = net.rule("trim", skip=5, value=dscp)
    connection.write(0, 9 * MTU)
    net.pass_time(10 * US)
    window = connection.stats(0).cwnd
    net.run()
    assert net.hits(rule) == 1
    trimmed = net.trace("trimmed")[0]
    nack = net.trace("sent", [NACK])[0]
    again = next(record for record in net.trace("sent", WRITES) if record.rtx)
    assert (nack.psn, nack.code) == (trimmed.psn, reason)
    assert nack.time == trimmed.time + Link().delay
    assert again.psn == trimmed.psn
    assert again.time == trimmed.time + 2 * Link().delay
    assert again.dscp == 8
    assert again.ev != trimmed.ev
    assert connection.stats(0).packets_retransmitted == 1
    assert connection.stats(0).cwnd < window
    assert connection.plane(0, trimmed.plane).trims == 1


def test_a_trimming_queue_never_needs_a_timer() -> None:
    """Eight packets fit the queue of each plane; all that is cut comes again."""
    link = Link(rate_bps=10**9, queue_bytes=8 * 1200, trim_dscp=12)
    net = Net(3, planes=[link] * 4, config={"trimming": 1, "burst": 1})
    connection = net.connect(mtu=MTU)
    net.settle()
    connection.write(0, 1 << 20)
    net.run(5 * SECOND)
    stats = connection.stats(0)
    assert stats.nacks_received > 0
    assert stats.timeouts == 0


def test_a_busy_port_is_waited_for() -> None:
    link = Link(rate_bps=10**9, busy_bytes=5000, queue_bytes=50000)
    net = Net(1, planes=[link] * 2)
    connection = net.connect()
    connection.write(0, 1 << 20)
    net.run()
    assert net.counts(0, 0).packets[3] == 0  # none found the queue full
    assert connection.stats(0).packets_retransmitted == 0


# ---- Loss ----


def test_each_packet_of_a_message_can_be_lost() -> None:
    """C61: packet k of an n-packet message, for every k <= n <= 20."""
    cases = [(count, k) for count in range(1, 21) for k in range(count)]
    net, connection = pair()
    for done, (count, k) in enumerate(cases, 1):
        rule = net.rule("drop", skip=k)
        connection.write(0, count * MTU, imm=done)
        net.run(SECOND)
        assert net.hits(rule) == 1
        assert connection.stats(0).packets_retransmitted == done
        net.clear_rules()
    received = [event.immediate for event in net.events(ON_RECEIVE)]
    assert received == list(range(1, len(cases) + 1))


def test_a_lost_packet_is_sent_again_in_about_an_rtt() -> None:
    """Rules (b) to (d); the backstop is 5 ms."""
    link = Link(rate_bps=10**9)
    net, connection = pair(link=link)
    net.rule("drop", skip=20)
    connection.write(0, 200 * MTU)
    net.run()
    lost = net.trace("ruled out")[0]
    again = next(record for record in net.trace("sent", WRITES) if record.rtx)
    assert again.psn == lost.psn
    assert again.time - lost.time < 10 * link.delay


def test_a_corrupted_packet_is_dropped_counted_and_sent_again() -> None:
    net, connection = pair()
    net.rule("corrupt", skip=4)
    connection.write(0, 9 * MTU)
    net.run()
    counters = net.counters(1)
    dropped = counters.drop_icrc + counters.drop_opcode + counters.drop_short
    assert dropped == 1
    assert connection.stats(0).packets_retransmitted == 1


def test_a_packet_that_never_gets_through_ends_the_queue_pair() -> None:
    """A23: every transmission of one PSN is dropped, the retry budget is finite."""
    net = Net(1, config={"burst": 1, "linear_cnt": 2, "exp_cnt": 3, "dead_after": 600 * SECOND})
    connection = net.connect(mtu=MTU, psn=0)
    net.settle()
    rule = net.rule("drop", psn=3, count=10**6)
    connection.write(0, 2 * MTU)
    connection.write(0, 8 * MTU)
    connection.write(0, MTU)
    net.run()
    assert net.hits(rule) == 1 + 2 + 3
    assert statuses(net, 0) == [0, RETRY_EXCEEDED, RETRY_EXCEEDED]
    assert connection.stats(0).error == RETRY_EXCEEDED
    assert connection.try_write(0, 1) == -3


def test_a_queue_pair_that_failed_refuses_what_its_peer_still_writes() -> None:
    """Case A23, the other side: else the peer, which hears it, would send again for ever."""
    net = Net(1, config={"burst": 1, "linear_cnt": 2, "exp_cnt": 3, "dead_after": 600 * SECOND})
    connection = net.connect(mtu=MTU, psn=0)
    net.settle()
    rule = net.rule("drop", psn=3, count=10**6)
    connection.write(0, 8 * MTU)
    net.run()
    assert net.hits(rule) > 0
    assert connection.stats(0).error == RETRY_EXCEEDED
    connection.write(1, MTU)
    net.run()
    assert statuses(net, 1) == [REMOTE_OPERATION]


def test_by_default_one_packet_is_tried_for_ever() -> None:
    net, connection = pair()
    rule = net.rule("drop", count=60, skip=0)
    connection.write(0, 10)
    net.run(300 * SECOND)
    assert net.hits(rule) == 60


# ---- Refusals ----


@pytest.mark.parametrize(
    ("key", "offset", "size"),
    [(0xDEAD, 0, 10), (0, (1 << 21) - 5, 10), (0, 1 << 40, 1), (0, 2**64 - 4096 - REGION_VA, 10)],
    ids=["key", "end", "beyond", "far"],
)
def test_a_write_outside_the_region_is_refused_and_ends_both_sides(
    key: int, offset: int, size: int
) -> None:
    net, connection = pair()
    connection.write(0, size, key=key, offset=offset)
    connection.write(0, 1)
    net.run()
    events = net.events()
    assert [e.status for e in events if e.type == ON_WRITE] == [REMOTE_ACCESS, REMOTE_ACCESS]
    assert {(e.host, e.status) for e in events if e.type == ON_QP} == {
        (0, REMOTE_ACCESS),
        (1, REMOTE_ACCESS),
    }
    assert [connection.stats(side).state for side in (0, 1)] == [QP_ERROR, QP_ERROR]
    assert net.counters(1).remote_access == 1
    assert connection.stats(1).bytes_received == 0


def test_what_the_side_that_refuses_had_under_way_is_flushed() -> None:
    net, connection = pair()
    connection.write(1, 1 << 20)
    connection.write(0, 1, key=0xDEAD)
    net.run()
    ends = {event.host: event.status for event in net.events(ON_WRITE)}
    assert ends == {0: REMOTE_ACCESS, 1: FLUSHED}


def test_a_write_of_nothing_needs_no_key() -> None:
    net, connection = pair()
    connection.write(0, 0, key=0xDEAD, offset=0)
    net.run()
    assert statuses(net, 0) == [0]


def test_a_region_of_another_domain_is_refused() -> None:
    net, connection = pair()
    memory = net.ffi.new("char[64]")
    region = {"base": memory, "va": REGION_VA, "size": 64, "key": 99, "domain": 8}
    assert net.lib.mrc_endpoint_register(net.endpoint(1), net.ffi.new("mrc_region *", region)) == 0
    connection.write(0, 64, key=99, offset=0)
    net.run()
    assert statuses(net, 0) == [REMOTE_ACCESS]
    assert bytes(net.ffi.buffer(memory)) == bytes(64)


def test_nothing_is_written_after_a_region_was_revoked() -> None:
    net = Net(1, planes=[Link(rate_bps=10**9)] * 2)
    connection = net.connect()
    connection.write(0, 1 << 20)
    net.pass_time(2 * MS)
    placed = connection.stats(1).bytes_received
    assert 0 < placed < 1 << 20
    assert net.lib.mrc_endpoint_deregister(net.endpoint(1), net.lib.vnet_key(net.c, 1)) == 0
    before = bytes(net.ffi.buffer(net.lib.vnet_region(net.c, 1), 1 << 20))
    net.run()
    assert bytes(net.ffi.buffer(net.lib.vnet_region(net.c, 1), 1 << 20)) == before
    assert statuses(net, 0) == [REMOTE_ACCESS]


def test_an_immediate_that_finds_no_receive_is_an_error_on_both_sides() -> None:
    net = Net(1)
    connection = net.connect(receives=0)
    connection.write(0, 10, imm=1)
    net.run()
    net.pass_time(MS)
    assert connection.stats(0).error == REMOTE_OPERATION
    assert connection.stats(1).error == REMOTE_OPERATION
    assert net.events(ON_RECEIVE) == []


# ---- The end of a queue pair ----


def test_closing_flushes_what_is_pending() -> None:
    net = Net(1, planes=[Link(rate_bps=10**8)] * 2)
    connection = net.connect()
    for _ in range(3):
        connection.write(0, 1 << 18)
    net.pass_time(5 * MS)
    connection.close(0)
    assert statuses(net, 0) == [FLUSHED] * 3
    net.pass_time(100 * MS)
    counters = net.counters(0)
    assert (counters.writes, counters.chunks) == (0, 0)
    assert connection.plane(0, 0).inflight == 0


def test_writing_to_a_closed_peer_ends_with_an_error() -> None:
    net, connection = pair()
    connection.close(1)
    connection.write(0, 10)
    net.run(SECOND)
    assert statuses(net, 0) == [REMOTE_OPERATION]


def test_a_peer_that_restarted_ends_its_queue_pairs_at_once() -> None:
    net = Net(1, planes=[Link(rate_bps=10**8)] * 2)
    first, second = net.connect(), net.connect()
    first.write(0, 1 << 18)
    second.write(0, 1 << 18)
    net.pass_time(5 * MS)
    peer = net.lib.vnet_peer(net.c, first.number, 0)
    assert net.lib.mrc_peer_fail(net.endpoint(0), net.now, peer, PEER_RESTARTED) == 0
    net.kick(0)
    net.pass_time(0)
    assert statuses(net, 0) == [PEER_RESTARTED, PEER_RESTARTED]
    assert first.plane(0, 0).inflight == 0


def test_a_thousand_connects_and_closes_leave_nothing() -> None:
    net = Net(1, config={"linger": 10 * MS, "max_qps": 600})
    for _ in range(1000):
        connection = net.connect()
        connection.write(0, 10, imm=3)
        net.run(SECOND)
        connection.close(0)
        connection.close(1)
    net.pass_time(SECOND)
    assert [net.in_use(host) for host in (0, 1)] == [(0, 1, 0, 0, 0)] * 2


# ---- Endpoint operations and EVs ----


def probe(net: Net, *, plane: int = 0, last: int = 2, timeout: int = 20 * MS) -> None:
    request = net.ffi.new("mrc_probe *")
    request.plane = plane
    request.ev = 0x12340000 | plane << 12 | 0x345
    request.destination.version = 6
    request.destination.bytes = bytes([0xFD, *bytes(6), plane, *bytes(7), last])
    request.timeout = timeout
    request.tag = 42
    assert net.lib.mrc_endpoint_probe(net.endpoint(0), net.now, request) == 0
    net.kick(0)


def test_an_ev_probe_needs_no_queue_pair_and_tells_the_rtt_of_its_path() -> None:
    net = Net(1, planes=[Link(delay=3 * MS), Link()])
    probe(net)
    net.pass_time(15 * MS)
    (event,) = net.events(ON_PROBE)
    assert (event.tag, event.status, event.rtt) == (42, 0, 6 * MS)
    assert net.trace("sent", [REQUEST])[0].ev == net.trace("sent", [RESPONSE])[0].ev


def test_an_ev_probe_that_nobody_answers_ends_by_its_timeout() -> None:
    net = Net(1)
    probe(net, last=200)
    net.pass_time(19 * MS)
    assert net.events(ON_PROBE) == []
    net.pass_time(2 * MS)
    (event,) = net.events(ON_PROBE)
    assert (event.tag, event.status) == (42, PEER_SILENT)


def sent_frames(net: Net) -> Iterator[bytearray]:
    """What the first endpoint sends now, instead of the network's taking it."""
    out = net.ffi.new("mrc_frame_out *")
    while net.lib.mrc_endpoint_transmit(net.endpoint(0), net.now, out):
        slices = [out.slices[index] for index in range(out.slice_count)]
        yield bytearray(b"".join(bytes(net.ffi.buffer(s.base, s.size)) for s in slices))


def test_a_round_trip_is_its_own_answer_and_comes_back_by_its_carrier() -> None:
    net = Net(1)
    request = net.ffi.new("mrc_probe *")
    request.carrier.version = 6
    request.carrier.bytes = bytes.fromhex("fc000000010002000100030000000000")
    request.timeout, request.tag, request.ev = 20 * MS, 42, 7
    assert net.lib.mrc_endpoint_probe(net.endpoint(0), net.now, request) == 0
    frame = next(each for each in sent_frames(net) if each[20] == 41)  # IPv6 in IPv6
    assert frame[38:54] == bytes(request.carrier.bytes)
    assert frame[22:38] == frame[54 + 8 : 54 + 24] == frame[54 + 24 : 54 + 40]  # from us to us
    frame[38:54] = bytes.fromhex("fc0000000300") + bytes(10)  # as the last switch leaves it
    data = net.ffi.from_buffer(frame)
    came = net.ffi.new("mrc_frame_in *", {"size": len(frame), "data": data})
    net.pass_time(3 * MS)
    for _ in range(2):  # a copy of it ends nothing
        net.lib.mrc_endpoint_receive(net.endpoint(0), net.now, came)
    net.kick(0)
    net.pass_time(MS)
    (event,) = net.events(ON_PROBE)
    assert (event.tag, event.status, event.rtt, event.ev) == (42, 0, 3 * MS, 7)


def test_a_round_trip_that_one_address_does_not_hold_goes_on_in_an_srh() -> None:
    net = Net(1)
    request = net.ffi.new("mrc_probe *")
    first = bytes.fromhex("fc000000010002010101020101000000")
    second = bytes.fromhex("fc000000010003000000000000000000")
    request.carrier.version = request.next_carrier.version = 6
    request.carrier.bytes, request.next_carrier.bytes = first, second
    request.timeout, request.tag = 20 * MS, 42
    assert net.lib.mrc_endpoint_probe(net.endpoint(0), net.now, request) == 0
    frame = next(each for each in sent_frames(net) if each[20] == 43)
    assert frame[38:54] == first
    # RFC 8754: IPv6 follows, 24 bytes, type 4, one segment left, which is the last of the list.
    assert frame[54:62] == bytes([41, 2, 4, 1, 0, 0, 0, 0])
    assert frame[62:78] == second
    frame[38:54] = bytes.fromhex("fc0000000300") + bytes(10)
    frame[57] = 0
    came = net.ffi.new("mrc_frame_in *", {"size": len(frame), "data": net.ffi.from_buffer(frame)})
    net.lib.mrc_endpoint_receive(net.endpoint(0), net.now, came)
    net.kick(0)
    net.pass_time(MS)
    assert [(event.tag, event.status) for event in net.events(ON_PROBE)] == [(42, 0)]


@pytest.mark.parametrize(("carrier", "following"), [(0, 6), (6, 4), (4, 0)])
def test_a_round_trip_has_carriers_of_ipv6_the_first_one_first(
    carrier: int, following: int
) -> None:
    net = Net(1)
    request = net.ffi.new("mrc_probe *")
    request.destination.version = 6
    request.carrier.version, request.next_carrier.version = carrier, following
    request.timeout = MS
    assert net.lib.mrc_endpoint_probe(net.endpoint(0), net.now, request) < 0


def test_a_denied_ev_carries_nothing_until_it_is_given_back() -> None:
    """The network fails the test when a denied EV carries data."""
    net = Net(1, planes=[Link()] * 2, config={"ev_count": 16, "ev_backup": 0})
    connection = net.connect()
    net.settle()
    evs = [ev for ev, plane, _ in connection.evs(0) if plane == 0]
    for ev in evs[:6]:
        connection.deny(0, ev)
    for _ in range(200):
        connection.write(0, 2000)
    net.run()
    assert [s for e, _, s in connection.evs(0) if e in evs[:6]] == [EV_DENIED] * 6
    for ev in evs[:6]:
        connection.deny(0, ev, deny=False)
    for _ in range(200):
        connection.write(0, 2000)
    net.run()
    assert {r.ev for r in net.trace("sent", WRITES)} >= set(evs)


def test_an_ev_that_is_denied_while_its_plane_is_out_has_a_spare_in_its_place_afterwards() -> None:
    net = Net(1, config={"ev_count": 2, "ev_backup": 1})
    connection = net.connect()
    net.settle()
    first = next(ev for ev, plane, state in connection.evs(0) if (plane, state) == (0, EV_GOOD))
    net.port(0, 0, up=False)
    net.pass_time(MS)
    connection.deny(0, first)
    net.port(0, 0, up=True)
    net.pass_time(SECOND)
    assert [s for _, plane, s in connection.evs(0) if plane == 0] == [EV_GOOD, EV_DENIED]


def test_where_all_others_are_denied_an_ev_that_lost_is_used_all_the_same() -> None:
    """A plane that answers is never empty, however bad its last EV may be."""
    net = Net(1, planes=[Link()], config={"ev_count": 2, "ev_backup": 0})
    connection = net.connect()
    net.settle()
    net.rule("drop")
    connection.write(0, MTU)
    net.run()
    good, bad = sorted(connection.evs(0), key=lambda each: each[2])
    assert bad[2] == EV_ASSUMED_BAD
    connection.deny(0, good[0])
    connection.write(0, MTU)
    net.pass_time(MS)
    assert net.trace("delivered", WRITES)[-1].ev == bad[0]


@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL])
def test_a_plane_whose_evs_are_all_denied_is_passed_over_until_one_is_given_back(
    policy: int,
) -> None:
    """And then it gets its share, and not what it missed."""
    net = Net(1, config={"ev_count": 2, "ev_backup": 0, "policy": policy, "burst": 1})
    connection = net.connect()
    net.settle()
    denied = next(ev for ev, plane, _ in connection.evs(0) if plane == 0)
    connection.deny(0, denied)
    for _ in range(100):
        connection.write(0, MTU)
    net.run()
    assert [net.counts(0, plane).by_opcode[ONLY - 0xC0] for plane in (0, 1)] == [0, 100]
    connection.deny(0, denied, deny=False)
    for _ in range(100):
        connection.write(0, MTU)
    net.run()
    assert net.counts(0, 1).by_opcode[ONLY - 0xC0] == pytest.approx(150, abs=10)


def test_an_ev_that_loses_is_replaced_told_and_comes_back_when_it_answers() -> None:
    net, connection = pair()
    net.rule("drop", skip=4)
    connection.write(0, 50 * MTU)
    net.run()
    lost = net.trace("ruled out")[0]
    states = [(e.ev, e.plane, e.state) for e in net.events(ON_EV)]
    assert states == [(lost.ev, lost.plane, 2)]
    net.clear_rules()
    for _ in range(100):
        connection.write(0, 10)
        net.pass_time(10 * MS)
    assert [(e.ev, e.state) for e in net.events(ON_EV)] == [(lost.ev, EV_GOOD)]


def test_of_dead_paths_only_the_last_of_a_plane_stays_in_use() -> None:
    """`ev_min_active` is for losses that may be chance."""
    net = Net(1, planes=[Link(rate_bps=10**9)], config={"ev_count": 4, "ev_backup": 0})
    connection = net.connect(mtu=MTU)
    net.settle()
    evs = [ev for ev, _, _ in connection.evs(0)]
    for ev in evs[:3]:
        net.rule("drop", opcodes=[*WRITES, REQUEST], evs=(0xFFFF, ev & 0xFFFF), count=10**6)
    connection.write(0, 2000 * MTU)
    net.run()
    assert statuses(net, 0) == [0]
    assert net.sent(0) < 1.2 * 2000
    assert [ev for ev, _, state in connection.evs(0) if state == EV_GOOD] == evs[3:]


def test_frames_of_several_packets_carry_one_ev_and_hold_equal_packets() -> None:
    net = Net(1, planes=[Link(rate_bps=10**10)] * 2)
    connection = net.connect(mtu=MTU)
    net.settle()
    connection.write(0, 1 << 20)
    net.run()
    frames: dict[int, list[tuple[int, int]]] = {}
    for record in net.trace("sent", WRITES):
        frames.setdefault(record.frame, []).append((record.ev, record.opcode))
    assert max(len(packets) for packets in frames.values()) > 1
    for packets in frames.values():
        assert len({ev for ev, _ in packets}) == 1
        assert len(packets) == 1 or not any(opcode in IMMEDIATES for _, opcode in packets)


@pytest.mark.parametrize("burst", [1, 15])
def test_an_acknowledgement_shares_the_frame_of_the_sack_before_it(burst: int) -> None:
    """Where planes take bursts: half of what a small message costs is the way of its answers."""
    net = Net(1, config={"burst": burst})
    connection = net.connect()
    net.settle()
    connection.write(0, 100, imm=1)
    net.run()
    answers = [(r.opcode, r.frame) for r in net.trace("sent", [SACK, ACK]) if r.host == 1]
    assert [opcode for opcode, _ in answers] == [SACK, ACK]
    assert len({frame for _, frame in answers}) == (1 if burst > 1 else 2)
    assert statuses(net, 0) == [0]


@pytest.mark.parametrize("version", [4, 6])
def test_frames_that_were_cut_on_the_way_are_as_good_as_whole_ones(version: int) -> None:
    for cut in (True, False):
        link = Link(rate_bps=10**10, cut=cut)
        net = Net(1, planes=[link] * 2, ipv4=[0, 1] if version == 4 else [])
        connection = net.connect(mtu=MTU)
        net.settle()
        connection.write(0, 1 << 20)
        net.run()
        counts = net.counts(0, 0)
        assert counts.packets[0] > counts.frames
        assert net.counters(1).drop_icrc == 0
        assert connection.stats(0).packets_retransmitted == 0


@pytest.mark.slow
def test_psns_wrap_three_times_in_one_connection() -> None:
    """All of 2^24 twice, and the rest of a third round; every PSN is checked by the network.

    With the sanitizers, which look at memory and not at numbers, the first wrap must do.
    """
    rounds = 0 if is_sanitized() else 2
    net = Net(1, planes=[Link(rate_bps=10**11, delay=5 * US)] * 2, region=1 << 20)
    connection = net.connect(mtu=256, psn=0xFFFF00, mpr=32)
    posted = 0
    while posted < (rounds << 24) + 4096:
        for _ in range(16):
            connection.write(0, 1 << 20)
            posted += 4096
        net.run()
    assert connection.stats(1).bytes_received == posted * 256
