# SPDX-License-Identifier: Apache-2.0
"""Ethernet, IP and UDP around MRC packets, with scapy as the second opinion.

Frames are cut here as the kernel cuts a GSO frame: own lengths, IPv4 id counted up.
"""

from __future__ import annotations

import ipaddress
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native.build import load
from packets import bth_at, packet_of, vector_of, with_icrc
from scapy.contrib import roce
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrSegmentRouting,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

ffi, lib = load("wire")

ETHERNET = 14
CE = 3
ADDRESSES = {4: ("192.0.2.1", "198.51.100.2"), 6: ("fd00:1::1", "fd00:2::2")}
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")

both_versions = pytest.mark.parametrize("version", [4, 6])


def address(text: str) -> dict[str, Any]:
    parsed = ipaddress.ip_address(text)
    return {"version": parsed.version, "bytes": list(parsed.packed)}


def text_of(value: Any) -> str:
    size = 4 if value.version == 4 else 16
    return str(ipaddress.ip_address(bytes(value.bytes)[:size]))


def flow_between(source: str, destination: str, *, port: int = 4791) -> Any:
    macs = [list(bytes.fromhex(mac.replace(":", ""))) for mac in MACS]
    return ffi.new(
        "struct flow *",
        {
            "source": address(source),
            "destination": address(destination),
            "source_mac": macs[0],
            "destination_mac": macs[1],
            "udp_port": port,
        },
    )


def put(
    version: int,
    size: int,
    *,
    ev: int = 0x12345678,
    dscp: int = 4,
    ecn: int = 2,
    segments: int = 1,
) -> bytes:
    """The headers that encap_put writes around `size` bytes."""
    out = ffi.new("uint8_t[]", lib.ENCAP_SIZE_MAX)
    flow = flow_between(*ADDRESSES[version])
    written = lib.encap_put(flow, ev, dscp, ecn, size, segments, out)
    assert written == ETHERNET + bth_at(bytes([version << 4]))
    return bytes(ffi.buffer(out, written))


class Found:
    """What encap_get says of a frame; `payload` is what it takes for transport packets."""

    def __init__(self, data: bytes, *, ip: bool = False) -> None:
        self.data = ffi.new("uint8_t[]", data)  # the pointers of encap lead into it
        self.encap = ffi.new("struct encap *")
        read = lib.encap_get_ip if ip else lib.encap_get
        self.error = read(self.data, len(data), self.encap)
        if self.error == lib.ENCAP_OK:
            self.payload = bytes(ffi.buffer(self.encap.segments, self.encap.segments_size))
            self.source = text_of(self.encap.source)
            self.destination = text_of(self.encap.destination)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encap, name)


def around(version: int, payload: bytes, **fields: Any) -> Packet:
    """A packet that scapy builds, from its IP header on."""
    source, destination = ADDRESSES[version]
    ip = {4: IP, 6: IPv6}[version](src=source, dst=destination, **fields)
    return ip / UDP(sport=0x5678, dport=4791, chksum=0) / Raw(payload)


def framed(packet: Packet, **fields: Any) -> bytes:
    return bytes(Ether(src=MACS[0], dst=MACS[1], **fields) / packet)


def scapys_icrc(packet: bytes) -> bytes:
    """The ICRC of a packet from its IP header on; independent of what is bound to the UDP port."""
    bth = bth_at(packet)
    ip = (IP if packet[0] >> 4 == 4 else IPv6)(packet[: bth - 8])
    whole = ip / UDP(packet[bth - 8 : bth]) / roce.BTH(packet[bth:])
    whole[roce.BTH].icrc = None
    return bytes(whole)[-4:]


def our_icrc(ip: bytes, index: int, transport: bytes) -> bytes:
    """The ICRC of the `index`-th transport packet of a frame with these IP and UDP headers."""
    icrc = ffi.new("struct icrc *")
    lib.icrc_choose(icrc)
    state = lib.encap_icrc_start(icrc, ip, index, len(transport))
    state = lib.icrc_bth(icrc, state, transport)
    rest = transport[12:-4]
    out = ffi.new("uint8_t[4]")
    lib.icrc_store(icrc.update(state, rest, len(rest)), out)
    return bytes(out)


# ---- Writing


