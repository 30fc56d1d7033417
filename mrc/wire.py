# SPDX-License-Identifier: Apache-2.0
"""Whole MRC packets as mappings, for tools and tests: `decode` and `encode`.

A packet goes from its IP header to its ICRC. The mapping's keys are `name`, `opcode`, `ip_version`,
`src`, `dst`, `dscp`, `ecn`, `ev` and `fields`; the fields are those of the opcode's headers, named
as in the specification's layout (integers, but `payload` is a string of hexadecimal digits):

==================== ===========================================================================
every opcode         se pad dest_qp ack_request rtx ts psn
write_*              rqmsn msn [tx_timestamp tsr ftype, if ts] va r_key dma_length payload
                     [immediate, if *_imm]; or [trimmed], without payload
ack                  syndrome msn
endpoint_request     op vendor_info port_status_mask tx_timestamp tsr ftype [payload, if padded]
endpoint_response    op tx_timestamp
sack                 m pr ack_psn_offset entropy spdcid dpdcid cack_psn cc_type cc_fl mpr
                     sack_offset sack_bitmap tx_timestamp ooo_count r_c rcv_cwnd_pen rcvd_bytes
nack                 reason vendor_info entropy spdcid dpdcid nack_psn cc_fl tx_timestamp
probe                vendor_info probe_id spdcid dpdcid tx_timestamp tsr ftype
==================== ===========================================================================

Both functions go through the C code that a live endpoint uses. Not for the fast path: a packet
takes some tens of microseconds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NotRequired, TypedDict

from mrc._core import ffi, lib
from mrc.errors import ProtocolError

__all__ = ["Packet", "decode", "encode"]

UDP_PORT: Final = 4791
"""Destination port of RoCEv2, and MRC's default."""

TRIMMED_DSCPS: Final = frozenset({12, 16})
"""DSCP_TRIMMED and DSCP_TRIMMED_LASTHOP (MRC 1.0)."""


class Packet(TypedDict):
    """What `decode` returns.

    Attributes:
        name: The opcode's name, as `write_first`.
        opcode: BTH opcode.
        ip_version: 4 or 6.
        src: IP source address.
        dst: IP destination address.
        dscp: Traffic class, 0-63.
        ecn: 0 none, 2 ECT(0), 3 CE.
        ev: Entropy value, 32 bits; over IPv4 only the lower 16 travel.
        carrier: In SRv6 mode, destination of the outer IPv6 header; its source is `src`.
        srh: 1: an SRH (RFC 8754) with no segment left follows it.
        fields: The headers' fields and the payload.
    """

    name: str
    opcode: int
    ip_version: int
    src: str
    dst: str
    dscp: int
    ecn: int
    ev: int
    carrier: NotRequired[str]
    srh: NotRequired[int]
    fields: dict[str, int | str]


_OPCODES: Final = {
    0xC6: "write_first",
    0xC7: "write_middle",
    0xC8: "write_last",
    0xC9: "write_last_imm",
    0xCA: "write_only",
    0xCB: "write_only_imm",
    0xD1: "ack",
    0xD8: "endpoint_request",
    0xD9: "endpoint_response",
    0xDC: "sack",
    0xDD: "nack",
    0xDE: "probe",
}

# Fields in the order in which a mapping lists them.
_BTH: Final = ("se", "pad", "dest_qp", "ack_request", "rtx", "ts", "psn")
_TSETH: Final = ("tx_timestamp", "tsr", "ftype")
_EXTENSIONS: Final = {
    "ack": ("syndrome", "msn"),
    "endpoint_request": ("op", "vendor_info", "port_status_mask", *_TSETH),
    "endpoint_response": ("op", "tx_timestamp"),
    "sack": (
        *("m", "pr", "ack_psn_offset", "entropy", "spdcid", "dpdcid", "cack_psn"),
        *("cc_type", "cc_fl", "mpr", "sack_offset", "sack_bitmap"),
        *("tx_timestamp", "ooo_count", "r_c", "rcv_cwnd_pen", "rcvd_bytes"),
    ),
    "nack": (
        *("reason", "vendor_info", "entropy", "spdcid", "dpdcid", "nack_psn"),
        *("cc_fl", "tx_timestamp"),
    ),
    "probe": ("vendor_info", "probe_id", "spdcid", "dpdcid", *_TSETH),
}

