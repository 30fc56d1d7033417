# SPDX-License-Identifier: Apache-2.0
"""`mrc.wire` against the vectors, and the readers of the wire formats against everything else."""

from __future__ import annotations

import itertools
import random
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native.build import load
from packets import (
    IDS,
    VECTORS,
    bth_at,
    change,
    mapping_of,
    masked_bits,
    packet_of,
    sound,
    vector_of,
    with_icrc,
    with_lengths,
)

from mrc.errors import ProtocolError
from mrc.wire import decode, encode

OPCODES = {
    "write_first": 0xC6,
    "write_middle": 0xC7,
    "write_last": 0xC8,
    "write_last_imm": 0xC9,
    "write_only": 0xCA,
    "write_only_imm": 0xCB,
    "ack": 0xD1,
    "endpoint_request": 0xD8,
    "endpoint_response": 0xD9,
    "sack": 0xDC,
    "nack": 0xDD,
    "probe": 0xDE,
}
WRITES = [name for name in OPCODES if name.startswith("write_")]
OTHERS = [name for name in OPCODES if not name.startswith("write_")]
MUTATIONS = 1_000_000
TRIMMED = 12
TRIMMED_LASTHOP = 16

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=IDS)


# The specification's widths in bits, written down once more; negative: two's complement.
BTH = {"se": 1, "dest_qp": 24, "ack_request": 1, "rtx": 1, "psn": 24}
TSETH = {"tx_timestamp": 16, "tsr": 1, "ftype": 4}
WRITE = {"rqmsn": 16, "msn": 16, "va": 64, "r_key": 32, "dma_length": 32}
EXTENSIONS = {
    "ack": {"syndrome": 8, "msn": 24},
    "endpoint_request": {"op": 2, "vendor_info": 8, "port_status_mask": 32, **TSETH},
    "endpoint_response": {"op": 2, "tx_timestamp": 16},
    "sack": {
        "m": 2,
        "pr": 1,
        "ack_psn_offset": -16,
        "entropy": 32,
        "spdcid": 16,
        "dpdcid": 16,
        "cack_psn": 24,
        "cc_type": 4,
        "cc_fl": 4,
        "mpr": 8,
        "sack_offset": -16,
        "sack_bitmap": 64,
        "tx_timestamp": 16,
        "ooo_count": 15,
        "r_c": 1,
        "rcv_cwnd_pen": 7,
        "rcvd_bytes": 24,
    },
    "nack": {
        "reason": 8,
        "vendor_info": 8,
        "entropy": 32,
        "spdcid": 16,
        "dpdcid": 16,
        "nack_psn": 24,
        "cc_fl": 4,
        "tx_timestamp": 16,
    },
    "probe": {"vendor_info": 8, "probe_id": 16, "spdcid": 16, "dpdcid": 16, **TSETH},
}


def widths_of(name: str, *, ts: bool = False) -> dict[str, int]:
    """The integer fields of an opcode, but for `ts` and `pad`."""
    if name not in WRITES:
        return BTH | EXTENSIONS[name]
    immediate = {"immediate": 32} if name.endswith("_imm") else {}
    return BTH | WRITE | (TSETH if ts else {}) | immediate


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(*limits(bits))


def limits(bits: int) -> tuple[int, int]:
    return (0, (1 << bits) - 1) if bits > 0 else (-(1 << -bits - 1), (1 << -bits - 1) - 1)


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    """Any packet that MRC can say."""
    name = draw(st.sampled_from(list(OPCODES)))
    version = draw(st.sampled_from((4, 6)))
    addresses = (st.ip_addresses(v=4) if version == 4 else st.ip_addresses(v=6)).map(str)
    is_write = name in WRITES
    ts = draw(integers(1)) if is_write else 0
    widths = widths_of(name, ts=ts == 1)
    payload = draw(st.binary(max_size=300)) if is_write or name == "endpoint_request" else b""
    fields: dict[str, Any] = {field: draw(integers(bits)) for field, bits in widths.items()}
    fields |= {"ts": ts, "pad": -len(payload) % 4}
    if is_write or payload:
        fields["payload"] = payload.hex()
    return {
        "name": name,
        "opcode": OPCODES[name],
        "ip_version": version,
        "src": draw(addresses),
        "dst": draw(addresses),
        "dscp": draw(integers(6)),
        "ecn": draw(integers(2)),
        "ev": draw(integers(16 if version == 4 else 32)),
        "fields": fields,
    }