@both_versions
def test_scapy_reads_what_was_written(version: int) -> None:
    frame = Ether(put(version, 100, ev=0xABCD1234, dscp=46, ecn=2) + bytes(100))
    assert (frame.src, frame.dst) == MACS
    ip = frame.payload
    assert (ip.version, ip.src, ip.dst) == (version, *ADDRESSES[version])
    if version == 4:
        assert (ip.tos, ip.ttl, ip.id, ip.flags, ip.proto) == (46 << 2 | 2, 64, 0, "DF", 17)
        assert (ip.len, ip.ihl, ip.frag) == (128, 5, 0)
        ip.chksum, written = None, ip.chksum
        assert IP(bytes(ip)).chksum == written
    else:
        assert (ip.tc, ip.hlim, ip.nh, ip.plen) == (46 << 2 | 2, 64, 17, 108)
        assert ip.fl == 0xABCD
    assert (ip.payload.sport, ip.payload.dport, ip.payload.len) == (0x1234, 4791, 108)
    assert ip.payload.chksum == 0


def test_the_ipv4_checksum_is_right_for_every_carry() -> None:
    """RFC 1071: the words of a header with its checksum add up to a multiple of 65535."""
    flow = flow_between(*ADDRESSES[4])
    out = ffi.new("uint8_t[]", lib.ENCAP_SIZE_MAX)
    for word in range(1 << 16):
        flow.destination.bytes[2:4] = [word >> 8, word & 0xFF]
        lib.encap_put(flow, 1, 4, 2, 100, 1, out)
        header = bytes(out[ETHERNET : ETHERNET + 20])
        assert sum(struct.unpack("!10H", header)) % 0xFFFF == 0, word


@both_versions
def test_a_burst_carries_the_sum_that_completes_to_each_udp_checksum(version: int) -> None:
    """As the kernel does it: sum over header and data on top of what stands in the field."""
    payload = random.Random(version).randbytes(600)
    frame = put(version, len(payload), segments=3) + payload
    datagram = frame[ETHERNET + bth_at(frame[ETHERNET:]) - 8 :]
    total = sum(int.from_bytes(datagram[i : i + 2], "big") for i in range(0, len(datagram), 2))
    total = (total & 0xFFFF) + (total >> 16)
    completed = ~(total + (total >> 16)) & 0xFFFF
    whole = Ether(frame)
    whole[UDP].chksum = None
    assert Ether(bytes(whole))[UDP].chksum == completed


@settings(deadline=None)
@given(
    version=st.sampled_from((4, 6)),
    ev=st.integers(0, 2**32 - 1),
    dscp=st.integers(0, 63),
    payload=st.binary(max_size=200),
    segments=st.integers(1, 15),
)
def test_what_is_written_is_read_again(
    version: int, ev: int, dscp: int, payload: bytes, segments: int
) -> None:
    ecn = ev & 3
    headers = put(version, len(payload), ev=ev, dscp=dscp, ecn=ecn, segments=segments)
    found = Found(headers + payload)
    assert found.error == lib.ENCAP_OK
    assert (found.source, found.destination) == ADDRESSES[version]
    assert bytes(found.source_mac) == bytes.fromhex(MACS[0].replace(":", ""))
    assert (found.dscp, found.ecn, found.udp_port) == (dscp, ecn, 4791)
    assert found.ev == (ev & 0xFFFF if version == 4 else ev)
    assert found.payload == payload
    assert not found.cut


# ---- IPv6 in IPv6


def nested(outer_tc: int, inner_tc: int, payload: bytes = b"x" * 40) -> Packet:
    outer = IPv6(src="fd00:9::1", dst="fcbb:bb00:1:2:3::", tc=outer_tc, fl=0x77777)
    return outer / around(6, payload, tc=inner_tc, fl=0xF1234)


def test_of_ipv6_in_ipv6_addresses_and_ev_are_the_inner_ones() -> None:
    found = Found(framed(nested(0, 0)))
    assert found.error == lib.ENCAP_OK
    assert (found.source, found.destination) == ADDRESSES[6]
    assert found.ev == 0x12345678  # without the upper four bits of the label
    assert found.payload == b"x" * 40
    assert not found.cut


@pytest.mark.parametrize(
    ("outer", "inner", "ecn"), [(2, 2, 2), (3, 2, 3), (2, 3, 3), (3, 3, 3), (0, 2, 2), (3, 0, 3)]
)
def test_of_ipv6_in_ipv6_dscp_is_the_outer_one_and_either_ce_counts(
    outer: int, inner: int, ecn: int
) -> None:
    found = Found(framed(nested(12 << 2 | outer, 4 << 2 | inner)))
    assert (found.dscp, found.ecn) == (12, ecn)


