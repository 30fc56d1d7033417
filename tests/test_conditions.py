# SPDX-License-Identifier: Apache-2.0
"""Delay, jitter, loss and every setting of congestion control, crossed, in virtual time.

What must come of it: everything finishes, little is sent in vain, and the rate stays near that of
the same planes without the trouble.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from test_paths import FAST, joined, stream
from vnet import ADAPTIVE, EQUAL, MS, ON_PLANE, ON_QP, SECOND, US, WRITES, Link, Net

MBIT = 10**6
MIB = 1 << 20

HOST_FLOORS = {
    "base_rtt_floor": 500 * US,
    "target_delay_floor": MS,
    "window_floor_packets": 64,
}
"""What the engine sets for a software host."""

CONGESTION: Mapping[str, Mapping[str, int]] = {
    "plain": {},
    "floors": HOST_FLOORS,
    "trimming": {"trimming": 1},
    "singly": {"burst": 1},
    "least evs": {"ev_count": 16, "ev_backup": 0},
}


def finish(sizes: list[int], planes: int, policy: int, settings: Mapping[str, int]) -> None:
    link = Link(rate_bps=10**10, queue_bytes=MIB, mark_bytes=MIB // 4)
    net = Net(
        1,
        planes=[link] * planes,
        config={"policy": policy, **settings},
        region=max(sizes),
    )
    connection = net.connect(mtu=4096)
    for size in sizes:
        connection.write(0, size, offset=0)
        net.run(10 * SECOND)


@pytest.mark.parametrize("settings", CONGESTION.values(), ids=CONGESTION)
@pytest.mark.parametrize("planes", [1, 2, 4])
@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL], ids=["adaptive", "equal"])
def test_every_setting_of_congestion_control_finishes(
    policy: int, planes: int, settings: Mapping[str, int]
) -> None:
    """Case A25."""
    finish([1, MIB], planes, policy, settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", CONGESTION.values(), ids=CONGESTION)
@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL], ids=["adaptive", "equal"])
def test_every_setting_of_congestion_control_finishes_64_mib(
    policy: int, settings: Mapping[str, int]
) -> None:
    """Case A25, the large size."""
    for planes in (1, 2, 4):
        finish([64 * MIB], planes, policy, settings)


def test_sizes_around_every_power_of_two_arrive() -> None:
    """No size waits for ever for a packet that is not full, or for one that is not there."""
    net = Net(1, planes=[FAST] * 2, region=2 * MIB + 1)
    connection = net.connect(mtu=4096)
    net.settle()
    for power in range(22):
        for size in (2**power - 1, 2**power, 2**power + 1):
            connection.write(0, size, offset=0)
            net.run(SECOND)


@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL], ids=["adaptive", "equal"])
def test_planes_of_unlike_delay_without_loss_repeat_nothing(policy: int) -> None:
    """Case A24: 0, 1, 3 and 5 ms. Nothing is lost, so every retransmission is in vain."""
    links = [Link(rate_bps=10**9, delay=50 * US + delay * MS) for delay in (0, 1, 3, 5)]
    net, connection = joined(links, policy=policy, **HOST_FLOORS)
    stream(net, connection, SECOND, depth=32)
    received = stream(net, connection, SECOND, depth=32)
    net.run()
    stats = connection.stats(0)
    assert stats.packets_retransmitted < 0.001 * stats.packets_sent
    assert received * 8 > 0.8 * 4e9
    assert net.events(ON_PLANE) == []


@pytest.mark.parametrize("jitter", [MS, 10 * MS], ids=["1 ms", "10 ms"])
@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL], ids=["adaptive", "equal"])
def test_jitter_costs_little_and_repeats_little(policy: int, jitter: int) -> None:
    """Reordering inside each plane, at 10 Mb/s: a rival's rate fell to a third."""
    rates = []
    for most in (0, jitter):
        link = Link(rate_bps=10 * MBIT, queue_bytes=100_000, delay=MS, jitter=most)
        net, connection = joined([link] * 2, policy=policy, **HOST_FLOORS)
        stream(net, connection, SECOND)
        rates.append(stream(net, connection, 2 * SECOND))
    stats = connection.stats(0)
    assert rates[1] > 0.8 * rates[0]
    assert connection.stats(1).packets_duplicate <= 0.005 * stats.packets_sent


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("delay", [100 * US, MS, 10 * MS], ids=["0.1 ms", "1 ms", "10 ms"])
@pytest.mark.parametrize("reorders", [False, True], ids=["in order", "reordered"])
def test_loss_delay_and_reordering_never_cost_more_than_a_third(
    reorders: bool, delay: int, loss: float
) -> None:
    """None of the three has a cliff, whether or not the others are there."""
    jitter = delay // 2 if reorders else 0
    link = Link(rate_bps=100 * MBIT, queue_bytes=400_000, delay=delay, jitter=jitter, loss=loss)
    net, connection = joined([link] * 2, **HOST_FLOORS)
    stream(net, connection, SECOND, depth=16)
    received = stream(net, connection, SECOND, depth=16)
    assert received * 8 > 0.67 * 200 * MBIT
    assert net.events(ON_QP) == []


def test_where_the_rate_is_known_no_queue_stands_that_no_pause_of_a_host_needs() -> None:
    """64 packets a plane take 55 ms at 20 Mb/s: each answer and each repair waited for them."""
    link = Link(rate_bps=20 * MBIT, queue_bytes=MIB, delay=4 * MS)
    round_trips = []
    for rate in (0, 40 * MBIT):
        net = Net(1, planes=[link] * 2, config={"rate_bps": rate, **HOST_FLOORS})
        connection = net.connect(mtu=2048)
        stream(net, connection, SECOND, depth=16)
        assert stream(net, connection, SECOND, depth=16) * 8 > 0.85 * 40 * MBIT
        round_trips.append(connection.plane(0, 0).rtt)
    unknown, known = round_trips
    assert known < 0.75 * unknown


def test_hundreds_of_gaps_at_once_are_filled_within_a_few_round_trips() -> None:
    """A spike of loss: every gap is named at once, not one by one."""
    net, connection = joined([Link(rate_bps=10**9, delay=MS)] * 2, burst=1)
    stream(net, connection, 100 * MS, depth=16)
    for plane in range(2):
        net.change(plane, 0, loss=0.1)
    stream(net, connection, 40 * MS, depth=16)
    for plane in range(2):
        net.change(plane, 0, loss=0.0)
    lost = {record.psn for record in net.trace("lost", WRITES)}
    assert len(lost) > 150
    over = net.now
    net.run()
    again = [r.time for r in net.trace("sent", WRITES) if r.rtx and r.psn in lost]
    assert max(again) - over < 20 * connection.plane(0, 0).rtt_min
