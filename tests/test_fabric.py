# SPDX-License-Identifier: Apache-2.0
"""The rules of switches and links (csrc/fabric), in virtual time."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest
from fabric_net import (
    CONTROL,
    MS,
    NO_TRIM,
    OVERHEAD,
    RETX,
    SECOND,
    TRIMMABLE,
    TRIMMED,
    TRIMMED_LASTHOP,
    A,
    B,
    Delivered,
    Link,
    Net,
    address,
    ffi,
    frame,
    lib,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

HEADERS = 14 + 40 + 8 + 12 + 4 + 16
"""Ethernet, IPv6, UDP, BTH, METH, RETH: what a trimmed packet keeps."""

TO_B = [("t0", B, 16, ["b"])]


def one_switch(**values: Any) -> list[Link]:
    """a == t0 == b: the link to b is as told, the other a fast one."""
    return [Link(ends=("a", "t0"), rate=100 * 10**9), Link(ends=("t0", "b"), **values)]


def two_switches(**values: Any) -> Net:
    """a == t0 == t1 == b: the link t0 == t1 is as told, the others fast ones."""
    fast = 100 * 10**9
    links = [
        Link(ends=("a", "t0"), rate=fast),
        Link(ends=("t0", "t1"), **values),
        Link(ends=("t1", "b"), rate=fast),
    ]
    return Net(links, [("t0", B, 16, ["t1"]), ("t1", B, 16, ["b"])])


def psn(packet: Delivered) -> int:
    return int.from_bytes(packet.frame[14 + 40 + 8 + 9 :][:3], "big")


def burst(net: Net, count: int, *, size: int = 1000, dscp: int = TRIMMABLE, ecn: int = 2) -> None:
    for number in range(count):
        assert net.enter("a", "t0", frame(number, size, dscp=dscp, ecn=ecn), at=0)


@given(
    sizes=st.lists(st.integers(0, 1400), min_size=1, max_size=40),
    rate=st.integers(10**6, 10**11),
    delay=st.integers(0, 10 * MS),
)
@settings(max_examples=30)
def test_a_link_carries_its_rate_to_the_nanosecond(sizes: list[int], rate: int, delay: int) -> None:
    net = Net(
        [Link(ends=("a", "t0"), rate=rate, delay=delay), Link(ends=("t0", "b"), rate=10**12)], TO_B
    )
    frames = [frame(number, size) for number, size in enumerate(sizes)]
    for each in frames:
        net.enter("a", "t0", each, at=0)
    got = net.advance(100 * SECOND)
    bits = 8 * sum(max(60, len(each)) + OVERHEAD for each in frames)
    last = 8 * (len(frames[-1]) + OVERHEAD)
    # All of them on the first link, then the last one on the second; each rounded down.
    assert got[-1].due == bits * SECOND // rate + delay + last * SECOND // 10**12
    assert [psn(each) for each in got] == list(range(len(sizes)))


@given(
    sends=st.lists(
        st.tuples(
            st.integers(0, 50_000),
            st.integers(0, 1400),
            st.sampled_from([CONTROL, TRIMMABLE, RETX, NO_TRIM]),
        ),
        max_size=120,
    ),
    limit=st.integers(0, 10_000),
    trim=st.booleans(),
    weight=st.integers(0, 3),
    chances=st.tuples(*[st.sampled_from([0, 300_000])] * 4),
    events=st.lists(st.sampled_from(["down", "up", "silent", "loud", "reboot"]), max_size=4),
    packets=st.sampled_from([8, 500]),
)
@settings(max_examples=100)
def test_every_packet_arrives_or_is_counted(
    sends: list[tuple[int, int, int]],
    limit: int,
    *,
    trim: bool,
    weight: int,
    chances: tuple[int, ...],
    events: list[str],
    packets: int,
) -> None:
    links = [
        Link(ends=("a", "t0"), delay=1000),
        Link(
            ends=("t0", "b"),
            rate=10**8,
            data_limit=limit,
            control_limit=limit,
            trim=trim,
            control_weight=weight,
        ),
    ]
    net = Net(links, TO_B, packets=packets)
    loss, corrupt, duplicate, reorder = chances
    net.rule(
        {
            "loss": loss,
            "corrupt": corrupt,
            "duplicate": duplicate,
            "reorder": reorder,
            "reorder_delay": 30_000,
            "jitter": 500,
        }
    )
    entered = arrived = 0
    for number, (gap, size, dscp) in enumerate(sends):
        entered += net.enter("a", "t0", frame(number, size, dscp=dscp), at=net.now + gap)
        if number % 20 == 10 and events:
            happen(net, events.pop())
        arrived += len(net.advance(net.now))
    lib.fabric_link_set(net.fabric, net.ports["a", "t0"], True, net.now)
    arrived += len(net.advance(net.now + SECOND))
    assert entered + net.total("duplicated") == arrived + net.total(
        *("data_full", "control_full", "link_down", "silent", "rebooting"),
        *("no_route", "hop_limit", "malformed", "loss"),
    )
    assert lib.fabric_packets(net.fabric) == 0
    assert lib.fabric_deadline(net.fabric) == 2**63 - 1


def happen(net: Net, event: str) -> None:
    switch = net.node("t0")
    if event in {"down", "up"}:
        lib.fabric_link_set(net.fabric, net.ports["a", "t0"], event == "up", net.now)
    elif event in {"silent", "loud"}:
        lib.fabric_node_silence(net.fabric, switch, event == "silent", net.now)
    else:
        lib.fabric_node_reboot(net.fabric, switch, 20_000, net.now)


def test_each_class_is_in_order_and_control_comes_first() -> None:
    net = Net(one_switch(rate=10**8), TO_B)
    for number in range(60):
        net.enter("a", "t0", frame(number, dscp=CONTROL if number % 3 == 2 else NO_TRIM), at=0)
    got = net.advance(SECOND)
    classes = [each.dscp for each in got]
    for dscp in (CONTROL, NO_TRIM):
        psns = [psn(each) for each in got if each.dscp == dscp]
        assert psns == sorted(psns)
    # What has begun to leave when the first control packet comes is not called back.
    assert classes[1:21] == [CONTROL] * 20


def test_a_weighted_control_class_leaves_data_its_share() -> None:
    net = Net(one_switch(rate=10**8, control_weight=4), TO_B)
    for number in range(200):
        net.enter("a", "t0", frame(number, dscp=CONTROL if number % 2 else NO_TRIM), at=0)
    share = Counter(each.dscp for each in net.advance(SECOND)[2:102])
    assert share == {CONTROL: 80, NO_TRIM: 20}


def test_the_marks_rise_along_the_ramp() -> None:
    size = len(frame(0))
    net = two_switches(rate=10**8, mark_from=200 * size, mark_to=1000 * size)
    burst(net, 2001)
    got = net.advance(SECOND)
    marked = [each.ecn == 3 for each in got]
    # The first leaves at once; then 1999, 1998 ... of them wait behind the one that leaves.
    above, ramp, below = marked[1:1001], marked[1001:1800], marked[1801:]
    assert all(above)
    assert not any(below)
    # Mean of the ramp is one half, +- four standard deviations of 800 draws.
    assert 0.43 < sum(ramp) / len(ramp) < 0.57
    quarter = ramp[:200]
    assert sum(quarter) / len(quarter) > 0.75
    assert net.counters("t0", "t1")["marked"] == sum(marked)


def test_nothing_is_marked_on_the_last_hop_nor_what_is_not_ecn_capable_nor_control() -> None:
    last = Net(one_switch(rate=10**8, mark_from=0, mark_to=1), TO_B)
    burst(last, 100)
    assert {each.ecn for each in last.advance(SECOND)} == {2}
    for ecn, dscp in ((0, TRIMMABLE), (2, CONTROL)):
        net = two_switches(rate=10**8, mark_from=0, mark_to=1)
        burst(net, 100, ecn=ecn, dscp=dscp)
        assert {each.ecn for each in net.advance(SECOND)} == {ecn}
        assert net.total("marked") == 0


@pytest.mark.parametrize("dscp", [TRIMMABLE, RETX])
def test_a_write_that_finds_the_queue_full_is_cut_to_its_headers_and_goes_first(dscp: int) -> None:
    size = len(frame(0))
    net = two_switches(rate=10**8, data_limit=10 * size, trim=True)
    burst(net, 30, dscp=dscp)
    got = net.advance(SECOND)
    trimmed = [each for each in got if each.dscp == TRIMMED]
    # One left at once and ten waited.
    assert [psn(each) for each in trimmed] == list(range(11, 30))
    assert got[1 : 1 + len(trimmed)] == trimmed
    for each in trimmed:
        whole = frame(psn(each), dscp=dscp)
        assert len(each.frame) == HEADERS
        assert struct.unpack_from(">H", each.frame, 18) == (HEADERS - 14 - 40,)
        assert each.frame[20:21] + each.frame[22:] == whole[20:21] + whole[22:HEADERS]
        assert each.ecn == 2
    assert net.counters("t0", "t1")["trimmed"] == len(trimmed)


def test_the_last_hop_has_a_trim_codepoint_of_its_own() -> None:
    net = Net(one_switch(rate=10**8, data_limit=2000, trim=True), TO_B)
    burst(net, 10)
    assert {each.dscp for each in net.advance(SECOND)} == {TRIMMABLE, TRIMMED_LASTHOP}


def test_a_packet_that_must_not_be_trimmed_is_dropped_by_a_full_queue() -> None:
    net = Net(one_switch(rate=10**8, data_limit=2000, trim=True), TO_B)
    burst(net, 10, dscp=NO_TRIM)
    assert len(net.advance(SECOND)) == 2
    assert net.counters("t0", "b")["data_full"] == 8


def test_a_trimmed_packet_in_srv6_has_its_mark_on_the_outer_header_and_both_lengths_cut() -> None:
    net = Net(
        one_switch(rate=10**8, data_limit=2000, trim=True),
        [("t0", "fc00:0:c02::", 6, ["b"])],
        usids={"t0": 0xA01},
    )
    for number in range(10):
        net.enter("a", "t0", frame(number, outer="fc00:0:a01:c02::"), at=0)
    trimmed = [each for each in net.advance(SECOND) if each.dscp == TRIMMED_LASTHOP]
    assert len(trimmed) == 8
    for each in trimmed:
        assert len(each.frame) == HEADERS + 40
        outer, inner = (struct.unpack_from(">H", each.frame, at + 4)[0] for at in (14, 54))
        assert (outer, inner) == (HEADERS - 14, HEADERS - 14 - 40)
        assert each.frame[38:54] == address("fc00:0:c02::")
        assert (struct.unpack_from(">H", each.frame, 54)[0] >> 6) & 63 == TRIMMABLE


def test_an_ipv4_header_keeps_a_right_checksum_when_it_is_aged_marked_and_trimmed() -> None:
    links = [
        Link(ends=("a", "t0"), rate=10**11),
        Link(ends=("t0", "t1"), rate=10**8, data_limit=10_000, mark_to=1, trim=True),
        Link(ends=("t1", "b")),
    ]
    mapped = "::ffff:10.0.0.2"
    net = Net(links, [("t0", mapped, 16, ["t1"]), ("t1", mapped, 16, ["b"])])
    for number in range(20):
        header = IP(src="10.0.0.1", dst="10.0.0.2", proto=17, ttl=9, tos=TRIMMABLE << 2 | 2)
        net.enter("a", "t0", bytes(Ether() / header / frame(number)[54:]), at=0)
    got = [Ether(each.frame)[IP] for each in net.advance(SECOND)]
    for ip in got:
        right = ip.copy()
        del right.chksum, right.len
        right = IP(bytes(right))
        assert (ip.chksum, ip.len, ip.ttl) == (right.chksum, right.len, 7)
    assert {(ip.tos >> 2, ip.tos & 3) for ip in got} == {
        (TRIMMABLE, 3),
        (TRIMMABLE, 2),
        (TRIMMED, 2),
    }


CLOS = [
    Link(ends=ends)
    for ends in [("a", "t0"), ("t0", "t1a"), ("t0", "t1b"), ("t1a", "t2"), ("t1b", "t2")]
] + [Link(ends=("t2", "b"))]
"""a == t0 == t1a, t1b == t2 == b."""

CLOS_ROUTES = [
    ("t0", B, 16, ["t1a", "t1b"]),
    ("t1a", B, 16, ["t2"]),
    ("t1b", B, 16, ["t2"]),
    ("t2", B, 16, ["b"]),
]


def test_a_usid_list_names_the_path_and_every_hop_takes_its_own_off() -> None:
    routes = [
        ("t0", "fc00:0:b01::", 6, ["t1a"]),
        ("t0", "fc00:0:b02::", 6, ["t1b"]),
        ("t1b", "fc00:0:a02::", 6, ["t2"]),
        ("t2", "fc00:0:c02::", 6, ["b"]),
    ]
    usids = {"t0": 0xA01, "t1a": 0xB01, "t1b": 0xB02, "t2": 0xA02}
    net = Net(CLOS, routes, usids=usids)
    net.enter("a", "t0", frame(1, outer="fc00:0:a01:b02:a02:c02::"), at=0)
    (got,) = net.advance(SECOND)
    assert got.frame[38:54] == address("fc00:0:c02::")
    assert got.frame[54:] == frame(1)[14:]
    assert got.frame[21] == 64 - 3
    assert net.counters("t1b", "t2")["sent"] == 1
    net.enter("a", "t0", frame(2, outer="fc00:0:a01::"), at=net.now)
    net.enter("a", "t0", frame(3, outer="fc00:0:a01:dead::"), at=net.now)
    assert net.advance(2 * SECOND) == []
    assert net.counters("t0", "a")["no_route"] == 2


def test_when_a_usid_list_is_used_up_the_srh_gives_the_next() -> None:
    routes = [("t0", "fc00:0:b02::", 6, ["t1b"]), ("t1b", "fc00:0:a02::", 6, ["t2"])]
    routes += [("t2", "fc00:0:c02::", 6, ["b"])]
    net = Net(CLOS, routes, usids={"t0": 0xA01, "t1b": 0xB02, "t2": 0xA02})
    segments = [address("fc00:0:a02:c02::"), address("fc00:0:a01:b02::")]  # the last one first
    srh = bytes([41, 4, 4, 1, 1, 0, 0, 0]) + b"".join(segments)
    plain = frame(1, outer="fc00:0:a01:b02::")
    outer = bytearray(plain[14:54])
    outer[4:7] = struct.pack(">HB", len(plain) - 54 + len(srh), 43)
    net.enter("a", "t0", plain[:14] + outer + srh + plain[54:], at=0)
    (got,) = net.advance(SECOND)
    assert got.frame[38:54] == address("fc00:0:c02::")
    assert got.frame[54 + 3] == 0  # segments left
    assert IPv6(got.frame[54 + len(srh) :]).dst == B


def test_a_hash_spreads_evs_and_keeps_each_on_its_path() -> None:
    net = Net(CLOS, CLOS_ROUTES)
    for number in range(2000):
        net.enter("a", "t0", frame(number, 0, ev=number % 1000), at=0)
    net.advance(SECOND)
    sent = net.counters("t0", "t1a")["sent"]
    assert sent % 2 == 0
    assert 800 < sent < 1200
    assert sent + net.counters("t0", "t1b")["sent"] == 2000


def test_a_structured_ev_is_read_by_its_bits() -> None:
    net = Net(CLOS, CLOS_ROUTES, fields={"t0": (20, 2)})
    for number, ev in enumerate([0 << 20, 1 << 20, 1 << 20 | 0xABC, 2 << 20]):
        net.enter("a", "t0", frame(number, ev=ev), at=0)
    got = net.advance(SECOND)
    assert len(got) == 3
    assert [net.counters("t0", each)["sent"] for each in ("t1a", "t1b")] == [1, 2]
    assert net.counters("t0", "a")["no_route"] == 1  # there is no third uplink


def test_a_packet_whose_hop_limit_ends_is_dropped() -> None:
    net = Net(CLOS, CLOS_ROUTES)
    for number in (1, 2, 3, 4):
        net.enter("a", "t0", frame(number, hop_limit=number), at=0)
    assert [psn(each) for each in net.advance(SECOND)] == [4]
    assert net.total("hop_limit") == 3


RULE = {
    "loss": 100_000,
    "corrupt": 50_000,
    "duplicate": 50_000,
    "reorder": 50_000,
    "reorder_delay": 2 * MS,
    "jitter": 1000,
}


def fates(seed: int, order: list[int]) -> Counter[bytes]:
    """What arrives of these PSNs, sent in this order."""
    net = Net(one_switch(), TO_B, seed=seed)
    net.rule(RULE)
    for at, number in enumerate(order):
        net.enter("a", "t0", frame(number), at=at * 10_000)
    return Counter(each.frame for each in net.advance(SECOND))


@given(seed=st.integers(0, 2**63), order=st.permutations(range(150)))
@settings(max_examples=10)
def test_a_seed_gives_each_packet_its_fate_in_whatever_order_it_comes(
    seed: int, order: list[int]
) -> None:
    assert fates(seed, order) == fates(seed, list(range(150)))
    assert fates(seed, order) != fates(seed + 1, order)


def test_chances_are_what_the_rule_says() -> None:
    net = Net(one_switch(), TO_B)
    net.rule(RULE)
    for number in range(10_000):
        net.enter("a", "t0", frame(number, 0), at=number * 1000)
        net.advance(net.now)
    counters = net.counters("a", "t0")
    # Expectation +- five standard deviations.
    assert 850 < counters["loss"] < 1150
    for name in ("corrupted", "duplicated", "reordered"):
        assert 341 < counters[name] < 559


def test_what_was_corrupted_differs_in_one_bit_that_the_icrc_covers() -> None:
    net = Net(one_switch(), TO_B)
    net.rule({"corrupt": 1_000_000})
    burst(net, 200)
    for number, got in enumerate(net.advance(SECOND)):
        change = int.from_bytes(got.frame[1:], "big") ^ int.from_bytes(frame(number)[1:], "big")
        change &= ~(0xFF << 8 * (len(got.frame) - 22))  # the hop limit
        assert got.corrupt
        assert change.bit_count() == 1
        at = len(got.frame) - 1 - (change.bit_length() - 1) // 8
        assert at >= 14 + 40 + 8
        assert at != 14 + 40 + 8 + 4


def test_a_retransmission_draws_anew_even_if_nothing_in_it_differs() -> None:
    net = Net(one_switch(), TO_B)
    net.rule({"loss": 500_000})
    missing, tries = set(range(64)), 0
    while missing and tries < 40:
        tries += 1
        for number in sorted(missing):
            net.enter("a", "t0", frame(number), at=net.now)
        missing -= {psn(each) for each in net.advance(net.now + SECOND)}
    assert not missing


def test_a_rule_for_an_ev_leaves_the_others_alone() -> None:
    net = Net(one_switch(), TO_B)
    net.rule({"loss": 1_000_000, "ev_mask": 0xFFFFFFFF, "ev_value": 7})
    for number in range(10):
        net.enter("a", "t0", frame(number, ev=number), at=0)
    assert [psn(each) for each in net.advance(SECOND)] == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_losses_come_in_runs_and_as_often_as_told() -> None:
    net = Net(one_switch(), TO_B, packets=10_000)
    net.rule({"loss": 100_000, "loss_run": 10})
    for number in range(10_000):
        net.enter("a", "t0", frame(number, 0, ev=number % 8), at=number * 1000)
    got = {psn(each) for each in net.advance(SECOND)}
    runs = [sum(number in got for number in range(at, at + 10)) for at in range(0, 10_000, 10)]
    assert set(runs) == {0, 10}
    assert 50 < runs.count(0) < 150


def test_a_reordered_packet_comes_late_by_its_delay_and_jitter_keeps_the_order() -> None:
    net = Net([Link(ends=("a", "t0"), delay=MS), Link(ends=("t0", "b"), rate=10**12)], TO_B)
    net.rule({"reorder": 20_000, "reorder_delay": MS, "jitter": 100_000})
    for number in range(1000):
        net.enter("a", "t0", frame(number), at=number * 10_000)
    got = net.advance(SECOND)
    delays = {psn(each): each.due - psn(each) * 10_000 - MS for each in got}
    late = {number for number, delay in delays.items() if delay >= MS}
    assert len(late) == net.counters("a", "t0")["reordered"] > 0
    others = [psn(each) for each in got if psn(each) not in late]
    assert others == sorted(others)
    assert max(delays[each] for each in others) < 130_000


def test_a_link_that_goes_down_loses_what_is_on_it_and_carries_again_when_up() -> None:
    net = Net(one_switch(delay=10 * MS), TO_B)
    for number in range(30):
        net.enter("a", "t0", frame(number), at=number * MS)
        if number == 14:
            lib.fabric_link_set(net.fabric, net.ports["b", "t0"], False, net.now + MS // 2)
            assert not lib.fabric_link_is_up(net.fabric, net.ports["t0", "b"])
        if number == 19:
            lib.fabric_link_set(net.fabric, net.ports["t0", "b"], True, net.now + MS // 2)
    # Ten were on the link and five came to it while it was down; 0 to 4 had arrived.
    assert [psn(each) for each in net.advance(SECOND)] == [*range(5), *range(20, 30)]
    assert net.counters("t0", "b")["link_down"] == 15


def test_a_flapping_link_is_down_for_its_part_of_each_period() -> None:
    net = Net(one_switch(), TO_B)
    lib.fabric_link_flap(net.fabric, net.ports["t0", "b"], 10 * MS, 3 * MS, 0)
    for number in range(100):
        net.enter("a", "t0", frame(number), at=number * MS + MS // 2)
    assert {psn(each) % 10 for each in net.advance(200 * MS)} == set(range(3, 10))
    lib.fabric_link_flap(net.fabric, net.ports["t0", "b"], 0, 0, net.now)
    assert lib.fabric_link_is_up(net.fabric, net.ports["t0", "b"])
    assert lib.fabric_deadline(net.fabric) == 2**63 - 1


def test_a_silent_switch_keeps_its_links_and_a_rebooting_one_takes_them_along() -> None:
    net = Net(one_switch(), TO_B)
    port = net.ports["a", "t0"]
    lib.fabric_node_silence(net.fabric, net.node("t0"), True, 0)
    assert lib.fabric_link_is_up(net.fabric, port)
    burst(net, 5)
    assert net.advance(MS) == []
    assert net.counters("t0", "a")["silent"] == 5
    lib.fabric_node_reboot(net.fabric, net.node("t0"), 10 * MS, net.now)
    assert not lib.fabric_link_is_up(net.fabric, port)
    net.advance(12 * MS)
    assert lib.fabric_link_is_up(net.fabric, port)
    net.enter("a", "t0", frame(6), at=net.now)
    assert len(net.advance(SECOND)) == 1


def test_a_payload_may_stay_elsewhere() -> None:
    net = Net(one_switch(rate=8 * 10**9), TO_B, frame_size=128)
    packet = lib.fabric_take(net.fabric)
    whole = frame(1, 4096)
    packet.size, packet.present, packet.handle = len(whole), 100, 2**60 + 1
    ffi.memmove(packet.frame, whole, 100)
    lib.fabric_enter(net.fabric, net.ports["a", "t0"], packet, 0)
    (got,) = net.advance(SECOND)
    assert got.handle == 2**60 + 1
    assert len(got.frame) == 100
    # 8 Gb/s carry a byte a nanosecond: its whole size counts.
    assert got.due - (len(whole) + OVERHEAD) == (len(whole) + OVERHEAD) * 8 // 100


def test_a_port_may_set_the_destination_of_its_frames() -> None:
    mac = bytes([2, 0, 0, 0, 1, 9])
    net = Net(one_switch(mac=mac), TO_B)
    burst(net, 1)
    assert net.advance(SECOND)[0].frame[:6] == mac


@given(data=st.binary(max_size=300), kind=st.sampled_from([b"\x86\xdd\x60", b"\x08\x00\x45", b""]))
@settings(max_examples=60)
def test_any_bytes_are_carried_or_dropped(data: bytes, kind: bytes) -> None:
    net = Net(one_switch(data_limit=200, trim=True), TO_B, usids={"t0": 1})
    net.rule({"corrupt": 500_000, "duplicate": 500_000})
    for at in range(3):
        net.enter("a", "t0", bytes(12) + kind + data, at=at)
    net.advance(SECOND)
    assert lib.fabric_packets(net.fabric) == 0


@pytest.mark.parametrize(
    ("link", "route", "message"),
    [
        (Link(ends=("t0", "b"), rate=0), TO_B[0], "rate is not 1 bit/s"),
        (Link(ends=("t0", "b"), delay=-1), TO_B[0], "delay is negative"),
        (Link(ends=("t0", "b"), mark_from=2, mark_to=1), TO_B[0], "ramp ends before it begins"),
        (Link(ends=("t0", "b")), ("t0", A, 7, ["b"]), "neither an address nor block and uSID"),
        (Link(ends=("t0", "b")), ("t0", A, 16, []), "not among the choices"),
        (Link(ends=("t0", "b")), ("a", A, 16, ["t0"]), "no such switch"),
    ],
)
def test_a_wrong_configuration_is_told(
    link: Link, route: tuple[str, str, int, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Net([Link(ends=("a", "t0")), link], [route])
