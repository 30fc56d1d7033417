# SPDX-License-Identifier: Apache-2.0
"""The synchronous layer over fake engines."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Iterator
from typing import Any

import fake_engine
import pytest

import mrc
from mrc import verbs


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[verbs.Context, verbs.Context]]:
    fake_engine.install(monkeypatch)
    with verbs.Context() as one, verbs.Context() as two:
        yield one, two


def joined(one: verbs.Context, two: verbs.Context) -> tuple[verbs.QP, verbs.QP]:
    here, there = one.create_qp(), two.create_qp()
    here.connect(there.attributes)
    there.connect(here.attributes)
    return here, there


def test_a_write_ends_with_its_tag_and_the_peer_gets_its_immediate(
    contexts: tuple[verbs.Context, verbs.Context],
) -> None:
    one, two = contexts
    here, there = joined(one, two)
    memory = bytearray(10)
    with two.register(memory) as region:
        remote = verbs.RemoteRegion.from_descriptor(region.descriptor)
        there.post_receive(1)
        here.post_write(b"abc", remote[2:], imm=7, tag=42)
        (ended,) = one.poll(1)
        assert (ended.kind, ended.qp, ended.tag, ended.status) == ("write", here, 42, 0)
        (received,) = two.poll(1)
        assert (received.kind, received.qp, received.imm) == ("receive", there, 7)
        assert memory == b"\0\0abc\0\0\0\0\0"


def test_poll_returns_nothing_when_the_time_is_up(
    contexts: tuple[verbs.Context, verbs.Context],
) -> None:
    assert contexts[0].poll(0) == []
    assert contexts[0].poll(0.01) == []


def test_a_refused_write_breaks_its_queue_pair(
    contexts: tuple[verbs.Context, verbs.Context],
) -> None:
    here, _ = joined(*contexts)
    here.post_write(b"abc", verbs.RemoteRegion(key=1, va=1, size=3), tag=5)
    ended, broken = contexts[0].poll(1)
    assert (ended.kind, ended.tag, ended.status) == ("write", 5, -17)
    assert (broken.kind, broken.qp, broken.status) == ("qp", here, -17)


def test_the_source_stays_exported_until_its_write_has_ended(
    contexts: tuple[verbs.Context, verbs.Context],
) -> None:
    one, two = contexts
    here, _ = joined(one, two)
    source = bytearray(10)
    region = two.register(bytearray(10))
    here.post_write(source, verbs.RemoteRegion.from_descriptor(region.descriptor))
    with pytest.raises(BufferError):
        source.clear()
    one.poll(1)
    source.clear()
    one._engine.cut = True  # type: ignore[attr-defined]
    here.post_write(source, verbs.RemoteRegion.from_descriptor(region.descriptor))
    here.close()
    here.close()
    source.extend(b"x")


def test_what_does_not_fit_is_refused(contexts: tuple[verbs.Context, verbs.Context]) -> None:
    here, _ = joined(*contexts)
    with pytest.raises(ValueError, match="do not fit"):
        here.post_write(b"abc", verbs.RemoteRegion(key=1, va=1, size=2))
    with mmap.mmap(-1, verbs.MAX_WRITE + 1) as large, pytest.raises(ValueError, match="1 GiB"):
        here.post_write(large, verbs.RemoteRegion(key=1, va=1, size=1 << 32))


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK", b"MRC\n\x01\x01\0\0\0\0\0\x02{}"])
def test_wrong_attributes_are_refused(
    contexts: tuple[verbs.Context, verbs.Context], data: bytes
) -> None:
    with pytest.raises(mrc.ProtocolError):
        contexts[0].create_qp().connect(data)


def test_exchange_swaps_what_both_sides_say() -> None:
    one, two = socket.socketpair()
    with one, two:
        got: list[bytes] = []
        other = threading.Thread(target=lambda: got.append(verbs.exchange(two, b"x" * 60000)))
        other.start()
        assert verbs.exchange(one, b"hello") == b"x" * 60000
        other.join()
        assert got == [b"hello"]
        with pytest.raises(mrc.ProtocolError, match="64 KiB"):
            verbs.exchange(one, bytes(70000))
        two.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(mrc.ProtocolError, match="64 KiB"):
            verbs.exchange(one, b"")
        two.close()
        with pytest.raises((EOFError, OSError)):
            verbs.exchange(one, b"")


def test_a_forgotten_context_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_engine.install(monkeypatch)
    context = verbs.Context()
    with pytest.warns(ResourceWarning, match=r"made at .*test_verbs\.py:\d+ was not closed"):
        del context


def test_objects_say_what_they_are(contexts: tuple[verbs.Context, verbs.Context]) -> None:
    one, two = contexts
    here, _ = joined(one, two)
    region = two.register(bytearray(10))
    assert repr(one) == "<mrc.verbs.Context on p0, p1, 1 queue pairs>"
    assert repr(here).endswith(", 0 writes posted>")
    assert repr(region) == "<mrc.verbs.MR of 10 bytes, lent>"
    region.close()
    one.close()
    assert repr(region) == "<mrc.verbs.MR of 10 bytes, revoked>"
    assert repr(one) == "<mrc.verbs.Context, closed>"


def test_a_refused_write_does_not_keep_its_source(
    contexts: tuple[verbs.Context, verbs.Context],
) -> None:
    here, _ = joined(*contexts)
    source = bytearray(3)
    with pytest.raises(ValueError, match="imm"):
        here.post_write(source, verbs.RemoteRegion(key=1, va=1, size=3), imm=1 << 32)
    source.clear()


@pytest.mark.parametrize("module", [mrc, verbs])
def test_a_module_shows_its_public_names_and_no_other(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
