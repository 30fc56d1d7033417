# SPDX-License-Identifier: Apache-2.0
"""The set-up exchange: its messages, byte for byte, without a socket (control.py has those).

A frame is `MRC` and a line feed, the version of this exchange (1 byte), the kind (1), two zero
bytes, the size of the body (4, big-endian), and the body: a JSON object of at most 64 KiB, each
field of which is checked. Unknown fields are passed over, for a later version may add some.

    connector                             listener
    HELLO  planes, queue pair, slots  ─►
                                      ◄─  WELCOME  the same, and which planes are pairs
                                          (or REFUSE  code and text)
    READY  a plane carries data       ─►
    CLOSE or ABORT with its reason   ◄─►  ends it; an end without either is a hint of a crash

IDENTIFY asks who is there, and IDENTITY tells the incarnation, without setting anything up.

VISIT and VISITED tell planes and no more: until the visitor's control connection ends each side
knows the other as a peer, whose probes are answered on every path, and there is no connection.
"""

from __future__ import annotations

import enum
import ipaddress
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from mrc._native import Attributes
from mrc.errors import ConnectionLost, ProtocolError
from mrc.planes import MAX_PLANES, RemotePlane

__all__ = [
    "HEADER_SIZE",
    "MAX_BODY",
    "VERSIONS",
    "Introduction",
    "Kind",
    "Lent",
    "Refusal",
    "Setup",
    "VersionMismatch",
    "decode_header",
    "decode_identity",
    "decode_introduction",
    "decode_refusal",
    "decode_setup",
    "encode",
    "encode_setup",
    "fit_mtu",
]

MAGIC: Final = b"MRC\n"
FORMAT: Final = 1
"""Version of the exchange itself."""

VERSIONS: Final = 0b1
"""Bitmap of the protocol versions that we speak: bit 0 is OCP MRC 1.0."""

HEADER_SIZE: Final = 12
MAX_BODY: Final = 64 << 10

MTUS: Final = (8192, 4096, 2048, 1024, 512, 256)
OVERHEAD: Final = 92
"""IPv6 40, UDP 8, BTH to ImmDt 40, ICRC 4 bytes."""

_HEADER: Final = struct.Struct(">4sBBHI")
assert _HEADER.size == HEADER_SIZE


class VersionMismatch(ProtocolError):
    """The peer speaks another version of the exchange."""


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    READY = 4
    CLOSE = 5
    ABORT = 6
    IDENTIFY = 7
    IDENTITY = 8
    VISIT = 9
    VISITED = 10


