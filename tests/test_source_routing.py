# SPDX-License-Identifier: Apache-2.0
"""Source-routed connections in virtual time: the sender names the T1 of every packet.

    a ─ t0 ─┬─ t1 number 0 ─┬─ t0 ─ b        in each of two planes
            └─ t1 number 1 ─┘

A T1 that is dead is a rule that drops the EVs which name it, in both directions.
"""

from __future__ import annotations

import pytest
from vnet import (
    ALL,
    EV_ASSUMED_BAD,
    EV_GOOD,
    EV_SKIP,
    MS,
    ON_PLANE,
    SECOND,
    WRITES,
    Connection,
    Link,
    Net,
)

FAST = Link(rate_bps=10**9, queue_bytes=200_000)
KIB, MIB = 1 << 10, 1 << 20
FOREVER = 1 << 30

UPLINK = 0xF003
"""Of an EV: plane and, of up to four uplinks, which."""


def kill(net: Net, plane: int, uplink: int) -> None:
    for host in (0, 1):
        net.rule(
            "drop",
            host=host,
            opcodes=ALL,
            evs=(UPLINK, plane << 12 | uplink),
            count=FOREVER,
        )


def stream(net: Net, connection: Connection, duration: int) -> int:
    """Keeps four writes of 256 KiB posted for that long; returns the bytes that arrived."""
    before = connection.stats(1).bytes_received
    end = net.now + duration
    while net.now < end:
        stats = connection.stats(0)
        for _ in range(4 - (stats.writes_posted - stats.writes_completed)):
            connection.write(0, 256 * KIB)
        net.pass_time(MS)
    return int(connection.stats(1).bytes_received - before)


def carried(net: Net, plane: int) -> int:
    return int(net.counts(0, plane).data_bytes)


@pytest.mark.parametrize("srh", [False, True], ids=["plain", "SRH"])
def test_a_source_routed_transfer_is_whole_under_loss_and_reordering(srh: bool) -> None:
    lossy = Link(rate_bps=10**9, loss=0.02, duplicate=0.01, corrupt=0.01, jitter=MS)
    net = Net(1, planes=(lossy, lossy))
    connection = net.connect(mtu=4096, uplinks=2, srh=srh)
    for _ in range(8):
        connection.write(0, MIB, imm=1)
        connection.write(1, MIB, imm=2)
    net.run()
    assert connection.stats(0).writes_completed == connection.stats(1).writes_completed == 8


def test_what_is_left_of_a_plane_whose_t1_died_carries_what_it_can() -> None:
    net = Net(1, planes=(FAST, FAST))
    connection = net.connect(mtu=4096, uplinks=2)
    before = stream(net, connection, SECOND)
    net.events()
    kill(net, 1, 0)
    stream(net, connection, SECOND // 2)
    at = carried(net, 0), carried(net, 1)
    after = stream(net, connection, SECOND)
    share = (carried(net, 1) - at[1]) / (carried(net, 0) - at[0])
    assert share > 0.9
    assert after > 0.9 * before
    assert net.events(ON_PLANE) == []


def test_a_dead_t1_gets_no_data_but_probes_until_it_is_back() -> None:
    net = Net(1, planes=(FAST, FAST))
    connection = net.connect(mtu=4096, uplinks=2)
    stream(net, connection, SECOND // 2)
    kill(net, 1, 0)
    stream(net, connection, SECOND // 2)
    lost = [each for each in net.trace("ruled out") if each.host == 0]
    stream(net, connection, SECOND // 10)
    late = [each for each in net.trace("ruled out", WRITES) if each.time > lost[-1].time]
    assert late == []
    net.clear_rules()
    stream(net, connection, SECOND)
    uplinks = {each.ev & UPLINK for each in net.trace("delivered", WRITES)}
    assert uplinks == {0x0000, 0x0001, 0x1000, 0x1001}


def test_a_connection_is_made_while_a_t1_is_dead() -> None:
    for seed in range(20):
        net = Net(seed, planes=(FAST, FAST))
        kill(net, 0, 0)
        connection = net.connect(mtu=4096, uplinks=2)
        connection.write(0, 64 * KIB, imm=1)
        connection.write(1, 64 * KIB, imm=1)
        start = net.now
        net.run()
        assert net.now - start < SECOND // 4, seed


def test_three_of_four_paths_of_every_plane_die_and_the_fourth_carries_all() -> None:
    """Data and answers leave them, also below `ev_min_active`, which is for chance losses."""
    link = Link(rate_bps=20_000_000, queue_bytes=300_000, delay=2 * MS)
    net = Net(1, planes=(link,) * 4)
    connection = net.connect(mtu=2048, uplinks=4)
    stream(net, connection, SECOND // 2)
    before = stream(net, connection, SECOND // 2)
    for uplink in range(3):
        for plane in range(4):
            kill(net, plane, uplink)
        stream(net, connection, SECOND // 4)
        assert stream(net, connection, SECOND // 2) > 0.95 * before
    good = [ev & 0xFFF for ev, _, state in connection.evs(0) if state in {EV_GOOD, EV_SKIP}]
    assert set(good) == {3}


def test_what_one_queue_pair_learns_of_a_dead_path_the_others_to_that_peer_know() -> None:
    """One that sends a packet now and then would lose one after the other to timeouts."""
    net = Net(1, planes=(FAST, FAST))
    busy, idle = net.connect(mtu=4096, uplinks=2), net.connect(mtu=4096, uplinks=2)
    stream(net, busy, SECOND // 10)
    kill(net, 1, 0)
    stream(net, busy, SECOND // 10)
    bad = [ev & 0xFFFF for ev, _, state in idle.evs(0) if state == EV_ASSUMED_BAD]
    assert bad == [1 << 12]
