# SPDX-License-Identifier: Apache-2.0
"""The round trips that walk a path: their uSIDs, what they cross, and the ways around.

a, c ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
            └─ t1b ─┘
"""

from __future__ import annotations

import ipaddress

import pytest
from topologies import TWO_BY_TWO

from mrc.errors import ConfigError
from mrc.localise import localise
from mrc.topology import Topology
from mrc.topology_file import parse
from mrc.walk import RoundTrip, detour, round_trip, walk


@pytest.fixture
def fabric() -> Topology:
    return parse(TWO_BY_TWO)


def ip(*texts: str) -> tuple[ipaddress.IPv6Address, ...]:
    return tuple(map(ipaddress.IPv6Address, texts))


def test_a_path_is_walked_to_each_switch_and_back(fabric: Topology) -> None:
    walked = walk(fabric, fabric.path("a", "b", 0x1001))
    assert [trip.hops for trip in walked] == [
        ("a", "t0a"),
        ("a", "t0a", "t1b"),
        ("a", "t0a", "t1b", "t0b"),
    ]
    # The uSIDs of plane 1: T0 0x1100 and on, T1 0x1200 and on, a 0x1300.
    assert [trip.carriers for trip in walked] == [
        ip("fc00:0:1100:1300::"),
        ip("fc00:0:1100:1201:1100:1300::"),
        ip("fc00:0:1100:1201:1101:1201:1100:1300"),
    ]


def test_hosts_of_one_t0_have_one_switch_to_walk_to(fabric: Topology) -> None:
    (trip,) = walk(fabric, fabric.path("a", "c", 0))
    assert trip.hops == ("a", "t0a")


def test_a_block_of_48_bits_leaves_the_sixth_usid_to_a_second_address() -> None:
    fabric = parse(TWO_BY_TWO.replace("/32", "/48"))
    *_, last = walk(fabric, fabric.path("a", "b", 0))
    assert last.carriers == ip("fc00:0:0:100:200:101:200:100", "fc00:0:0:300::")


def test_links_are_named_from_the_lower_end_whichever_way_they_are_gone(fabric: Topology) -> None:
    trip = round_trip(fabric, 0, ("a", "t0a", "t1b", "t0b", "t1a"))
    assert trip.links == (("a", "t0a"), ("t0a", "t1b"), ("t0b", "t1b"), ("t0b", "t1a"))
    assert trip.switches == ("t0a", "t1b", "t0b", "t1a")
    assert str(trip) == "a t0a t1b t0b t1a"


def trips(fabric: Topology) -> dict[str, RoundTrip]:
    """Those of plane 0 from a to b."""
    found = (trip for path in fabric.paths("a", "b") for trip in walk(fabric, path))
    return {str(trip): trip for trip in found if trip.plane == 0}


def test_a_silent_t1_is_asked_for_by_way_of_another_one(fabric: Topology) -> None:
    every = trips(fabric)
    silent = every["a t0a t1a"]
    good = [every["a t0a"], every["a t0a t1b"], every["a t0a t1b t0b"]]
    way = detour(fabric, silent, good)
    assert way is not None
    assert way.hops == ("a", "t0a", "t1b", "t0b", "t1a")
    assert way.carriers == ip("fc00:0:100:201:101:200:101:201", "fc00:0:100:300::")
    assert detour(fabric, silent, good[:2]) is None
    assert detour(fabric, every["a t0a t1a t0b"], good) is None


def test_a_way_around_tells_a_dead_link_from_a_dead_switch(fabric: Topology) -> None:
    every = trips(fabric)
    bad = [every["a t0a t1a"], every["a t0a t1a t0b"]]
    good = [trip for trip in every.values() if trip not in bad]
    (either,) = localise(good, bad)
    assert str(either) == "link t0a-t1a or switch t1a of plane 0"
    around = detour(fabric, bad[0], good)
    assert around is not None
    assert [str(fault) for fault in localise([*good, around], bad)] == ["link t0a-t1a of plane 0"]
    assert [str(fault) for fault in localise(good, [*bad, around])] == ["switch t1a of plane 0"]


def test_a_way_that_two_addresses_do_not_hold_is_refused(fabric: Topology) -> None:
    far = ("a", "t0a", "t1a", "t0b", "t1b", "t0a", "t1a", "t0b")
    with pytest.raises(ConfigError, match=r"to t0b and back takes 14 uSIDs; two .* hold 12"):
        round_trip(fabric, 0, far)