# Bits of each integer field; negative: two's complement. METH's msn has 16, AETH's 24.
_BITS: Final = {
    **dict.fromkeys(("se", "ack_request", "rtx", "ts", "tsr", "pr", "r_c", "trimmed"), 1),
    **dict.fromkeys(("pad", "m", "op"), 2),
    **dict.fromkeys(("ftype", "cc_type", "cc_fl"), 4),
    **dict.fromkeys(("rcv_cwnd_pen",), 7),
    **dict.fromkeys(("syndrome", "mpr", "reason", "vendor_info"), 8),
    **dict.fromkeys(("ooo_count",), 15),
    **dict.fromkeys(("rqmsn", "tx_timestamp", "spdcid", "dpdcid", "probe_id"), 16),
    **dict.fromkeys(("ack_psn_offset", "sack_offset"), -16),
    **dict.fromkeys(("dest_qp", "psn", "msn", "cack_psn", "nack_psn", "rcvd_bytes"), 24),
    **dict.fromkeys(("r_key", "dma_length", "immediate", "entropy", "port_status_mask"), 32),
    **dict.fromkeys(("va", "sack_bitmap"), 64),
}

# More than all headers, pad and ICRC of one packet take, in bytes.
_OVERHEAD: Final = 192

# Members of the C struct that have another name than the field.
_MEMBERS: Final = {"se": "solicited"}


def _fields_of(name: str, *, ts: bool) -> Iterator[str]:
    """The integer fields of an opcode, but for `immediate` and `trimmed`."""
    yield from _BTH
    if not name.startswith("write_"):
        yield from _EXTENSIONS[name]
        return
    yield from ("rqmsn", "msn")
    if ts:
        yield from _TSETH
    yield from ("va", "r_key", "dma_length")


def _explain(status: int, size: int, opcode: int) -> str:
    named = _OPCODES.get(opcode, f"opcode 0x{opcode:02x}")
    return {
        lib.MRC_WIRE_SHORT_HEADERS: f"{size} bytes end inside the IP or UDP header",
        lib.MRC_WIRE_NOT_UDP: "IP header: not IPv4 or IPv6 with UDP, or options, or a fragment",
        lib.MRC_WIRE_LENGTHS: "IP and UDP lengths contradict each other",
        lib.MRC_WIRE_CUT: f"IP header: {size} bytes are less than its length says",
        lib.MRC_WIRE_TRAILING: f"IP header: {size} bytes are more than its length says",
        lib.MRC_WIRE_SHORT: f"BTH: {size} bytes are too few for the headers of {named}",
        lib.MRC_WIRE_OPCODE: f"BTH: {named} is not one of MRC's",
        lib.MRC_WIRE_FIELD: f"{named}: version, P_Key, pad, TS or a header's type is not MRC's",
        lib.MRC_WIRE_LONG: f"{named}: has a payload, which this opcode does not",
        lib.MRC_WIRE_ICRC: f"{named}: the ICRC is wrong",
        lib.MRC_WIRE_ROOM: f"{named}: the payload is too long for an IP packet",
    }[status]


