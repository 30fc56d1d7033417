# SPDX-License-Identifier: Apache-2.0
"""SRv6 in the core: EV <-> uSIDs <-> address, and the headers around a packet; scapy and
`mrc.topology`, which were written apart from it, as second opinions."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native.build import load
from packets import mapping_of, packet_of, vector_of, with_icrc
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrRouting, IPv6ExtHdrSegmentRouting
from scapy.packet import Raw
from topologies import TWO_BY_TWO

from mrc import wire
from mrc.errors import ProtocolError
from mrc.topology import Template
from mrc.topology_file import parse

ffi, lib = load("vnet")

BLOCKS = {4: "fc00::/32", 6: "2001:db8:77::/48"}
NONE = 6


def template(
    usids: list[int],
    *,
    block: str = "fc00::/32",
    uplink_hop: int = NONE,
    uplinks: int = 1,
    stride: int = 0x1000,
) -> Any:
    network = ipaddress.IPv6Network(block)
    return ffi.new(
        "mrc_srv6_template *",
        {
            "block": list(network.network_address.packed),
            "block_size": network.prefixlen // 8,
            "usid_count": len(usids),
            "uplink_hop": uplink_hop,
            "uplinks": uplinks,
            "plane_stride": stride,
            "usids": usids,
        },
    )


def of(path: Template) -> Any:
    hop = NONE if path.uplink_hop is None else path.uplink_hop
    return template(
        list(path.usids),
        block=str(path.block),
        uplink_hop=hop,
        uplinks=path.uplinks,
        stride=path.plane_stride,
    )


def address_of(path: Any, ev: int) -> ipaddress.IPv6Address:
    out = ffi.new("uint8_t[16]")
    lib.srv6_address(path, ev, out)
    return ipaddress.IPv6Address(bytes(out))


def ev_of(path: Any, address: ipaddress.IPv6Address) -> int | None:
    ev = ffi.new("uint32_t *")
    return ev[0] if lib.srv6_ev(path, address.packed, ev) else None


def usids_of(address: str, block_size: int) -> list[int] | None:
    out = ffi.new("uint16_t[]", lib.MRC_SRV6_USIDS)
    count = lib.srv6_usids(ipaddress.IPv6Address(address).packed, block_size, out)
    return None if count < 0 else list(out)[:count]


# Lists of every length, written out by hand (case 44).
LISTS = [
    ([0x301], 4, "fc00:0:301::"),
    ([0x100, 0x301], 4, "fc00:0:100:301::"),
    ([0x100, 0x200, 0x301], 4, "fc00:0:100:200:301::"),
    ([0x100, 0x200, 0x101, 0x301], 4, "fc00:0:100:200:101:301::"),
    ([1, 2, 3, 4, 5], 4, "fc00:0:1:2:3:4:5:0"),
    ([0xFFFF, 0xFFFE, 0xFFFD, 1, 2, 3], 4, "fc00:0:ffff:fffe:fffd:1:2:3"),
    ([0x301], 6, "2001:db8:77:301::"),
    ([0x100, 0x200, 0x101, 0x301], 6, "2001:db8:77:100:200:101:301:0"),
    ([1, 2, 3, 4, 5], 6, "2001:db8:77:1:2:3:4:5"),
]


@pytest.mark.parametrize(("usids", "block_size", "address"), LISTS)
def test_a_list_of_any_length_is_written_and_read_back(
    usids: list[int], block_size: int, address: str
) -> None:
    path = template(usids, block=BLOCKS[block_size])
    assert lib.srv6_is_valid(path, 1)
    assert address_of(path, 0) == ipaddress.IPv6Address(address)
    assert usids_of(address, block_size) == usids
    assert ev_of(path, ipaddress.IPv6Address(address)) == 0


@pytest.mark.parametrize(
    ("address", "block_size"),
    [
        ("fc00:0:100:0:101::", 4),  # a hole behind the first
        ("fc00:0:1:2:3:4:5:6", 2),  # seven behind a block of 16 bits
        ("fc00::1", 4),
        ("fc00:0:1::", 0),
        ("fc00:0:1::", 16),
        ("fc00:0:1::1", 5),  # an odd byte at the end that is not zero
    ],
)
def test_what_is_no_list_is_not_read(address: str, block_size: int) -> None:
    assert usids_of(address, block_size) is None


@pytest.mark.parametrize(
    ("usids", "options", "planes"),
    [
        ([], {}, 1),
        ([1, 0, 2], {}, 1),
        ([1, 2, 3, 4, 5, 6], {"block": "2001:db8:77::/48"}, 1),
        ([0xF301], {}, 2),
        ([0xFF00], {"uplink_hop": 0, "uplinks": 0x101}, 1),
        ([1], {"uplinks": 0}, 1),
        ([1], {"uplinks": 4097, "uplink_hop": 0}, 1),
        ([1], {}, 17),
        ([1], {"block": "fc00::/128"}, 1),
    ],
    ids=[
        "no uSID",
        "a zero",
        "six behind 48 bits",
        "over 16 bits in plane 1",
        "over 16 bits on an uplink",
        "no uplink",
        "too many uplinks",
        "too many planes",
        "all block",
    ],
)
def test_a_template_that_an_address_cannot_hold_is_refused(
    usids: list[int], options: dict[str, Any], planes: int
) -> None:
    assert not lib.srv6_is_valid(template(usids, **options), planes)


def test_a_template_without_a_block_means_no_srv6() -> None:
    assert lib.srv6_is_valid(ffi.new("mrc_srv6_template *"), 16)


@pytest.mark.parametrize("hosts", [("a", "b"), ("b", "c"), ("a", "c")])
def test_the_core_and_the_topology_agree_on_every_path(hosts: tuple[str, str]) -> None:
    fabric = parse(TWO_BY_TWO)
    path = of(fabric.template(*hosts))
    for each in fabric.paths(*hosts):
        ev = fabric.ev(each)
        assert address_of(path, 0xABCD_0000 | ev) == each.address
        assert ev_of(path, each.address) == ev


@given(st.integers(0, 15), st.integers(0, 2999), st.sampled_from([4, 6]))
def test_an_ev_and_its_address_name_each_other(plane: int, uplink: int, block_size: int) -> None:
    path = template(
        [0x100, 0x200, 0x101, 0xE00], block=BLOCKS[block_size], uplink_hop=1, uplinks=3000
    )
    ev = plane << 12 | uplink
    assert ev_of(path, address_of(path, ev)) == ev


@given(st.binary(min_size=16, max_size=16))
def test_an_address_that_names_an_ev_is_that_evs(address: bytes) -> None:
    path = template([0x100, 0x200, 0x101, 0x301], uplink_hop=1, uplinks=2)
    mixed = ipaddress.IPv6Address(bytes(address_of(path, 0x1001).packed[:9]) + address[9:])
    for each in (ipaddress.IPv6Address(address), mixed):
        ev = ev_of(path, each)
        assert ev is None or address_of(path, ev) == each


# The headers.

CARRIER = "fc00:0:100:200:101:301::"
VECTOR = vector_of("write_only", 6)


def wrapped(*, srh: bool, **fields: int) -> bytes:
    """Scapy's: the vector's packet behind an outer header."""
    inner = packet_of(VECTOR)
    source = str(ipaddress.IPv6Address(inner[8:24]))
    word = int.from_bytes(inner[:4], "big")
    outer = IPv6(
        src=source,
        dst=CARRIER,
        nh=43 if srh else 41,
        hlim=fields.get("hlim", inner[7]),
        tc=fields.get("tc", word >> 20 & 0xFF),
        fl=word & 0xFFFFF,
    )
    if srh:
        outer /= IPv6ExtHdrSegmentRouting(
            nh=41, addresses=[CARRIER], segleft=fields.get("segleft", 0), lastentry=0
        )
    return bytes(outer / Raw(inner))


srh_or_not = pytest.mark.parametrize("srh", [False, True], ids=["plain", "SRH"])


def srv6_mapping(*, srh: bool) -> dict[str, Any]:
    return {**mapping_of(VECTOR), "carrier": CARRIER, **({"srh": 1} if srh else {})}


@srh_or_not
def test_an_outer_header_is_written_as_scapy_writes_it(srh: bool) -> None:
    assert wire.encode(srv6_mapping(srh=srh)) == wrapped(srh=srh)


@srh_or_not
def test_an_outer_header_is_taken_off(srh: bool) -> None:
    assert wire.decode(wrapped(srh=srh)) == srv6_mapping(srh=srh)


@srh_or_not
def test_the_outer_header_has_no_part_in_the_icrc(srh: bool) -> None:
    """Case 52: other traffic class and hop limit outside, and the inner ICRC stays right."""
    changed = wire.decode(wrapped(srh=srh, hlim=3, tc=0x13))
    assert changed["ecn"] == 3
    assert wire.encode(srv6_mapping(srh=srh))[-4:] == with_icrc(packet_of(VECTOR))[-4:]


@pytest.mark.parametrize(
    ("outer", "inner", "read"), [(2, 2, 2), (3, 2, 3), (2, 3, 3), (0, 2, 2)], ids=str
)
def test_a_ce_mark_of_either_header_counts(outer: int, inner: int, read: int) -> None:
    packet = bytearray(wrapped(srh=False, tc=4 << 2 | outer))
    packet[41] = packet[41] & ~0x30 | inner << 4  # the ICRC reads ones there
    assert wire.decode(bytes(packet))["ecn"] == read


def test_a_trim_mark_is_read_from_the_outer_header() -> None:
    trimmed = mapping_of(VECTOR) | {"dscp": 12, "carrier": CARRIER}
    trimmed["fields"] = {k: v for k, v in VECTOR["fields"].items() if k != "payload"} | {
        "trimmed": 1,
        "pad": 0,
    }
    packet = bytearray(wire.encode(trimmed))
    packet[40:42] = b"\x60\x00"  # the switch marked the outer header alone
    assert wire.decode(bytes(packet)) == trimmed


@pytest.mark.parametrize(
    "packet",
    [
        wrapped(srh=True, segleft=1),
        bytes(IPv6(dst=CARRIER, nh=43) / IPv6ExtHdrRouting(nh=41) / Raw(packet_of(VECTOR))),
        bytes(
            IPv6(dst=CARRIER, nh=43)
            / IPv6ExtHdrSegmentRouting(nh=17, addresses=[CARRIER])
            / UDP(dport=4791)
        ),
        bytes(IPv6(dst=CARRIER, nh=41) / Raw(wrapped(srh=False))),
    ],
    ids=["segments left", "another routing header", "an SRH before UDP", "two outer headers"],
)
def test_what_is_not_for_us_is_refused(packet: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"IP header|lengths"):
        wire.decode(packet)


@given(st.integers(0, 255), st.integers(0, 200))
def test_an_srh_of_any_length_is_read_or_refused(length: int, size: int) -> None:
    packet = bytearray(wrapped(srh=True))
    packet[41] = length
    for each in (packet, packet[:size]):
        try:
            read = wire.decode(bytes(each))
        except ProtocolError:
            continue
        assert read == srv6_mapping(srh=True)


def test_a_carrier_around_ipv4_is_refused() -> None:
    with pytest.raises(ProtocolError, match="carrier"):
        wire.encode(mapping_of(vector_of("sack", 4)) | {"carrier": CARRIER})
