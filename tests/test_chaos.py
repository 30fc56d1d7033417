# SPDX-License-Identifier: Apache-2.0
"""Random hosts, planes, faults and messages; the network checks what must always hold.

Each example is one seed's whole life: planes with loss, duplication, reordering, corruption, marks
and trims; deaths told and untold, and revivals; applications that are slow to look; writes and
immediates both ways over several queue pairs. In the end all planes are healed, and everything
must have arrived.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from native.build import is_sanitized
from vnet import EQUAL, EV_DENIED, MS, ON_QP, SECOND, US, Connection, Link, Net

REGION = 1 << 22

seeds = st.integers(0, 2**32 - 1)
quick = settings(
    max_examples=15, suppress_health_check=[HealthCheck.too_slow], print_blob=True, deadline=None
)


def some_link(rng: random.Random) -> Link:
    rate = rng.choice([0, 10**8, 10**9, 10**10])
    return Link(
        rate_bps=rate,
        queue_bytes=rng.choice([0, 20_000, 200_000]) if rate else 0,
        busy_bytes=rng.choice([0, 0, 15_000]) if rate else 0,
        mark_bytes=rng.choice([0, 10_000]) if rate else 0,
        delay=rng.choice([5 * US, 100 * US, MS]),
        jitter=rng.choice([0, 0, 20 * US, MS]),
        loss=rng.choice([0.0, 0.0, 0.001, 0.05, 0.2]),
        duplicate=rng.choice([0.0, 0.0, 0.1]),
        corrupt=rng.choice([0.0, 0.0, 0.05]),
        trim_dscp=rng.choice([0, 12, 16]),
        cut=rng.random() < 0.5,
    )


def some_net(rng: random.Random, seed: int, settled: dict[str, int]) -> Net:
    planes = rng.choice([1, 2, 4, 4, 16])
    config = {
        "policy": rng.randrange(2),
        "trimming": rng.randrange(2),
        "burst": rng.choice([1, 4, 15]),
        "ev_count": rng.choice([16, 128]),
        "max_chunks": rng.choice([4, 2048]),
        "max_immediates": rng.choice([3, 4096]),
        "max_writes": rng.choice([8, 4096]),
    }
    config |= settled
    if rng.random() < 0.5:
        config |= {"base_rtt_floor": 500 * US, "target_delay_floor": MS, "window_floor_packets": 64}
    return Net(
        seed,
        planes=[some_link(rng) for _ in range(planes)],
        hosts=rng.choice([2, 2, 3]),
        config=config,
        ipv4=[plane for plane in range(planes) if rng.random() < 0.3],
        region=REGION,
        batch=rng.choice([0, 0, 20 * US]),
        drained=rng.random() < 0.8,
        stall=20 * SECOND,
    )


def some_connection(rng: random.Random, net: Net, hosts: int) -> Connection:
    a, b = rng.sample(range(hosts), 2)
    return net.connect(
        a,
        b,
        mtu=rng.choice([256, 1024, 4096]),
        mpr=rng.choice([1, 2, 32]),
        max_wimm=rng.choice([1, 4, 255]),
        psn=rng.choice([0xFFFFF0, rng.randrange(1 << 24)]),
        trim_nack=rng.random() < 0.8,
        dynamic_mpr=rng.random() < 0.5,
    )


def disturb(rng: random.Random, net: Net, hosts: int, connection: Connection, side: int) -> None:
    plane = rng.randrange(net.planes)
    host = rng.randrange(hosts)
    kind = rng.randrange(6)
    if kind == 0:
        net.change(plane, rng.choice([None, host]), dead=True)
    elif kind == 1:
        net.change(plane, dead=False)
    elif kind == 2:
        net.port(host, plane, up=rng.random() < 0.5, told=rng.random() < 0.7)
    elif kind == 3:
        net.enable(host, plane, enabled=rng.random() < 0.6)
    elif kind == 4:
        net.hold(host, held=rng.random() < 0.6)
    elif connection.stats(side).error == 0:
        ev, _, state = rng.choice(connection.evs(side))
        connection.deny(side, ev, deny=state != EV_DENIED)


def heal(net: Net, hosts: int) -> None:
    for host in range(hosts):
        net.hold(host, held=False)
    for plane in range(net.planes):
        net.change(plane, dead=False)
        for host in range(hosts):
            net.port(host, plane, up=True)
            net.enable(host, plane, enabled=True)


def play(rng: random.Random, net: Net, connections: list[Connection], rounds: int) -> None:
    """Posts writes, disturbs, lets time pass."""
    hosts = len({host for host, _ in net.links})
    posted = 0
    for _ in range(rounds):
        connection, side = rng.choice(connections), rng.randrange(2)
        size = rng.choice([0, 1, rng.randrange(3000), rng.randrange(40_000)])
        if posted + size < REGION // 2:  # the regions are not written over
            imm = rng.choice([None, rng.randrange(2**32)])
            posted += size if connection.try_write(side, size, imm=imm) == 0 else 0
        if rng.random() < 0.1:
            disturb(rng, net, hosts, connection, side)
        if rng.random() < 0.5:
            net.pass_time(rng.choice([10 * US, 300 * US, 5 * MS, 100 * MS]))
    heal(net, hosts)


def live(seed: int, *, rounds: int) -> Net:
    """One whole life in which nothing may be given up; returns the network, idle."""
    rng = random.Random(seed)
    net = some_net(rng, seed, {"dead_after": 3600 * SECOND})
    hosts = len({host for host, _ in net.links})
    connections = [some_connection(rng, net, hosts) for _ in range(rng.choice([1, 2, 6]))]
    play(rng, net, connections, rounds)
    net.run(300 * SECOND)
    assert net.events(ON_QP) == []
    return net


def die(seed: int, *, rounds: int) -> Net:
    """A life in which peers are given up soon and connections are closed in the midst of it."""
    rng = random.Random(seed)
    config = {
        "dead_after": rng.choice([100 * MS, 500 * MS]),
        "linger": rng.choice([0, 50 * MS]),
        "linear_cnt": rng.randrange(8),
        "exp_cnt": rng.choice([1, 4, 25]),
    }
    net = some_net(rng, seed, config)
    hosts = len({host for host, _ in net.links})
    for _ in range(3):
        connections = [some_connection(rng, net, hosts) for _ in range(rng.choice([1, 3]))]
        play(rng, net, connections, rounds)
        for connection in connections:
            for side in rng.sample([0, 1], 2):
                connection.close(side)
                net.pass_time(rng.choice([0, MS, 300 * MS]))
    net.pass_time(SECOND)
    assert net.is_idle
    for host in range(hosts):
        counters = net.counters(host)
        used = (counters.qps, counters.writes, counters.chunks, counters.immediates)
        assert used == (0, 0, 0, 0)
    return net


@quick
@example(0)
@given(seeds)
def test_whatever_happens_all_arrives_once_in_order_and_nothing_is_broken(seed: int) -> None:
    live(seed, rounds=60)


@settings(quick, max_examples=8)
@given(seeds)
def test_connections_that_are_given_up_or_closed_end_once_and_leave_nothing(seed: int) -> None:
    die(seed, rounds=20)


@settings(max_examples=3, deadline=None)
@given(seeds)
def test_the_same_seed_twice_is_the_same_to_the_last_packet(seed: int) -> None:
    first, second = live(seed, rounds=40), live(seed, rounds=40)
    assert (first.hash, first.now) == (second.hash, second.now)


def test_another_seed_is_another_life() -> None:
    assert live(1, rounds=10).hash != live(2, rounds=10).hash


@pytest.mark.slow
@settings(
    max_examples=20 if is_sanitized() else 100,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(seeds)
def test_long_lives_end_well_too(seed: int) -> None:
    live(seed, rounds=300)
    die(seed, rounds=100)


@pytest.mark.slow
def test_ten_thousand_messages_both_ways_over_64_connections_arrive() -> None:
    """The issue: 64 connections on one endpoint, sizes 0 to 1 MiB (here to 64 KiB)."""
    rng = random.Random(7)
    link = Link(rate_bps=10**10, loss=0.001, queue_bytes=10**6)
    net = Net(7, planes=[link] * 4, config={"max_qps": 64, "policy": EQUAL})
    connections = [net.connect(mtu=4096) for _ in range(64)]
    for number in range(10_000):
        connections[rng.randrange(64)].write(rng.randrange(2), rng.randrange(65536), imm=number)
        if number % 64 == 63:
            net.pass_time(5 * MS)
    net.run()