def decode(
    packet: bytes | bytearray | memoryview,
    *,
    udp_port: int = UDP_PORT,
    trimmed_dscps: Collection[int] = TRIMMED_DSCPS,
) -> Packet:
    """Reads one packet, from its IP header to its ICRC.

    Syntax only: whether DSCP, ECN, `dma_length` or a sequence number make sense is not judged, and
    reserved bits and hop limits are passed over. A write cut short by a switch (told by its DSCP)
    has `trimmed` = 1 in its fields, no `payload`, and no `immediate` if that was cut off too. Of
    IPv6-in-IPv6 the addresses and the EV are the inner packet's, the DSCP is the outer one's.

    Args:
        packet: The whole packet and nothing behind it.
        udp_port: The destination port that it must have.
        trimmed_dscps: DSCPs by which switches mark what they trimmed.

    Raises:
        ProtocolError: It is no whole and sound MRC packet; the message says what is wrong where.
    """
    data = ffi.from_buffer("uint8_t[]", packet)
    out = ffi.new("mrc_wire *")
    mask = sum(1 << dscp for dscp in set(trimmed_dscps))
    status = lib.mrc_wire_decode(data, len(data), mask, out)
    if out.ip_version and out.udp_port != udp_port:
        raise ProtocolError(f"UDP header: destination port {out.udp_port} is not {udp_port}")
    if status < 0:
        raise ProtocolError(_explain(status, len(data), out.opcode))
    name = _OPCODES[out.opcode]
    fields: dict[str, int | str] = {
        field: int(getattr(out, _MEMBERS.get(field, field)))
        for field in _fields_of(name, ts=out.ts)
    }
    if out.trimmed:
        fields["trimmed"] = 1
    elif name.startswith("write_") or out.payload_size:
        payload = ffi.buffer(out.payload, out.payload_size) if out.payload_size else b""
        fields["payload"] = bytes(payload).hex()
    if out.has_immediate:
        fields["immediate"] = out.immediate
    width = 4 if out.ip_version == 4 else 16
    read: Packet = {
        "name": name,
        "opcode": out.opcode,
        "ip_version": out.ip_version,
        "src": str(ipaddress.ip_address(bytes(out.source)[:width])),
        "dst": str(ipaddress.ip_address(bytes(out.destination)[:width])),
        "dscp": out.dscp,
        "ecn": out.ecn,
        "ev": out.ev,
        "fields": fields,
    }
    if out.has_carrier:
        read["carrier"] = str(ipaddress.IPv6Address(bytes(out.carrier)))
    if out.has_srh:
        read["srh"] = 1
    return read


class _Reader:
    """Takes checked values out of a mapping and notices what is left over."""

    def __init__(self, mapping: object, where: str) -> None:
        if not isinstance(mapping, Mapping):
            raise ProtocolError(f"{where}: must be a mapping, not {type(mapping).__name__}")
        self._mapping: Mapping[str, Any] = mapping
        self._where = where
        self._left = set(mapping)

    def has(self, key: str) -> bool:
        return key in self._mapping

    def take(self, key: str) -> Any:
        if key not in self._mapping:
            raise ProtocolError(f"{self._where}: {key} is missing")
        self._left.discard(key)
        return self._mapping[key]

    def integer(self, key: str, bits: int) -> int:
        """An integer of so many bits; negative: two's complement."""
        value = self.take(key)
        low, high = (0, (1 << bits) - 1) if bits > 0 else (-1 << (-bits - 1), (1 << -bits - 1) - 1)
        if not isinstance(value, int) or not low <= value <= high:
            raise ProtocolError(f"{self._where}: {key} = {value!r} is not in {low}..{high}")
        return int(value)

    def address(self, key: str, version: int) -> bytes:
        value = self.take(key)
        try:
            # A scope (`%eth0`) is no part of a packet; a number would be read as an address.
            if not isinstance(value, str) or "%" in value:
                raise ValueError
            address = ipaddress.ip_address(value)
        except ValueError:
            raise ProtocolError(f"{self._where}: {key} = {value!r} is not an IP address") from None
        if address.version != version:
            raise ProtocolError(f"{self._where}: {key} = {value} is not an IPv{version} address")
        return address.packed

    def hexadecimal(self, key: str) -> bytes:
        value = self.take(key)
        try:
            return bytes.fromhex(value)
        except (TypeError, ValueError):
            raise ProtocolError(f"{self._where}: {key} is not hexadecimal") from None

    def finish(self) -> None:
        if self._left:
            names = ", ".join(sorted(map(str, self._left)))
            raise ProtocolError(f"{self._where}: unknown {names}")