def a_mapping(name: str, **changed: object) -> dict[str, Any]:
    """A vector's mapping, with fields set, or removed where None is given."""
    mapping = mapping_of(vector_of(name))
    fields = {**mapping["fields"], **changed}
    return {**mapping, "fields": {k: v for k, v in fields.items() if v is not None}}


def write_headers(packet: bytes) -> tuple[int, int]:
    """Where RETH, and where ImmDt or else RETH end in a write."""
    bth = bth_at(packet)
    reth_end = bth + 12 + 4 + (4 if packet[bth + 8] & 0x10 else 0) + 16
    return reth_end, reth_end + (4 if packet[bth] in {0xC9, 0xCB} else 0)


def with_dscp(packet: bytes, dscp: int) -> bytes:
    """As a switch does it: the ICRC does not cover the traffic class."""
    if packet[0] >> 4 == 4:
        return change(packet, 1, dscp << 2, 0xFC)
    return change(change(packet, 0, dscp >> 2, 0x0F), 1, dscp << 6, 0xC0)


# ---- The vectors


@every_vector
def test_a_vector_decodes_to_exactly_its_mapping(vector: dict[str, Any]) -> None:
    assert decode(packet_of(vector)) == mapping_of(vector)


@every_vector
def test_a_vector_is_encoded_byte_for_byte(vector: dict[str, Any]) -> None:
    assert encode(mapping_of(vector)) == packet_of(vector)


def test_the_vectors_name_every_opcode() -> None:
    assert {(vector["name"], vector["opcode"]) for vector in VECTORS} == set(OPCODES.items())


@every_vector
def test_every_truncation_of_a_vector_is_refused(vector: dict[str, Any]) -> None:
    packet = packet_of(vector)
    for size in range(len(packet)):
        with pytest.raises(ProtocolError):
            decode(packet[:size])


@every_vector
def test_a_truncation_with_corrected_lengths_and_icrc_is_refused_or_a_shorter_packet(
    vector: dict[str, Any],
) -> None:
    packet = packet_of(vector)
    bth = bth_at(packet)
    whole = decode(packet)
    for size in range(bth + 4 + 12, len(packet)):
        cut = sound(packet[:size])
        try:
            shorter = decode(cut)
        except ProtocolError:
            continue
        # Only a payload can be shorter, and only by words: the pad count stays.
        assert (len(packet) - size) % 4 == 0
        payload = str(shorter["fields"].pop("payload", ""))
        assert str(whole["fields"]["payload"]).startswith(payload)
        assert shorter["fields"] == {k: v for k, v in whole["fields"].items() if k != "payload"}


@every_vector
def test_every_flipped_bit_is_noticed_or_one_that_the_icrc_masks(vector: dict[str, Any]) -> None:
    packet = packet_of(vector)
    mask = masked_bits(packet)
    for offset, bit in itertools.product(range(len(packet)), range(8)):
        flipped = change(packet, offset, ~packet[offset], 1 << bit)
        if mask[offset] >> bit & 1:
            assert decode(flipped)["fields"] == vector["fields"], (offset, bit)
        else:
            with pytest.raises(ProtocolError):
                decode(flipped)


@every_vector
def test_a_byte_behind_the_packet_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="more than its length says"):
        decode(packet_of(vector) + b"\0")


# ---- Round trips


@settings(deadline=None, max_examples=200)
@given(mapping=mappings())
def test_what_is_encoded_decodes_to_the_same_mapping(mapping: dict[str, Any]) -> None:
    assert decode(encode(mapping)) == mapping