@dataclass(frozen=True, kw_only=True)
class Lent:
    """The memory by which the message layer of one side is told things (messages.py).

    Attributes:
        va: Of the first slot.
        key: Of the region.
        slots: How many small messages may be under way.
        slot_size: Of each, in bytes.
        grants: How many grants fit behind the slots.
    """

    va: int
    key: int
    slots: int
    slot_size: int
    grants: int


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a listener refuses.

    Attributes:
        code: `version`, `planes`, `busy` or `error`.
        text: For a person.
    """

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """What VISIT and VISITED say.

    Attributes:
        versions: Bitmap of protocol versions.
        incarnation: Of the endpoint.
        planes: All of it.
        pairs: In an answer: numbers of the connector's and the listener's plane of each pair.
        routing: How the paths of what it sends are named; `ecmp`: switches choose them.
    """

    versions: int
    incarnation: int
    planes: tuple[RemotePlane, ...]
    pairs: tuple[tuple[int, int], ...]
    routing: str


@dataclass(frozen=True, kw_only=True)
class Setup(Introduction):
    """What HELLO and WELCOME say.

    Attributes:
        attributes: Of the queue pair.
        lent: For the message layer.
    """

    attributes: Attributes
    lent: Lent


def fit_mtu(link_mtus: Sequence[int]) -> int:
    """The largest payload that fits packets of the least of these MTUs.

    Raises:
        ProtocolError: Not even 256 bytes fit.
    """
    least = min(link_mtus)
    for mtu in MTUS:
        if mtu + OVERHEAD <= least:
            return mtu
    raise ProtocolError(f"an MTU of {least} bytes is too small: {MTUS[-1] + OVERHEAD} are needed")


def encode(kind: Kind, body: Mapping[str, object] | None = None) -> bytes:
    """A frame."""
    data = json.dumps(body or {}, separators=(",", ":")).encode()
    assert len(data) <= MAX_BODY
    return _HEADER.pack(MAGIC, FORMAT, kind, 0, len(data)) + data


def decode_header(data: bytes) -> tuple[Kind, int]:
    """Reads a frame's first 12 bytes; returns its kind and the size of its body.

    Raises:
        VersionMismatch: It is of another version of the exchange.
        ProtocolError: It is none.
    """
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        raise ProtocolError(f"not the set-up exchange of MRC: it begins with {data[:16]!r}")
    _, version, kind, zero, size = _HEADER.unpack(data[:HEADER_SIZE])
    if version != FORMAT:
        raise VersionMismatch(f"set-up exchange of version {version}, this is version {FORMAT}")
    if kind not in set(Kind):
        raise ProtocolError(f"set-up: kind {kind} does not exist")
    if zero or size > MAX_BODY:
        raise ProtocolError(f"set-up: {size} bytes are more than {MAX_BODY}, or padding is not 0")
    return Kind(kind), size


class _Object:
    """A JSON object whose fields are taken out checked."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise ProtocolError(f"set-up: {where} is not an object")
        self._value: dict[str, Any] = value
        self._where = where

    def _take(self, name: str) -> Any:
        if name not in self._value:
            raise ProtocolError(f"set-up: {self._where}.{name} is missing")
        return self._value[name]

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._take(name)
        if type(value) is not int or not low <= value <= high:
            raise ProtocolError(f"set-up: {self._where}.{name} is not an integer of {low}..{high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if type(value) is not bool:
            raise ProtocolError(f"set-up: {self._where}.{name} is neither true nor false")
        return value

    def text(self, name: str, most: int) -> str:
        value = self._take(name)
        if type(value) is not str or len(value) > most or not (value.isprintable() or not value):
            raise ProtocolError(
                f"set-up: {self._where}.{name} is not printable text of at most {most} characters"
            )
        return value

    def array(self, name: str, most: int) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise ProtocolError(
                f"set-up: {self._where}.{name} is not an array of at most {most} elements"
            )
        return value

    def object(self, name: str) -> _Object:
        return _Object(self._take(name), f"{self._where}.{name}")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a field comes twice")
    return value


def _parse(body: bytes, where: str) -> _Object:
    try:
        value = json.loads(body, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        raise ProtocolError(f"set-up: {where} is not JSON") from None
    return _Object(value, where)


def encode_setup(kind: Kind, setup: Introduction) -> bytes:
    """HELLO, WELCOME, VISIT or VISITED."""
    body = asdict(setup)
    body["planes"] = [{**plane, "address": str(plane["address"])} for plane in body["planes"]]
    return encode(kind, body)


def decode_setup(body: bytes) -> Setup:
    """Reads the body of HELLO or WELCOME.

    Raises:
        ProtocolError: A field is missing, of the wrong type, out of range or contradicts another.
    """
    top = _parse(body, "setup")
    known = _introduction(top)
    return Setup(
        **{member.name: getattr(known, member.name) for member in fields(Introduction)},
        attributes=_attributes(top.object("attributes")),
        lent=_lent(top.object("lent")),
    )


def decode_introduction(body: bytes) -> Introduction:
    """Reads the body of VISIT or VISITED.

    Raises:
        ProtocolError: As `decode_setup`.
    """
    return _introduction(_parse(body, "setup"))


def _introduction(top: _Object) -> Introduction:
    planes = tuple(_plane(value) for value in top.array("planes", MAX_PLANES))
    if len({plane.number for plane in planes}) < len(planes):
        raise ProtocolError("set-up: two planes have one number")
    names = [plane.id for plane in planes if plane.id]
    if len(set(names)) < len(names):
        raise ProtocolError("set-up: two planes have one id")
    return Introduction(
        versions=top.integer("versions", 0, 0xFFFF),
        incarnation=top.integer("incarnation", 0, (1 << 64) - 1),
        planes=planes,
        pairs=_pairs(top.array("pairs", MAX_PLANES)),
        routing=top.text("routing", 16),
    )


def _plane(value: object) -> RemotePlane:
    plane = _Object(value, "plane")
    text = plane.text("address", 45)
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ProtocolError(f"set-up: plane.address {text!r} is not an IP address") from None
    if address.is_multicast or address.is_unspecified or address.is_loopback:
        raise ProtocolError(f"set-up: plane.address {address} is not that of a host")
    if address.version == 6 and (address.scope_id or address.ipv4_mapped):
        raise ProtocolError(f"set-up: plane.address {address} has a scope or is a mapped one")
    return RemotePlane(
        number=plane.integer("number", 0, MAX_PLANES - 1),
        id=plane.text("id", 32),
        name=plane.text("name", 32),
        address=address,
        prefix=plane.integer("prefix", 0, address.max_prefixlen),
        mtu=plane.integer("mtu", MTUS[-1] + OVERHEAD, 1 << 20),
    )


def _pairs(values: list[Any]) -> tuple[tuple[int, int], ...]:
    for pair in values:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(number) is int and 0 <= number < MAX_PLANES for number in pair)
        ):
            raise ProtocolError("set-up: setup.pairs is not an array of pairs of plane numbers")
    for side in range(2):
        if len({pair[side] for pair in values}) < len(values):
            raise ProtocolError("set-up: setup.pairs has a plane twice")
    return tuple((pair[0], pair[1]) for pair in values)


