# SPDX-License-Identifier: Apache-2.0
"""The fabric and its paths: EV, hops and uSID address of each, and the tables of its switches."""

from __future__ import annotations

import ipaddress

import pytest
from topologies import TWO_BY_TWO

from mrc.errors import ConfigError
from mrc.topology import Forwarding, Topology
from mrc.topology_file import parse


def ip(text: str) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(text)


@pytest.fixture
def fabric() -> Topology:
    return parse(TWO_BY_TWO)


# EV, hops and address, worked out by hand from the file.
A_TO_B = [
    (0x0000, "a t0a t1a t0b b", "fc00:0:100:200:101:301::"),
    (0x0001, "a t0a t1b t0b b", "fc00:0:100:201:101:301::"),
    (0x1000, "a t0a t1a t0b b", "fc00:0:1100:1200:1101:1301::"),
    (0x1001, "a t0a t1b t0b b", "fc00:0:1100:1201:1101:1301::"),
]


def test_every_path_has_its_ev_hops_and_address(fabric: Topology) -> None:
    found = [(fabric.ev(path), str(path), path.address) for path in fabric.paths("a", "b")]
    assert found == [(ev, hops, ip(address)) for ev, hops, address in A_TO_B]


@pytest.mark.parametrize(("ev", "hops", "address"), A_TO_B)
def test_an_ev_and_an_address_name_the_same_path(
    fabric: Topology, ev: int, hops: str, address: str
) -> None:
    path = fabric.path("a", "b", ev)
    assert (str(path), path.plane) == (hops, ev >> 12)
    assert fabric.path_of_address("a", "b", ip(address)) == path


def test_the_upper_half_of_an_ev_names_no_path(fabric: Topology) -> None:
    assert fabric.path("a", "b", 0xABCD_1001) == fabric.path("a", "b", 0x1001)


def test_each_switch_shifts_its_usid_out_of_the_address(fabric: Topology) -> None:
    assert fabric.path("a", "b", 0x1001).seen == (
        ip("fc00:0:1100:1201:1101:1301::"),
        ip("fc00:0:1201:1101:1301::"),
        ip("fc00:0:1101:1301::"),
        ip("fc00:0:1301::"),
    )


def test_a_48_bit_block_stands_before_the_same_usids(fabric: Topology) -> None:
    longer = parse(TWO_BY_TWO.replace("fc00::/32", "2001:db8:77::/48"))
    assert longer.path("a", "b", 1).address == ip("2001:db8:77:100:201:101:301::")


def test_hosts_of_one_t0_have_one_path_a_plane(fabric: Topology) -> None:
    paths = fabric.paths("a", "c")
    assert [(fabric.ev(path), str(path), path.address) for path in paths] == [
        (0x0000, "a t0a c", ip("fc00:0:100:302::")),
        (0x1000, "a t0a c", ip("fc00:0:1100:1302::")),
    ]
    assert fabric.path("a", "c", 0x1FFF) == paths[1]


def test_structured_evs_hold_the_uplink_in_their_highest_free_bits() -> None:
    names = ", ".join(f'"s{number}"' for number in range(5))
    fabric = parse('routing = "stev"\n' + TWO_BY_TWO.replace('"t1a", "t1b"', names))
    # Three bits below the plane's four; what stands below them is free.
    path = fabric.path("a", "b", 0x1_1_8FF)
    assert (path.plane, path.uplink, path.hops[2]) == (1, 4, "s4")
    assert fabric.ev(path) == 0x1800
    assert fabric.forwarding(0)["t0a"].field == (9, 3)
    assert set(path.seen) == {fabric.address("b", 1)}
    # What is drawn below this names one of the five uplinks.
    assert fabric.template("a", "b").ev_values == 0xA00
    assert fabric.template("a", "c").ev_values == 0x1000


@pytest.mark.parametrize("ev", [0x0002, 0x0FFF, 0x2000, 0xF000], ids=hex)
def test_an_ev_of_no_path_is_refused(fabric: Topology, ev: int) -> None:
    with pytest.raises(ConfigError, match=r"uplink|plane"):
        fabric.path("a", "b", ev)


@pytest.mark.parametrize(
    "address",
    [
        "fc00:0:100:202:101:301::",  # no third uplink
        "fc00:0:100:1ff:101:301::",
        "fc00:0:2100:2200:2101:2301::",  # no third plane
        "fc00:0:1100:200:1101:1301::",  # two planes in one
        "fc00:0:100:200:101:301::1",
        "fc01:0:100:200:101:301::",
        "fc00:0:200:101:301::",  # as the second hop sees it
    ],
)
def test_an_address_that_is_no_carrier_names_no_path(fabric: Topology, address: str) -> None:
    with pytest.raises(ConfigError, match="the carrier of no path from a to b"):
        fabric.path_of_address("a", "b", ip(address))


@pytest.mark.parametrize(("source", "destination"), [("a", "x"), ("x", "a"), ("a", "a")])
def test_hosts_between_which_no_path_can_be_are_refused(
    fabric: Topology, source: str, destination: str
) -> None:
    with pytest.raises(ConfigError, match=r"host 'x'|to itself"):
        fabric.paths(source, destination)


def test_hosts_have_an_address_in_every_plane(fabric: Topology) -> None:
    assert fabric.address("b", 1) == ip("fd00:1::2")
    assert fabric.host_of(ip("fd00:1::2")) == fabric.host("b")
    assert fabric.host_of(ip("fd00:2::2")) is None
    assert fabric.host_of(ipaddress.IPv4Address("10.0.0.1")) is None


def test_every_switch_has_its_static_tables(fabric: Topology) -> None:
    tables = fabric.forwarding(1)
    assert list(tables) == ["t0a", "t0b", "t1a", "t1b"]
    assert tables["t0a"] == Forwarding(
        usid=0x1100,
        ports=("a", "c", "t1a", "t1b"),
        usids={0x1300: "a", 0x1302: "c", 0x1200: "t1a", 0x1201: "t1b"},
        addresses={
            ip("fd00:1::1"): ("a",),
            ip("fd00:1::2"): ("t1a", "t1b"),
            ip("fd00:1::3"): ("c",),
        },
        field=None,
    )
    assert tables["t1b"] == Forwarding(
        usid=0x1201,
        ports=("t0a", "t0b"),
        usids={0x1100: "t0a", 0x1101: "t0b"},
        addresses={
            ip("fd00:1::1"): ("t0a",),
            ip("fd00:1::2"): ("t0b",),
            ip("fd00:1::3"): ("t0a",),
        },
        field=None,
    )


def test_packets_that_follow_the_tables_take_the_predicted_path(fabric: Topology) -> None:
    for path in (*fabric.paths("a", "b"), *fabric.paths("b", "c"), *fabric.paths("c", "a")):
        tables = fabric.forwarding(path.plane)
        usids = list(path.usids)
        at = path.hops[1]
        walked = [path.hops[0]]
        while at in tables:
            walked.append(at)
            assert usids.pop(0) == tables[at].usid
            at = tables[at].usids[usids[0]]
        assert (*walked, at) == path.hops


def test_every_cable_is_listed_with_its_rate_and_delay(fabric: Topology) -> None:
    cables = [(c.plane, c.lower, c.upper, c.link.rate, c.link.delay) for c in fabric.cables()]
    assert len(cables) == len(set(cables)) == 2 * (3 + 2 * 2)
    assert cables[0] == (0, "a", "t0a", 10**9, 100_000)
    assert (1, "t0b", "t1a", 2_500_000_000, 1_000_000) in cables
