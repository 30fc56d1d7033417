# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-subclassing-any=False
# ruff: noqa: RUF012 (scapy wants its lists of fields as they are)
"""Scapy layers for MRC: every header of the specification's layout, to build and to dissect.

Needs the extra `mrc-transport[scapy]`. Importing this changes nothing in scapy; `bind` does::

    >>> from scapy.all import IPv6, UDP, rdpcap
    >>> from mrc import dissect
    >>> dissect.bind()
    >>> rdpcap("plane0.pcap")[7][dissect.SETH].cack_psn
    1041
    >>> ack = IPv6(dst="fd00::2") / UDP(sport=0x1234) / dissect.BTH(dest_qp=77) / dissect.AETH()

A packet is BTH, then by its opcode:

=================  =========================================
write_*            METH [TSETH] RETH [ImmDt] and the payload
ack                AETH
endpoint_request   ERTH and its padding, if any
endpoint_response  EETH
sack               SETH CCState
nack               NETH
probe              PETH
=================  =========================================

Pad and ICRC, which end the packet, are fields of the BTH. Those that are None are computed when
the packet is built: `pad`, `padding`, `ts` and `icrc`. `trimmed` says that a switch has cut the
packet, which then has neither pad nor ICRC. A captured burst, which the kernel would have cut only
later, is shown as one long packet.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

try:
    from scapy.contrib import roce
    from scapy.error import warning
    from scapy.fields import (
        BitEnumField,
        BitField,
        ByteEnumField,
        ByteField,
        Field,
        IntField,
        ShortField,
        SignedShortField,
        StrField,
        XBitField,
        XIntField,
        XLEIntField,
        XLongField,
        XShortField,
    )
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers, bind_top_down
except ImportError as error:
    raise ImportError("mrc.dissect needs scapy: pip install 'mrc-transport[scapy]'") from error

__all__ = [
    "AETH",
    "BTH",
    "EETH",
    "ERTH",
    "METH",
    "NETH",
    "PETH",
    "RETH",
    "SETH",
    "TSETH",
    "CCState",
    "ImmDt",
    "bind",
]

UDP_PORT: Final = 4791
"""Destination port of RoCEv2, and MRC's default."""

TRIMMED_DSCPS: Final = frozenset({12, 16})
"""DSCP_TRIMMED and DSCP_TRIMMED_LASTHOP (MRC 1.0)."""