def test_of_ipv6_in_ipv6_the_icrc_covers_the_inner_packet() -> None:
    packet = packet_of(vector_of("write_only", 6))
    outer = bytes(IPv6(src="fd00:9::1", dst="fcbb:bb00:1:2:3::", nh=41) / Raw(packet))
    found = Found(outer, ip=True)
    headers = bytes(ffi.buffer(found.ip, 48))
    assert our_icrc(headers, 0, found.payload) == packet[-4:]


def test_a_trimmed_ipv6_in_ipv6_is_cut_whichever_lengths_were_corrected() -> None:
    whole = bytes(nested(12 << 2, 0, b"y" * 400))
    for shorten in (False, True):
        cut = bytearray(whole[: 40 + 40 + 8 + 48])
        if shorten:
            cut[4:6] = (len(cut) - 40).to_bytes(2, "big")
        found = Found(bytes(cut), ip=True)
        assert (found.error, found.cut, found.payload) == (lib.ENCAP_OK, True, b"y" * 48)


def test_ipv6_is_nested_once_only() -> None:
    assert Found(framed(IPv6() / nested(0, 0))).error == lib.ENCAP_ERROR_PROTOCOL


def test_an_inner_packet_shorter_than_the_outer_says_is_refused() -> None:
    packet = nested(0, 0) / Raw(b"behind")
    packet[UDP].len = 48
    packet.getlayer(IPv6, 2).plen = 48
    assert Found(framed(packet)).error == lib.ENCAP_ERROR_LENGTH


# ---- ICRC of single packets and of bursts


@both_versions
@pytest.mark.parametrize("first_id", [0, 1, 0xFFFE])
@pytest.mark.parametrize(
    "sizes", [(1040,) * 15, (272, 272, 60), (44,)], ids=["full", "short last", "single"]
)
def test_the_icrc_of_each_packet_of_a_burst_is_scapys_of_the_cut_packet(
    version: int, first_id: int, sizes: tuple[int, ...]
) -> None:
    draw = random.Random(f"{version} {first_id} {sizes}")
    frame = put(version, sum(sizes), ev=draw.getrandbits(32), segments=len(sizes))[ETHERNET:]
    if version == 4:
        frame = frame[:4] + first_id.to_bytes(2, "big") + frame[6:]
    for index, size in enumerate(sizes):
        transport = b"\xc7\x00\xff\xff" + draw.randbytes(size - 4)
        udp = bytearray(frame[-8:])
        udp[4:8] = (8 + size).to_bytes(2, "big") + draw.randbytes(2)
        ip = bytearray(frame[:-8])
        if version == 4:
            ip[2:4] = (28 + size).to_bytes(2, "big")
            ip[4:6] = ((first_id + index) % 65536).to_bytes(2, "big")
            ip[10:12] = draw.randbytes(2)
        else:
            ip[4:6] = (8 + size).to_bytes(2, "big")
        cut = bytes(ip + udp) + transport
        assert our_icrc(frame, index, transport) == scapys_icrc(cut) == with_icrc(cut)[-4:]


@both_versions
def test_the_icrc_does_not_depend_on_what_the_network_changes(version: int) -> None:
    transport = packet_of(vector_of("sack"))[-52:]
    ip = put(version, len(transport))[ETHERNET:]
    expected = our_icrc(ip, 0, transport)
    mutable = {4: {1, 8, 10, 11, 26, 27}, 6: {1, 2, 3, 7, 46, 47}}[version]
    lengths = {4: {2, 3, 24, 25}, 6: {4, 5, 44, 45}}[version]  # the packet's own are taken
    for offset in range(1, len(ip)):
        changed = ip[:offset] + bytes([ip[offset] ^ 0xFF]) + ip[offset + 1 :]
        same = our_icrc(changed, 0, transport) == expected
        assert same == (offset in mutable | lengths), offset


# ---- What is refused


def ipv4_with(**fields: Any) -> bytes:
    return framed(around(4, b"z" * 40, **fields))


