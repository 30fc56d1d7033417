# SPDX-License-Identifier: Apache-2.0
"""The set-up messages: what is written is read, and nothing else is taken."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc._native import Attributes
from mrc.errors import ProtocolError
from mrc.handshake import (
    HEADER_SIZE,
    MAX_BODY,
    Introduction,
    Kind,
    Lent,
    Setup,
    VersionMismatch,
    decode_header,
    decode_identity,
    decode_introduction,
    decode_refusal,
    decode_setup,
    encode,
    encode_setup,
    fit_mtu,
)
from mrc.planes import RemotePlane


def setup(planes: int = 2) -> Setup:
    return Setup(
        versions=1,
        incarnation=(1 << 64) - 1,
        planes=tuple(
            RemotePlane(
                number=number,
                id="" if number else "a",
                name=f"eth{number}",
                address=ipaddress.ip_address(f"fd00::{number + 1}"),
                prefix=64,
                mtu=4200,
            )
            for number in range(planes)
        ),
        pairs=((0, 1), (1, 0)),
        routing="srv6",
        attributes=Attributes(
            number=0x123456,
            psn=0xABCDEF,
            mtu=4096,
            mpr=32,
            max_wimm=64,
            trim_nack=True,
            dynamic_mpr=False,
        ),
        lent=Lent(va=1 << 50, key=77, slots=8, slot_size=2048, grants=16),
    )


@pytest.mark.parametrize("planes", [0, 1, 2, 16])
def test_a_setup_is_read_as_it_was_written(planes: int) -> None:
    frame = encode_setup(Kind.HELLO, setup(planes))
    kind, size = decode_header(frame[:HEADER_SIZE])
    assert (kind, size) == (Kind.HELLO, len(frame) - HEADER_SIZE)
    assert decode_setup(frame[HEADER_SIZE:]) == setup(planes)


def test_an_introduction_is_read_as_it_was_written_and_has_no_queue_pair() -> None:
    whole = setup()
    known = Introduction(
        versions=whole.versions,
        incarnation=whole.incarnation,
        planes=whole.planes,
        pairs=whole.pairs,
        routing=whole.routing,
    )
    body = encode_setup(Kind.VISIT, known)[HEADER_SIZE:]
    assert decode_introduction(body) == known
    with pytest.raises(ProtocolError, match="attributes is missing"):
        decode_setup(body)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-Open", b"\0" * 12, b"MRC\n", b""]
)
def test_another_protocol_is_told_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not the set-up exchange"):
        decode_header(data[:HEADER_SIZE])


def test_another_version_of_the_exchange_is_told_apart() -> None:
    frame = bytearray(encode(Kind.READY))
    frame[4] = 9
    with pytest.raises(VersionMismatch, match="version 9, this is version 1"):
        decode_header(bytes(frame))


def test_a_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    frame = encode(Kind.READY)[:8] + (MAX_BODY + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="more than 65536"):
        decode_header(frame)


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(body: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        target: Any = body
        for name in parents:
            target = target[int(name)] if name.isdigit() else target[name]
        if value is None:
            del target[last]
        else:
            target[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("versions", None, "versions is missing"),
        ("incarnation", -1, "incarnation"),
        ("incarnation", 1 << 64, "incarnation"),
        ("incarnation", 1.0, "incarnation"),
        ("planes", {}, "planes"),
        ("planes", [{}] * 17, "at most 16"),
        ("planes.0.address", "nowhere", "not an IP address"),
        ("planes.0.address", "ff02::1", "not that of a host"),
        ("planes.0.address", "::1", "not that of a host"),
        ("planes.0.address", "fe80::1%eth0", "scope"),
        ("planes.0.prefix", 129, "prefix"),
        ("planes.0.mtu", 100, "mtu"),
        ("planes.0.name", "e\x1b[31m", "printable"),
        ("planes.1.number", 0, "one number"),
        ("planes.1.id", "a", "one id"),
        ("pairs", [[0]], "pairs"),
        ("pairs", [[0, 16]], "pairs"),
        ("pairs", [[0, 1], [1, 1]], "twice"),
        ("routing", None, "routing is missing"),
        ("routing", 7, "routing"),
        ("attributes", [], "not an object"),
        ("attributes.number", 1 << 24, "number"),
        ("attributes.mtu", 1500, "MTU"),
        ("attributes.mpr", 33, "mpr"),
        ("attributes.trim_nack", 1, "trim_nack"),
        ("lent.slots", 257, "slots"),
        ("lent.key", True, "key"),
    ],
)
def test_each_field_is_checked(path: str, value: Any, told: str) -> None:
    body = json.loads(encode_setup(Kind.HELLO, setup())[HEADER_SIZE:])
    change(path, value)(body)
    with pytest.raises(ProtocolError, match=told):
        decode_setup(json.dumps(body).encode())


def test_fields_of_a_later_version_are_passed_over() -> None:
    body = json.loads(encode_setup(Kind.HELLO, setup())[HEADER_SIZE:])
    body["colour"] = "green"
    assert decode_setup(json.dumps(body).encode()) == setup()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for decode in (
        decode_setup,
        decode_introduction,
        decode_refusal,
        decode_identity,
        decode_header,
    ):
        try:
            decode(body)
        except ProtocolError:
            continue


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        decode_setup(b"[" * 60000)


@pytest.mark.parametrize(
    ("link", "mtu"), [(9000, 8192), (4200, 4096), (4188, 4096), (4187, 2048), (1500, 1024)]
)
def test_the_mtu_is_the_largest_that_fits_the_least_link(link: int, mtu: int) -> None:
    assert fit_mtu([9000, link]) == mtu


def test_a_link_too_small_for_any_packet_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too small"):
        fit_mtu([300])