def _fill_headers(out: Any, packet: _Reader) -> str:
    """Everything but the fields; returns the opcode's name."""
    out.opcode = packet.integer("opcode", 8)
    name = _OPCODES.get(out.opcode)
    if name is None:
        raise ProtocolError(f"packet: opcode = {out.opcode} is not one of MRC's")
    if packet.has("name") and packet.take("name") != name:
        raise ProtocolError(f"packet: name is not {name}, which opcode {out.opcode} means")
    out.ip_version = packet.integer("ip_version", 4)
    if out.ip_version not in {4, 6}:
        raise ProtocolError(f"packet: ip_version = {out.ip_version} is neither 4 nor 6")
    for key, member in (("src", out.source), ("dst", out.destination)):
        address = packet.address(key, out.ip_version)
        ffi.memmove(member, address, len(address))
    if packet.has("carrier"):
        if out.ip_version != 6:
            raise ProtocolError("packet: carrier has no place around an IPv4 packet")
        out.has_carrier = True
        ffi.memmove(out.carrier, packet.address("carrier", 6), 16)
        out.has_srh = packet.has("srh") and packet.integer("srh", 1)
    out.dscp = packet.integer("dscp", 6)
    out.ecn = packet.integer("ecn", 2)
    out.ev = packet.integer("ev", 16 if out.ip_version == 4 else 32)
    return name


def _fill_fields(out: Any, fields: _Reader, name: str) -> bytes:
    """The fields; returns the payload, which must live until the packet is written."""
    payload = b""
    is_write = name.startswith("write_")
    out.trimmed = is_write and fields.has("trimmed") and fields.integer("trimmed", 1)
    may_be_padded = name == "endpoint_request" and fields.has("payload")
    if may_be_padded or (is_write and not out.trimmed):
        payload = fields.hexadecimal("payload")
    for field in _fields_of(name, ts=is_write and fields.integer("ts", 1) == 1):
        if field == "pad" and not out.trimmed and not fields.has("pad"):
            continue
        bits = 16 if field == "msn" and is_write else _BITS[field]
        setattr(out, _MEMBERS.get(field, field), fields.integer(field, bits))
    if out.pad != -len(payload) % 4 and not out.trimmed and fields.has("pad"):
        raise ProtocolError(f"fields: pad = {out.pad} does not fit {len(payload)} bytes of payload")
    if name.endswith("_imm") and (not out.trimmed or fields.has("immediate")):
        out.immediate = fields.integer("immediate", _BITS["immediate"])
        out.has_immediate = True
    return payload


def encode(
    mapping: Mapping[str, object] | Packet,
    *,
    udp_port: int = UDP_PORT,
    trimmed_dscps: Collection[int] = TRIMMED_DSCPS,
) -> bytes:
    """Writes the packet that `decode` reads as this mapping.

    Hop limit or TTL 64, DF, IPv4 id 0 and UDP checksum 0 are constants. `name` and `pad` may be
    left out. With `trimmed` = 1 the packet ends behind its headers, as a switch leaves it.

    Args:
        mapping: As `decode` returns it; nothing in it is ignored.
        udp_port: The destination port.
        trimmed_dscps: DSCPs one of which a trimmed packet must have.

    Raises:
        ProtocolError: A key or field is missing, unknown, out of range or contradicts another.
    """
    packet = _Reader(mapping, "packet")
    fields = _Reader(packet.take("fields"), "fields")
    wire = ffi.new("mrc_wire *")
    name = _fill_headers(wire, packet)
    payload = _fill_fields(wire, fields, name)
    packet.finish()
    fields.finish()
    if wire.trimmed and wire.dscp not in trimmed_dscps:
        raise ProtocolError(f"packet: dscp = {wire.dscp} does not mark a trimmed packet")
    wire.udp_port = udp_port
    data = ffi.from_buffer("uint8_t[]", payload)
    if payload:
        wire.payload = data
    wire.payload_size = len(payload)
    out = ffi.new("uint8_t[]", len(payload) + _OVERHEAD)
    size = lib.mrc_wire_encode(wire, out, len(out))
    if size < 0:
        raise ProtocolError(_explain(size, len(payload), wire.opcode))
    return bytes(ffi.buffer(out, size))