REFUSED: dict[str, bytes] = {
    "IPv4 options": ipv4_with(options=[IPOption_NOP()] * 4),
    "first IPv4 fragment": ipv4_with(flags="MF"),
    "later IPv4 fragment": ipv4_with(frag=3),
    "IPv4 header of four words": ipv4_with(ihl=4),
    "IPv6 fragment": framed(IPv6() / IPv6ExtHdrFragment(m=1) / UDP(dport=4791) / Raw(b"z" * 40)),
    "IPv6 hop-by-hop options": framed(IPv6() / IPv6ExtHdrHopByHop() / UDP() / Raw(b"z" * 40)),
    "IPv6 segment routing": framed(
        IPv6() / IPv6ExtHdrSegmentRouting(addresses=["::1"]) / UDP() / Raw(b"z" * 40)
    ),
    "TCP over IPv4": framed(IP() / TCP()),
    "TCP over IPv6": framed(IPv6() / TCP()),
    "TCP over IPv6 in IPv6": framed(IPv6() / IPv6() / TCP()),
    "IPv4 in IPv6": framed(IPv6() / IP() / UDP() / Raw(b"z" * 40)),
    "ARP": framed(ARP()),
    "a VLAN": framed(Dot1Q(vlan=5) / around(6, b"z" * 40)),
    "IPv6 of type IPv4": framed(around(6, b"z" * 40), type=0x0800),
    "IPv4 of type IPv6": framed(around(4, b"z" * 40), type=0x86DD),
    "IP version 5": framed(IPv6(version=5) / UDP() / Raw(b"z" * 40)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_plain_ip_and_udp_is_refused(case: str) -> None:
    assert Found(REFUSED[case]).error == lib.ENCAP_ERROR_PROTOCOL


def test_df_and_an_ipv4_id_are_not_refused() -> None:
    for flags in (0, "DF"):
        assert Found(ipv4_with(flags=flags, id=77)).error == lib.ENCAP_OK


@both_versions
def test_a_frame_that_ends_in_its_headers_is_short_and_one_that_ends_later_is_cut(
    version: int,
) -> None:
    frame = framed(around(version, b"w" * 40))
    headers = len(frame) - 40
    for size in range(len(frame)):
        found = Found(frame[:size])
        if size < headers:
            assert found.error == lib.ENCAP_ERROR_SHORT, size
        else:
            assert found.error == lib.ENCAP_OK, size
            assert found.cut
            assert found.payload == b"w" * (size - headers)
    assert not Found(frame).cut


def test_a_nested_frame_that_ends_in_its_headers_is_short() -> None:
    frame = framed(nested(0, 0))
    for size in range(len(frame) - 40):
        assert Found(frame[:size]).error == lib.ENCAP_ERROR_SHORT, size


@both_versions
def test_ethernet_padding_is_left_out(version: int) -> None:
    found = Found(framed(around(version, b"v" * 16)) + bytes(30))
    assert (found.error, found.cut, found.payload) == (lib.ENCAP_OK, False, b"v" * 16)


@both_versions
@pytest.mark.parametrize("udp_length", [0, 7, 8, 47])
def test_a_udp_length_below_what_ip_says_is_refused(version: int, udp_length: int) -> None:
    packet = around(version, b"u" * 40)
    packet[UDP].len = udp_length
    assert Found(framed(packet)).error == lib.ENCAP_ERROR_LENGTH


@both_versions
def test_a_udp_length_above_what_ip_says_is_a_cut(version: int) -> None:
    packet = around(version, b"u" * 40)
    packet[UDP].len = 49
    found = Found(framed(packet))
    assert (found.error, found.cut, found.payload) == (lib.ENCAP_OK, True, b"u" * 40)


def test_an_ipv4_length_below_its_header_is_refused() -> None:
    assert Found(ipv4_with(len=19)).error == lib.ENCAP_ERROR_LENGTH


@both_versions
def test_an_ip_length_that_leaves_no_room_for_udp_is_short(version: int) -> None:
    fields = {"len": 27} if version == 4 else {"plen": 7}
    assert Found(framed(around(version, b"u" * 40, **fields))).error == lib.ENCAP_ERROR_SHORT


# ---- Addresses


def test_addresses_are_equal_when_version_and_bytes_are() -> None:
    texts = ["0.0.0.0", "192.0.2.1", "192.0.2.2", "::", "fd00::1", "fd00::2"]
    made = [ffi.new("struct address *", address(text)) for text in texts]
    for i, a in enumerate(made):
        for j, b in enumerate(made):
            assert lib.address_equal(a, b) == (i == j), (texts[i], texts[j])


def test_no_address_equals_no_address_alone() -> None:
    none, zero = ffi.new("struct address *"), ffi.new("struct address *", address("0.0.0.0"))
    assert lib.address_equal(none, ffi.new("struct address *"))
    assert not lib.address_equal(none, zero)