@settings(deadline=None)
@given(mapping=mappings(), port=integers(16))
def test_any_udp_port_may_be_used_if_both_sides_name_it(mapping: dict[str, Any], port: int) -> None:
    packet = encode(mapping, udp_port=port)
    assert int.from_bytes(packet[bth_at(packet) - 6 :][:2], "big") == port
    assert decode(packet, udp_port=port) == mapping
    with pytest.raises(ProtocolError, match="destination port"):
        decode(packet, udp_port=port ^ 1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 255, 256, 1024, 4095, 4096, 8192])
def test_a_payload_of_any_size_is_padded_to_a_multiple_of_four(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    packet = encode(a_mapping("write_only", payload=payload.hex(), pad=None))
    headers, _ = write_headers(packet)
    pad = (4 - size % 4) % 4
    assert packet[headers:-4] == payload + bytes(pad)
    assert packet[bth_at(packet) + 1] >> 4 & 3 == pad
    assert decode(packet)["fields"]["pad"] == pad


@settings(deadline=None)
@given(mapping=mappings(), kind=st.sampled_from((bytes, bytearray, memoryview)))
def test_any_buffer_is_decoded(mapping: dict[str, Any], kind: Any) -> None:
    assert decode(kind(encode(mapping))) == mapping


def test_the_constants_of_encode_are_hop_limit_64_df_id_0_and_no_udp_checksum() -> None:
    v4, v6 = (encode(mapping_of(vector_of("sack", version))) for version in (4, 6))
    assert v4[4:10] == bytes.fromhex("0000 4000 40 11")
    assert v6[6:8] == bytes.fromhex("11 40")
    assert v4[26:28] == v6[46:48] == b"\0\0"


# ---- Mutations


def test_a_million_mutations_are_refused_or_decoded_to_what_encodes_back() -> None:
    ffi, lib = load("wire")
    result = ffi.new("struct fuzz_wire *")
    count = MUTATIONS // len(VECTORS) + 1
    for seed, vector in enumerate(VECTORS):
        packet = packet_of(vector)
        before = result.violations
        assert lib.fuzz_wire(packet, len(packet), seed, count, result) == 0
        assert result.violations == before, f"fuzz_wire(VECTORS[{seed}], seed={seed}, {count})"
    assert result.refused + result.decoded == count * len(VECTORS) >= MUTATIONS
    # Neither side may be starved, or the mutations prove little.
    assert min(result.refused, result.decoded, result.parsed) > MUTATIONS // 10


def test_every_truncation_is_read_within_its_memory() -> None:
    """In a sanitized build (MRC_SANITIZE=1) a read beyond ends the program."""
    ffi, lib = load("wire")
    result = ffi.new("struct fuzz_wire *")
    for vector, dscp in itertools.product(VECTORS, (None, TRIMMED, TRIMMED_LASTHOP)):
        packet = packet_of(vector) if dscp is None else with_dscp(packet_of(vector), dscp)
        assert lib.fuzz_wire_cuts(packet, len(packet), result) == 0
    assert result.violations == 0
    assert result.refused + result.decoded == 3 * sum(len(packet_of(v)) for v in VECTORS)
    assert result.decoded > 0


@settings(deadline=None, max_examples=500)
@given(data=st.binary(max_size=120))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


# ---- Reserved bits and values that MRC does not have


# Bytes from the BTH on, and their reserved bits (MRC 1.0).
RESERVED: dict[str, dict[int, int]] = {
    "endpoint_request": {13: 0x7C, 14: 0xFF, **dict.fromkeys(range(20, 24), 0xFF), 26: 0x7F},
    "endpoint_response": {
        13: 0x73,
        **dict.fromkeys(range(14, 40), 0xFF),
        **dict.fromkeys(range(42, 48), 0xFF),
    },
    "sack": {13: 0x1D, 24: 0xFF, 42: 0x80},
    "nack": {13: 0x7F, 24: 0xFF, 29: 0xFF},
    "probe": {13: 0x7F, 14: 0xFF, 18: 0xFF, 19: 0xFF, 26: 0x7F},
}


@pytest.mark.parametrize("name", OPCODES)
def test_reserved_bits_are_passed_over_and_written_as_zero(name: str) -> None:
    packet = packet_of(vector_of(name))
    bth = bth_at(packet)
    reserved = {1: 0x40, 4: 0xFF, 8: 0x4F, **RESERVED.get(name, {})}
    for offset, bits in reserved.items():
        assert packet[bth + offset] & bits == 0, offset
        packet = change(packet, bth + offset, 0xFF, bits)
    assert decode(with_icrc(packet)) == mapping_of(vector_of(name))


@pytest.mark.parametrize("name", WRITES)
def test_reserved_bits_of_a_tseth_are_passed_over(name: str) -> None:
    mapping = a_mapping(name, ts=1, tx_timestamp=0x1234, tsr=0, ftype=1)
    packet = encode(mapping)
    flags = bth_at(packet) + 12 + 4 + 2
    assert packet[flags : flags + 2] == b"\x00\x01"
    packet = packet[:flags] + b"\x7f\xf1" + packet[flags + 2 :]
    assert decode(with_icrc(packet)) == mapping


def test_every_opcode_that_mrc_does_not_have_is_refused_by_its_number() -> None:
    packet = packet_of(vector_of("ack"))
    for opcode in set(range(256)) - set(OPCODES.values()):
        with pytest.raises(ProtocolError, match=f"opcode 0x{opcode:02x} is not one of MRC's"):
            decode(with_icrc(change(packet, bth_at(packet), opcode)))


@pytest.mark.parametrize("name", OPCODES)
def test_another_version_or_p_key_is_refused(name: str) -> None:
    packet = packet_of(vector_of(name))
    for offset, value in ((1, packet[bth_at(packet) + 1] | 1), (2, 0x7F), (3, 0xFE)):
        with pytest.raises(ProtocolError, match=f"^{name}: "):
            decode(with_icrc(change(packet, bth_at(packet) + offset, value)))


@pytest.mark.parametrize("name", OTHERS)
def test_ts_is_refused_where_no_tseth_can_follow(name: str) -> None:
    packet = packet_of(vector_of(name))
    with pytest.raises(ProtocolError, match="TS"):
        decode(with_icrc(change(packet, bth_at(packet) + 8, 0x10, 0x10)))
    with pytest.raises(ProtocolError, match="TS"):
        encode(a_mapping(name, ts=1))


@pytest.mark.parametrize("name", sorted(set(OTHERS) - {"ack"}))
@pytest.mark.parametrize(("offset", "bit"), [(12, 0x80), (12, 0x10), (12, 0x01), (13, 0x80)])
def test_an_extension_of_another_type_or_with_a_next_header_is_refused(
    name: str, offset: int, bit: int
) -> None:
    packet = packet_of(vector_of(name))
    with pytest.raises(ProtocolError, match="type"):
        decode(with_icrc(change(packet, bth_at(packet) + offset, bit, bit)))


def test_a_nack_of_another_congestion_control_type_is_refused() -> None:
    packet = packet_of(vector_of("nack"))
    for cc_type in set(range(16)) - {2}:
        with pytest.raises(ProtocolError):
            decode(with_icrc(change(packet, bth_at(packet) + 28, cc_type << 4, 0xF0)))


# ---- Payload and pad


@pytest.mark.parametrize("name", sorted(set(OTHERS) - {"endpoint_request"}))
def test_a_payload_behind_an_opcode_without_one_is_refused(name: str) -> None:
    packet = packet_of(vector_of(name))
    with pytest.raises(ProtocolError, match="payload"):
        decode(sound(packet[:-4] + bytes(8)))
    with pytest.raises(ProtocolError, match="unknown payload"):
        encode(a_mapping(name, payload="00000000"))


def test_an_endpoint_request_may_be_padded_to_full_size() -> None:
    mapping = a_mapping("endpoint_request", payload=bytes(4000).hex())
    packet = encode(mapping)
    assert len(packet) == bth_at(packet) + 12 + 16 + 4000 + 4
    assert decode(packet) == mapping


@pytest.mark.parametrize("name", WRITES)
def test_payload_and_pad_must_be_whole_words(name: str) -> None:
    packet = packet_of(vector_of(name))
    for extra in (1, 2, 3):
        with pytest.raises(ProtocolError, match="pad"):
            decode(sound(packet[:-4] + bytes(extra + 4)))


@pytest.mark.parametrize("name", OPCODES)
def test_a_pad_longer_than_what_there_is_is_refused(name: str) -> None:
    changed: dict[str, object] = {"payload": "", "pad": 0} if name in WRITES else {}
    packet = encode(a_mapping(name, **changed))
    for pad in (1, 2, 3):
        with pytest.raises(ProtocolError, match="pad"):
            decode(with_icrc(change(packet, bth_at(packet) + 1, pad << 4, 0x30)))


# ---- Trimmed packets


@pytest.mark.parametrize("dscp", [TRIMMED, TRIMMED_LASTHOP])
@pytest.mark.parametrize("lengths", ["ip", "both", "none"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", WRITES)
def test_a_trimmed_write_is_read_from_its_headers(
    name: str, version: int, lengths: str, dscp: int
) -> None:
    """Whatever lengths the switch has corrected: of IP alone, of UDP too, or none."""
    mapping = a_mapping(name) | {"ip_version": version, "ev": 0x1234}
    mapping |= {4: {"src": "1.2.3.4", "dst": "5.6.7.8"}, 6: {"src": "fd00::1", "dst": "::2"}}[
        version
    ]
    whole = with_dscp(encode(mapping), dscp)
    reth_end, headers_end = write_headers(whole)
    for size in range(bth_at(whole), len(whole)):
        cut = whole[:size]
        if lengths == "both":
            cut = with_lengths(cut)
        elif lengths == "ip":
            at, length = (2, size) if version == 4 else (4, size - 40)
            cut = cut[:at] + length.to_bytes(2, "big") + cut[at + 2 :]
        if size < reth_end:
            with pytest.raises(ProtocolError):
                decode(cut)
            continue
        fields = {k: v for k, v in mapping["fields"].items() if k != "payload"}
        if size < headers_end:
            del fields["immediate"]
        expected = mapping | {"dscp": dscp, "fields": fields | {"trimmed": 1}}
        assert decode(cut) == expected, size


@pytest.mark.parametrize("name", WRITES)
def test_a_trimmed_packet_is_encoded_as_a_switch_leaves_it(name: str) -> None:
    whole = with_dscp(packet_of(vector_of(name)), TRIMMED)
    _, headers_end = write_headers(whole)
    trimmed = decode(whole[:headers_end])
    packet = encode(trimmed)
    assert packet[bth_at(whole) :] == whole[bth_at(whole) : headers_end]
    assert decode(packet) == trimmed


def test_a_whole_packet_with_a_trim_mark_is_whole() -> None:
    vector = vector_of("write_only")
    packet = with_dscp(packet_of(vector), TRIMMED)
    assert decode(packet) == mapping_of(vector) | {"dscp": TRIMMED}


def test_the_trim_marks_can_be_chosen() -> None:
    cut = with_dscp(packet_of(vector_of("write_only")), 33)[:-8]
    assert decode(cut, trimmed_dscps={33})["fields"]["trimmed"] == 1
    with pytest.raises(ProtocolError, match="less than its length says"):
        decode(cut)
    with pytest.raises(ProtocolError, match="does not mark a trimmed packet"):
        encode(decode(cut, trimmed_dscps={33}))


@pytest.mark.parametrize("name", OTHERS)
def test_only_writes_are_trimmed(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(with_dscp(packet_of(vector_of(name)), TRIMMED)[:-4])
    with pytest.raises(ProtocolError, match="unknown trimmed"):
        encode(a_mapping(name, trimmed=1))


# ---- What encode refuses


@pytest.mark.parametrize("name", OPCODES)
def test_every_field_is_needed_but_the_pad(name: str) -> None:
    mapping = a_mapping(name)
    for field in mapping["fields"]:
        if field == "pad" or (field, name) == ("payload", "endpoint_request"):
            assert encode(a_mapping(name, **{field: None})) == encode(mapping)
        else:
            with pytest.raises(ProtocolError, match=f"fields: {field} is missing"):
                encode(a_mapping(name, **{field: None}))


@pytest.mark.parametrize("name", OPCODES)
def test_a_field_out_of_its_range_is_refused(name: str) -> None:
    for field, bits in widths_of(name).items():
        low, high = limits(bits)
        for value in (low - 1, high + 1, "1", 1.5, None):
            mapping = a_mapping(name)
            mapping["fields"][field] = value
            with pytest.raises(ProtocolError, match=f"fields: {field} = "):
                encode(mapping)


BAD_PACKETS: dict[str, tuple[dict[str, object], str]] = {
    "unknown key": ({"ttl": 3}, "unknown ttl"),
    "unknown opcode": ({"opcode": 0x11}, "opcode = 17 is not one of MRC's"),
    "another name": ({"name": "ack"}, "name is not write_only"),
    "no such IP version": ({"ip_version": 5}, "ip_version = 5"),
    "no address": ({"src": "nowhere"}, "src = 'nowhere' is not an IP address"),
    "a number for an address": ({"src": 5}, "src = 5 is not an IP address"),
    "an address with a scope": ({"dst": "fe80::1%eth0"}, "dst = 'fe80::1%eth0' is not an IP"),
    "an address of the other version": ({"dst": "192.0.2.1"}, "not an IPv6 address"),
    "a wide DSCP": ({"dscp": 64}, "dscp = 64"),
    "a wide ECN": ({"ecn": 4}, "ecn = 4"),
    "a wide EV": ({"ev": 1 << 32}, "ev = "),
    "fields that are none": ({"fields": [1]}, "fields: must be a mapping"),
}


@pytest.mark.parametrize("case", BAD_PACKETS)
def test_a_mapping_that_is_no_packet_is_refused(case: str) -> None:
    changed, message = BAD_PACKETS[case]
    mapping = mapping_of(vector_of("write_only", 6))
    with pytest.raises(ProtocolError, match=message):
        encode({**mapping, **changed})


def test_an_ipv4_packet_carries_the_lower_half_of_an_ev_only() -> None:
    mapping = mapping_of(vector_of("sack", 4))
    with pytest.raises(ProtocolError, match="ev = 65536"):
        encode(mapping | {"ev": 1 << 16})


@pytest.mark.parametrize("payload", ["0", "xy", 5, b"00", None])
def test_a_payload_is_hexadecimal(payload: object) -> None:
    mapping = mapping_of(vector_of("write_only"))
    with pytest.raises(ProtocolError, match="payload is not hexadecimal"):
        encode(mapping | {"fields": {**mapping["fields"], "payload": payload}})


def test_a_pad_that_does_not_fit_the_payload_is_refused() -> None:
    with pytest.raises(ProtocolError, match="pad = 2 does not fit 5 bytes"):
        encode(a_mapping("write_only", payload="0102030405", pad=2))


def test_a_payload_that_no_ip_packet_holds_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too long"):
        encode(a_mapping("write_only", payload=bytes(1 << 16).hex(), pad=0))


# ---- Names of the EV


@settings(deadline=None)
@given(mapping=mappings())
def test_the_ev_is_in_the_source_port_and_the_flow_label(mapping: dict[str, Any]) -> None:
    packet = encode(mapping)
    ev = mapping["ev"]
    assert packet[bth_at(packet) - 8 :][:2] == (ev & 0xFFFF).to_bytes(2, "big")
    if mapping["ip_version"] == 6:
        assert int.from_bytes(packet[:4], "big") & 0xFFFFF == ev >> 16


def test_addresses_are_written_in_their_short_form() -> None:
    mapping = mapping_of(vector_of("sack", 6)) | {"src": str(IPv6Address(1)), "dst": "fd00:0::0:1"}
    assert decode(encode(mapping))["dst"] == "fd00::1"
    v4 = mapping_of(vector_of("sack", 4)) | {"src": str(IPv4Address(1))}
    assert decode(encode(v4))["src"] == "0.0.0.1"
