# SPDX-License-Identifier: Apache-2.0
"""Hosts that are not running for a while, as on a loaded machine, in virtual time.

Nothing is lost in these tests: whatever is said against a path is wrong.
"""

from __future__ import annotations

import random

import pytest
from test_conditions import HOST_FLOORS
from test_paths import OVERHEAD, added_shares, joined, shares, stream
from vnet import MS, US, Connection, Link, Net

VETH = Link(rate_bps=10**10, delay=50 * US)
PORT = Link(rate_bps=5 * 10**6, queue_bytes=100_000, delay=500 * US)


def stream_with_pauses(
    net: Net, connection: Connection, duration: int, *, pause: tuple[int, int], gap: int, seed: int
) -> None:
    """A stream whose sender or receiver pauses, for a time in `pause`, every `gap` or so."""
    rng = random.Random(seed)
    end = net.now + duration
    while net.now < end:
        stream(net, connection, rng.randrange(gap // 2, 3 * gap // 2), depth=16)
        read = rng.choice([(), (0,), (1,)])
        net.pause(rng.randrange(2), rng.randrange(*pause), read)


@pytest.mark.parametrize("seed", range(8))
def test_pauses_of_the_hosts_leave_equal_planes_equal(seed: int) -> None:
    net, connection = joined([VETH] * 2, seed=seed, **HOST_FLOORS)
    stream(net, connection, 50 * MS, depth=16)
    before = shares(net)
    stream_with_pauses(net, connection, 500 * MS, pause=(MS, 50 * MS), gap=10 * MS, seed=seed)
    assert added_shares(net, before)[0] == pytest.approx(0.5, abs=0.03)


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
