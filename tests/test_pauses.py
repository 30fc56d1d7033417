# SPDX-License-Identifier: Apache-2.0
"""Hosts that are not running for a while, as on a loaded machine, in virtual time.

Nothing is lost in these tests: whatever is said against a path is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from test_conditions import HOST_FLOORS
from test_paths import OVERHEAD, added_shares, joined, shares, stream
from vnet import ADAPTIVE, EQUAL, MS, ON_EV, ON_PLANE, US, Connection, Link, Net

NOTHING = {"plane": 0, "ev": 0, "lost": 0, "sent again": 0}
VETH = Link(rate_bps=10**10, delay=50 * US)
PORT = Link(rate_bps=5 * 10**6, queue_bytes=100_000, delay=500 * US)


def pauses(net: Net, duration: int, *, gap: int, seed: int) -> Iterator[int]:
    """Either host pauses for 1 to 50 ms at a time, and runs for `gap` or so; yields both's sum."""
    rng = random.Random(seed)
    end = net.now + duration
    while net.now < end:
        pause = rng.randrange(MS, 50 * MS)
        net.pause(rng.randrange(2), pause, rng.choice([(), (0,), (1,)]))
        yield pause + rng.randrange(gap // 2, 3 * gap // 2)


def verdicts(net: Net, connection: Connection) -> dict[str, int]:
    """What was said against paths, and done about it, by both sides."""
    sides = [connection.stats(side) for side in (0, 1)]
    planes = [connection.plane(side, plane) for side in (0, 1) for plane in range(net.planes)]
    events = net.events()
    return {
        "plane": sum(event.type == ON_PLANE for event in events),
        "ev": sum(event.type == ON_EV for event in events),
        "lost": sum(plane.packets_lost for plane in planes),
        "sent again": sum(side.packets_retransmitted for side in sides),
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", [ADAPTIVE, EQUAL], ids=["adaptive", "equal"])
def test_pauses_of_the_hosts_say_nothing_of_the_paths_under_load(policy: int, seed: int) -> None:
    net, connection = joined([VETH] * 2, seed=seed, policy=policy, **HOST_FLOORS)
    stream(net, connection, 50 * MS, depth=16)
    before = shares(net)
    for time in pauses(net, 500 * MS, gap=10 * MS, seed=seed):
        stream(net, connection, time, depth=16)
    net.run()
    assert added_shares(net, before)[0] == pytest.approx(0.5, abs=0.03)
    assert verdicts(net, connection) == NOTHING


@pytest.mark.parametrize("seed", range(8))
def test_pauses_of_the_hosts_say_nothing_of_the_paths_of_short_messages(seed: int) -> None:
    net, connection = joined([VETH] * 2, seed=seed, **HOST_FLOORS)
    for time in pauses(net, 500 * MS, gap=10 * MS, seed=seed):
        for _ in range(time // (500 * US)):
            connection.write(0, 256, imm=1)
            net.pass_time(500 * US)
    net.run()
    assert verdicts(net, connection) == NOTHING


def test_windows_that_share_the_hosts_come_out_equal_whatever_they_were() -> None:
    """All delay is the receiver's, which takes frames in every 2 ms."""
    net, connection = joined([VETH] * 2, **HOST_FLOORS)
    net.change(1, 0, rate_bps=3 * 10**8)
    stream(net, connection, 200 * MS, depth=16)
    net.change(1, 0, rate_bps=10**10)
    assert connection.plane(0, 0).cwnd > 3 * connection.plane(0, 1).cwnd
    for _ in range(2):
        before = shares(net)
        for _ in range(50):
            net.pause(1, 2 * MS)
            stream(net, connection, 2100 * US, depth=16)
    assert added_shares(net, before)[0] == pytest.approx(0.5, abs=0.03)


def test_short_packets_do_not_say_how_long_full_size_ones_take() -> None:
    """At 5 Mb/s a full-size packet takes 6.7 ms more than a probe, a SACK or a short message."""
    net, connection = joined([PORT] * 4, **HOST_FLOORS)
    for _ in range(100):
        connection.write(0, 64, imm=1)  # the first plane that is free, of 4 that are
        net.run()
    stream(net, connection, 500 * MS, depth=16)
    before = shares(net)
    received = stream(net, connection, 2000 * MS, depth=16)
    assert added_shares(net, before) == pytest.approx([0.25] * 4, abs=0.01)
    assert received * 8 / 2 > 0.98 * 4 * PORT.rate_bps * OVERHEAD
