# SPDX-License-Identifier: Apache-2.0
"""The vectors, and the ICRC written down a second time, for the tests of the formats."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "vectors" / "wire.json").read_text()
)["vectors"]

IDS = [f"{index}-{vector['name']}-v{vector['ip_version']}" for index, vector in enumerate(VECTORS)]


def packet_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["packet"])


def mapping_of(vector: dict[str, Any]) -> dict[str, Any]:
    """What `mrc.wire.decode` has to return."""
    return {key: value for key, value in vector.items() if key != "packet"}


def vector_of(name: str, version: int = 0, **fields: int) -> dict[str, Any]:
    """The first vector with this name, of this IP version if one is given, and these fields."""
    return next(
        vector
        for vector in VECTORS
        if vector["name"] == name
        and version in {0, vector["ip_version"]}
        and fields.items() <= vector["fields"].items()
    )


def bth_at(packet: bytes) -> int:
    """Where the BTH begins in a packet without options."""
    return (20 if packet[0] >> 4 == 4 else 40) + 8


def masked_bits(packet: bytes) -> bytes:
    """Ones where the ICRC reads ones whatever the packet says (MRC 1.0, ICRC)."""
    mask = bytearray(len(packet))
    bth = bth_at(packet)
    if packet[0] >> 4 == 4:
        mask[1] = mask[8] = mask[10] = mask[11] = 0xFF
    else:
        mask[0:4] = b"\x0f\xff\xff\xff"
        mask[7] = 0xFF
    mask[bth - 2] = mask[bth - 1] = mask[bth + 4] = 0xFF
    return bytes(mask)


def with_icrc(packet: bytes) -> bytes:
    """The packet with its last four bytes replaced by its ICRC."""
    covered = bytes(a | b for a, b in zip(packet, masked_bits(packet), strict=True))[:-4]
    return packet[:-4] + zlib.crc32(b"\xff" * 8 + covered).to_bytes(4, "little")


def with_lengths(packet: bytes) -> bytes:
    """The packet with IP and UDP lengths that say what is there; the IPv4 checksum stays."""
    out = bytearray(packet)
    udp = bth_at(packet) - 8
    size = len(packet)
    at, length = (2, size) if packet[0] >> 4 == 4 else (4, size - udp)
    out[at : at + 2] = length.to_bytes(2, "big")
    out[udp + 4 : udp + 6] = (size - udp).to_bytes(2, "big")
    return bytes(out)


def sound(packet: bytes) -> bytes:
    """The packet with right lengths and ICRC, after a change."""
    return with_icrc(with_lengths(packet))


def change(packet: bytes, offset: int, value: int, mask: int = 0xFF) -> bytes:
    """The packet with some bits of one byte replaced."""
    out = bytearray(packet)
    out[offset] = (out[offset] & ~mask) | (value & mask)
    return bytes(out)