def _attributes(value: _Object) -> Attributes:
    mtu = value.integer("mtu", MTUS[-1], MTUS[0])
    if mtu not in MTUS:
        raise ProtocolError(f"set-up: setup.attributes.mtu = {mtu} is not an MTU of RoCE")
    return Attributes(
        number=value.integer("number", 3, (1 << 24) - 1),
        psn=value.integer("psn", 0, (1 << 24) - 1),
        mtu=mtu,
        mpr=value.integer("mpr", 1, 32),
        max_wimm=value.integer("max_wimm", 1, 255),
        trim_nack=value.flag("trim_nack"),
        dynamic_mpr=value.flag("dynamic_mpr"),
    )


def _lent(value: _Object) -> Lent:
    limits = {
        "va": (0, (1 << 63) - 1),
        "key": (0, (1 << 32) - 1),
        "slots": (2, 256),
        "slot_size": (256, 64 << 10),
        "grants": (1, 64),
    }
    assert set(limits) == {member.name for member in fields(Lent)}
    return Lent(**{name: value.integer(name, *limit) for name, limit in limits.items()})


def decode_refusal(body: bytes) -> Refusal:
    """Reads the body of REFUSE.

    Raises:
        ProtocolError: It is none.
    """
    top = _parse(body, "refusal")
    return Refusal(code=top.text("code", 32), text=top.text("text", 500))


def decode_abort(body: bytes) -> str:
    """Reads the body of ABORT: the reason, one of `ConnectionLost.REASONS`.

    Raises:
        ProtocolError: It is none.
    """
    reason = _parse(body, "abort").text("reason", 32)
    return reason if reason in ConnectionLost.REASONS else "aborted"


def decode_identity(body: bytes) -> int:
    """Reads the body of IDENTITY: the incarnation.

    Raises:
        ProtocolError: It is none.
    """
    return _parse(body, "identity").integer("incarnation", 0, (1 << 64) - 1)