OPCODES: Final = {
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
"""BTH opcodes (MRC 1.0)."""

SYNDROMES: Final = {
    0x1F: "ack",
    0x61: "invalid_request",
    0x62: "remote_access",
    0x63: "remote_operation",
}
"""AETH (MRC 1.0)."""

REASONS: Final = {
    0x01: "trimmed",
    0x02: "trimmed_lasthop",
    0x06: "no_bitmap",
    0x07: "no_pkt_buffer",
    0x0A: "no_resource",
    0x0B: "psn_oor_window",
    0x19: "unexp_event",
}
"""NETH (MRC 1.0)."""

_MARKS: Final = {0: "none", 1: "skip_once", 2: "always_skip"}
_OPERATIONS: Final = {0: "port_status_update", 1: "ev_probe"}
_WRITES: Final = range(0xC6, 0xCC)
_WITH_IMMEDIATE: Final = frozenset({0xC9, 0xCB})
_FIRST_OPCODE: Final = 0xC0  # below: opcodes of the InfiniBand transports, as RoCE has them
_BTH_SIZE: Final = 12
_ICRC_SIZE: Final = 4


class _Outside:
    """A field without bytes of its own where it stands; mixed in before a scapy field."""

    def addfield(self, pkt: Packet, s: Any, val: Any) -> Any:
        """Adds nothing: the packet's `post_build` does."""
        return s


class _Trimmed(_Outside, Field):
    """Whether the packet was cut; `BTH.pre_dissect` has found out."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, int]:
        return s, pkt.fields["trimmed"]


class _ICRC(_Outside, XLEIntField):
    """The last four bytes of the packet."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, int | None]:
        if pkt.fields["trimmed"]:
            return s, None
        return s[:-_ICRC_SIZE], struct.unpack("<I", s[-_ICRC_SIZE:])[0]


class _Padding(_Outside, StrField):
    """What stands between payload and ICRC, which has been taken off already."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, bytes]:
        size = 0 if pkt.fields["trimmed"] else pkt.fields["pad"]
        if size > len(s):
            raise ValueError("a pad count beyond the packet")
        return s[: len(s) - size], s[len(s) - size :]


def _ip_of(udp: Packet | None) -> Packet | None:
    """The IP header directly under a UDP header, or None."""
    ip = udp.underlayer if isinstance(udp, UDP) else None
    return ip if isinstance(ip, IP | IPv6) else None


def _icrc(headers: bytes, transport: bytes) -> int:
    """ICRC of a packet with these IP and UDP headers, from its BTH to its pad (MRC 1.0)."""
    covered = bytearray(headers + transport)
    bth = len(headers)
    if headers[0] >> 4 == 4:
        covered[1] = covered[8] = covered[10] = covered[11] = 0xFF
    else:
        covered[0:4] = b"\x6f\xff\xff\xff"
        covered[7] = 0xFF
    covered[bth - 2] = covered[bth - 1] = covered[bth + 4] = 0xFF
    return crc32(b"\xff" * 8 + covered)


def _built_headers(ip: Packet, udp: Packet, size: int) -> bytes:
    """The IP and UDP headers as they will be around `size` bytes, but for the UDP checksum."""
    port = udp.dport
    ip, udp = ip.copy(), udp.copy()
    ip.remove_payload()
    udp.remove_payload()  # which takes with it what the BTH has set
    udp.dport = port
    udp.chksum = 0  # masked in the ICRC: not to be computed
    return bytes(ip / udp / Raw(bytes(size)))[:-size]


def _is_trimmed(udp: Packet | None, transport: bytes) -> bool:
    """Whether these bytes, from the BTH on, have lost their end (MRC 1.0)."""
    ip = _ip_of(udp)
    if udp is None or ip is None:
        return False
    if udp.len - 8 > len(transport):
        return True
    dscp = None
    lower = ip
    while lower is not None:  # The outermost IP header has the switches' mark.
        if isinstance(lower, IP | IPv6):
            dscp = (lower.tos if isinstance(lower, IP) else lower.tc) >> 2
        lower = lower.underlayer
    if dscp not in TRIMMED_DSCPS or transport[0] not in _WRITES:
        return False
    # The lower layers are half made: of theirs, only the bytes can be had.
    icrc = _icrc(ip.raw_packet_cache + udp.raw_packet_cache, transport[:-_ICRC_SIZE])
    return icrc != int.from_bytes(transport[-_ICRC_SIZE:], "little")


class BTH(Packet):
    """Base Transport Header, 12 bytes, with what ends the packet."""

    name = "MRC BTH"
    fields_desc = [
        ByteEnumField("opcode", 0xCA, OPCODES),
        BitField("se", 0, 1),
        BitField("m", 0, 1),
        BitField("pad", None, 2),
        BitField("tver", 0, 4),
        XShortField("p_key", 0xFFFF),
        ByteField("reserved1", 0),
        XBitField("dest_qp", 0, 24),
        BitField("ack_request", 0, 1),
        BitField("reserved2", 0, 1),
        BitField("rtx", 0, 1),
        BitField("ts", None, 1),
        BitField("reserved3", 0, 4),
        BitField("psn", 0, 24),
        _Trimmed("trimmed", 0, "B"),
        _ICRC("icrc", None),
        _Padding("padding", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Leaves packets of the InfiniBand transports to scapy's RoCE."""
        return roce.BTH if _pkt and _pkt[0] < _FIRST_OPCODE else cls

    def pre_dissect(self, s: bytes) -> bytes:
        """Finds out whether the packet was cut, while all its bytes are together."""
        self.fields["trimmed"] = int(_is_trimmed(self.underlayer, s))
        return s

    def post_dissect(self, s: bytes) -> bytes:
        """Drops scapy's copy of the header's bytes: it knows no fields behind the payload."""
        self.raw_packet_cache = None
        return s

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fills in what is None, and adds pad and ICRC."""
        trimmed = self.trimmed
        header = bytearray(pkt)
        pad = self.pad
        if pad is None:
            pad = 0 if trimmed else -len(pay) % 4
            header[1] |= pad << 4
        if self.ts is None and self.haslayer(TSETH):
            header[8] |= 0x10
        transport = bytes(header) + pay
        if trimmed:
            return transport
        transport += bytes(pad) if self.padding is None else self.padding
        icrc = self.icrc
        if icrc is None:
            icrc = self._compute_icrc(transport)
        return transport + struct.pack("<I", icrc)

    def _compute_icrc(self, transport: bytes) -> int:
        ip = _ip_of(self.underlayer)
        if ip is None:
            warning("MRC needs UDP over IP or IPv6 for its ICRC")
            return 0
        headers = _built_headers(ip, self.underlayer, len(transport) + _ICRC_SIZE)
        return _icrc(headers, transport)

    def mysummary(self) -> str:
        """One line for scapy's summaries."""
        return str(self.sprintf("MRC %BTH.opcode% QP %BTH.dest_qp% PSN %BTH.psn%"))


def _timestamp_fields() -> list[Field]:
    """TSETH, and the last four bytes of PETH and ERTH; the timestamp in units of 128 ns."""
    return [
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved_flags", 0, 11),
        BitField("ftype", 1, 4),
    ]


def _type_fields() -> list[Field]:
    """The first nine bits of SETH, NETH, PETH, ERTH and EETH."""
    return [BitField("type", 0, 4), BitField("next_header", 0, 5)]


class METH(Packet):
    """Message header, 4 bytes, of every write."""

    name = "MRC METH"
    fields_desc = [ShortField("rqmsn", 0), ShortField("msn", 0)]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """By the TS bit of the BTH."""
        bth = self.underlayer
        return TSETH if isinstance(bth, BTH) and bth.ts else RETH


class TSETH(Packet):
    """Timestamp header, 4 bytes, where the BTH's TS bit is set."""

    name = "MRC TSETH"
    fields_desc = _timestamp_fields()


class RETH(Packet):
    """RDMA header, 16 bytes, of every write: where the packet's data go."""

    name = "MRC RETH"
    fields_desc = [XLongField("va", 0), XIntField("r_key", 0), IntField("dma_length", 0)]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """An immediate by the opcode, unless it was cut off; else the data."""
        bth = self.underlayer
        while bth is not None and not isinstance(bth, BTH):
            bth = bth.underlayer
        has_immediate = bth is not None and bth.opcode in _WITH_IMMEDIATE and len(payload) >= 4
        guess: type[Packet] = ImmDt if has_immediate else Raw
        return guess


class ImmDt(Packet):
    """Immediate data, 4 bytes."""

    name = "MRC ImmDt"
    fields_desc = [XIntField("immediate", 0)]


class AETH(Packet):
    """Transport Acknowledge, 4 bytes."""

    name = "MRC AETH"
    fields_desc = [ByteEnumField("syndrome", 0x1F, SYNDROMES), BitField("msn", 0, 24)]


class SETH(Packet):
    """Reliability SACK, 28 bytes; CCState follows."""

    name = "MRC SETH"
    fields_desc = [
        *_type_fields(),
        BitEnumField("m", 0, 2, _MARKS),
        BitField("reserved1", 0, 3),
        BitField("pr", 0, 1),
        BitField("reserved2", 0, 1),
        SignedShortField("ack_psn_offset", 0),
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("reserved3", 0),
        BitField("cack_psn", 0, 24),
        BitField("cc_type", 0, 4),
        BitField("cc_fl", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_offset", 0),
        XLongField("sack_bitmap", 0),
    ]


class CCState(Packet):
    """CC_STATE, 8 bytes behind a SETH; `rcvd_bytes` in units of 256 bytes."""

    name = "MRC CC_STATE"
    fields_desc = [
        ShortField("tx_timestamp", 0),
        BitField("reserved", 0, 1),
        BitField("ooo_count", 0, 15),
        BitField("r_c", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        BitField("rcvd_bytes", 0, 24),
    ]


class NETH(Packet):
    """Reliability NACK, 20 bytes."""

    name = "MRC NETH"
    fields_desc = [
        *_type_fields(),
        BitField("reserved1", 0, 7),
        ByteEnumField("reason", 0x01, REASONS),
        ByteField("vendor_info", 0),
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("reserved2", 0),
        BitField("nack_psn", 0, 24),
        BitField("cc_type", 2, 4),
        BitField("cc_fl", 0, 4),
        ByteField("reserved3", 0),
        ShortField("tx_timestamp", 0),
    ]


class PETH(Packet):
    """Reliability Probe Request, 16 bytes."""

    name = "MRC PETH"
    fields_desc = [
        *_type_fields(),
        BitField("reserved1", 0, 7),
        ByteField("reserved2", 0),
        ByteField("vendor_info", 0),
        ShortField("probe_id", 0),
        ShortField("reserved3", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        *_timestamp_fields(),
    ]


class ERTH(Packet):
    """Endpoint Request, 16 bytes; bit n of `port_status_mask` set: port n + 1 is reachable."""

    name = "MRC ERTH"
    fields_desc = [
        *_type_fields(),
        BitField("reserved1", 0, 5),
        BitEnumField("op", 1, 2, _OPERATIONS),
        ByteField("reserved2", 0),
        ByteField("vendor_info", 0),
        XIntField("port_status_mask", 0),
        IntField("reserved3", 0),
        *_timestamp_fields(),
    ]


class EETH(Packet):
    """Endpoint Response, 36 bytes."""

    name = "MRC EETH"
    fields_desc = [
        *_type_fields(),
        BitField("reserved1", 0, 3),
        BitEnumField("op", 1, 2, _OPERATIONS),
        BitField("reserved2", 0, 2),
        XBitField("reserved3", 0, 208),
        ShortField("tx_timestamp", 0),
        XBitField("reserved4", 0, 48),
    ]


for _opcode in _WRITES:
    bind_bottom_up(BTH, METH, opcode=_opcode)
bind_top_down(BTH, METH, opcode=0xCA)
bind_layers(TSETH, RETH)
bind_layers(BTH, AETH, opcode=0xD1)
for _opcode, _header in ((0xD8, ERTH), (0xD9, EETH)):
    bind_bottom_up(BTH, _header, opcode=_opcode)
    bind_top_down(BTH, _header, opcode=_opcode, dest_qp=2)
bind_layers(BTH, SETH, opcode=0xDC)
bind_layers(SETH, CCState)
bind_layers(BTH, NETH, opcode=0xDD)
bind_layers(BTH, PETH, opcode=0xDE)


def bind(port: int = UDP_PORT) -> None:
    """Makes scapy dissect UDP datagrams to this port as MRC, and RoCE among them as RoCE.

    Takes precedence over what is bound to a source port: that one is half of the EV, so any number.
    A BTH built on UDP gets the port that was bound last, and no UDP checksum. May be called again,
    also for further ports.

    Args:
        port: UDP destination port.
    """
    others = [guess for guess in UDP.payload_guess if guess != ({"dport": port}, BTH)]
    UDP.payload_guess = [({"dport": port}, BTH), *others]
    bind_top_down(UDP, BTH, dport=port, chksum=0)
