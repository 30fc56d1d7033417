# SPDX-License-Identifier: Apache-2.0
"""Planes of one host and of two: the parts that need no interface but lo."""

from __future__ import annotations

import ipaddress

import pytest

from mrc.errors import ConfigError
from mrc.planes import Interface, RemotePlane, discover, next_hop, pair, parse_spec


def plane(number: int, address: str, *, name: str = "", plane_id: str = "") -> RemotePlane:
    interface = ipaddress.ip_interface(address)
    return RemotePlane(
        number=number,
        id=plane_id,
        name=name or f"p{number}",
        address=interface.ip,
        prefix=interface.network.prefixlen,
        mtu=1500,
    )


def numbers(ours: list[RemotePlane], theirs: list[RemotePlane]) -> list[tuple[int, int]]:
    return [(one.number, other.number) for one, other in pair(ours, theirs)]


def test_planes_named_by_both_sides_are_paired_by_id() -> None:
    ours = [plane(0, "fd00:1::1/64", plane_id="a"), plane(1, "fd00:2::1/64", plane_id="b")]
    theirs = [plane(0, "fd00:1::2/64", plane_id="b"), plane(1, "fd00:2::2/64", plane_id="a")]
    assert numbers(ours, theirs) == [(0, 1), (1, 0)]


def test_planes_of_unlike_ids_are_never_paired() -> None:
    ours = [plane(0, "fd00:1::1/64", plane_id="a")]
    theirs = [plane(0, "fd00:1::2/64", plane_id="b")]
    assert numbers(ours, theirs) == []


def test_a_shared_subnet_pairs_planes_in_whatever_order() -> None:
    ours = [plane(0, "fd00:1::1/64"), plane(1, "10.0.2.1/24"), plane(2, "fd00:3::1/64")]
    theirs = [plane(0, "fd00:3::2/64"), plane(1, "fd00:1::2/64"), plane(2, "10.0.2.2/24")]
    assert numbers(ours, theirs) == [(0, 1), (1, 2), (2, 0)]


def test_routed_and_link_local_planes_are_paired_in_order() -> None:
    ours = [plane(0, "fe80::1/64"), plane(1, "fd00:1::1/64")]
    theirs = [plane(0, "fe80::2/64"), plane(1, "fd00:9::1/64")]
    assert numbers(ours, theirs) == [(0, 0), (1, 1)]


def test_planes_in_one_subnet_are_paired_one_to_one() -> None:
    ours = [plane(0, "fd00::1/64"), plane(1, "fd00::2/64")]
    theirs = [plane(0, "fd00::3/64"), plane(1, "fd00::4/64")]
    assert numbers(ours, theirs) == [(0, 0), (1, 1)]


def test_unequal_counts_leave_the_rest_unpaired() -> None:
    ours = [plane(0, "fd00:1::1/64"), plane(1, "fd00:2::1/64"), plane(2, "fd00:3::1/64")]
    assert numbers(ours, [plane(0, "fd00:3::2/64")]) == [(2, 0)]


def test_ip_versions_are_never_mixed() -> None:
    assert numbers([plane(0, "fd00:1::1/64")], [plane(0, "10.0.0.1/24")]) == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("eth1", ("", "eth1", None)),
        ("a=eth1", ("a", "eth1", None)),
        ("eth1/10.0.0.1", ("", "eth1", ipaddress.ip_address("10.0.0.1"))),
        ("a=eth1/fd00::1", ("a", "eth1", ipaddress.ip_address("fd00::1"))),
    ],
)
def test_a_plane_is_named_by_id_interface_and_address(spec: str, expected: object) -> None:
    assert parse_spec(spec) == expected


@pytest.mark.parametrize("spec", ["", "=eth1", "eth1/", "eth1/1.2.3", "a name", "x" * 16])
def test_a_wrong_plane_name_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="planes"):
        parse_spec(spec)


def test_loopback_is_never_found_and_the_reason_is_told() -> None:
    found = discover(dad_timeout=0)
    assert found.excluded["lo"] == "loopback"
    assert all(plane.interface.name != "lo" for plane in found.planes)


def test_an_interface_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no interface nosuch0"):
        discover(["nosuch0"])


def test_an_interface_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        discover(["lo", "b=lo"])


def test_a_neighbour_on_the_link_is_its_own_next_hop() -> None:
    interface = Interface(
        name="p0",
        index=1,
        address=ipaddress.ip_address("fd00:1::1"),
        prefix=64,
        mtu=1500,
        up=True,
    )
    neighbour = ipaddress.ip_address("fd00:1::2")
    assert next_hop(interface, neighbour) == neighbour
    assert next_hop(interface, ipaddress.ip_address("10.0.0.1")) is None
