# SPDX-License-Identifier: Apache-2.0
"""Hostile and vanishing peers at the set-up, over loopback: nobody else notices, nothing is left.

Engines are fake. 127.0.0.2 attacks, 127.0.0.1 is honest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import fake_engine
import pytest

import mrc
from mrc import handshake
from mrc._native import PeerPlane
from mrc.handshake import HEADER_SIZE, Kind, encode

BUSY = encode(Kind.REFUSE)[:6]


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_engine.install(monkeypatch)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


async def hostile(port: int, data: bytes = b"") -> socket.socket:
    """A connection from the attacker's address that has sent `data`."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind(("127.0.0.2", 0))
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(sock, data)
    return sock


async def everything(sock: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    loop, got = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionResetError):
        while data := await loop.sock_recv(sock, 1 << 16):
            got += data
    sock.close()
    return got


async def serves(listener: mrc.Listener) -> None:
    """An honest peer connects, and a message goes each way."""
    async with mrc.connect(f"127.0.0.1:{listener.port}") as one:
        two = await listener.accept()
        await one.send(b"ping")
        assert bytes(await two.recv()) == b"ping"
        await two.send(b"pong")
        assert bytes(await one.recv()) == b"pong"
        two.abort()


def links(listener: mrc.Listener) -> int:
    return len(listener.endpoint._hub.links)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come true within 10 s")


@contextlib.asynccontextmanager
async def through(
    port: int, *, chunk: int = 1 << 16, cut: int = 1 << 30, back: int = 1 << 30
) -> AsyncIterator[tuple[int, bytearray]]:
    """A port that leads to `port` in pieces, and ends after so many bytes there and back.

    Gives its number and what has gone through to the listener.
    """
    seen = bytearray()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int, log: bytearray
    ) -> None:
        while left and (data := await reader.read(min(chunk, left))):
            left -= len(data)
            log += data
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.0.2", 0)
        )
        pumps = [
            asyncio.ensure_future(pump(reader, far_writer, cut, seen)),
            asyncio.ensure_future(pump(far_reader, writer, back, bytearray())),
        ]
        with contextlib.suppress(OSError):
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()
        far_writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


def test_who_opens_many_and_says_nothing_locks_nobody_out() -> None:
    """Slow loris: his oldest makes room for a peer of another address, and is told so."""

    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0, backlog=4) as listener:
            half = [await hostile(listener.port, b"MRC\n\x01") for _ in range(16)]
            await asyncio.sleep(0.05)
            assert BUSY in await everything(await hostile(listener.port))
            await serves(listener)
            assert BUSY in await everything(half[0])
            await serves(listener)
            for sock in half[1:]:
                sock.close()

    run(main())


def test_who_says_hello_and_never_goes_on_locks_nobody_out() -> None:
    """His set-ups are taken back one by one: each holds a queue pair and a slot of the backlog."""

    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0, backlog=4) as listener,
            through(listener.port) as (port, seen),
            mrc.connect(f"127.0.0.1:{port}"),
        ):
            two = await listener.accept()
            hello = bytes(seen[: HEADER_SIZE + int.from_bytes(seen[8:12], "big")])
            greedy = [await hostile(listener.port, hello) for _ in range(6)]
            await until(lambda: links(listener) == 1 + 4)
            for _ in range(3):
                await serves(listener)
            assert links(listener) <= 1 + 4
            for sock in greedy:
                sock.close()
            await until(lambda: links(listener) == 1)
            two.abort()

    run(main())


def test_a_thousand_silent_connections_cost_a_bounded_number_of_descriptors() -> None:
    """Case C63: all but a few for each of the backlog are told that we are busy."""

    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0, backlog=8) as listener:
            before = len(os.listdir("/proc/self/fd"))
            told = 0
            held = []
            for _ in range(20):
                socks = [await hostile(listener.port) for _ in range(50)]
                await asyncio.sleep(0.05)
                for sock in socks:
                    try:
                        told += BUSY in sock.recv(4096)
                        sock.close()
                    except BlockingIOError:
                        held.append(sock)
            assert told + len(held) == 1000
            assert len(held) == 4 * 8
            assert len(os.listdir("/proc/self/fd")) <= before + 2 * len(held) + 8
            await serves(listener)
            for sock in held:
                sock.close()
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)

    run(main())


def test_who_never_finishes_is_let_go_after_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mrc.establish.HELLO_TIMEOUT", 0.2)

    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0) as listener,
            through(listener.port) as (port, seen),
            mrc.connect(f"127.0.0.1:{port}"),
        ):
            assert await everything(await hostile(listener.port, b"MRC\n")) == b""
            size = HEADER_SIZE + int.from_bytes(seen[8:12], "big")
            answer = await everything(await hostile(listener.port, bytes(seen[:size])))
            assert handshake.decode_header(answer[:HEADER_SIZE])[0] == Kind.WELCOME
            await until(lambda: links(listener) == 1)
            (await listener.accept()).abort()
            await serves(listener)

    run(main())
    assert sum(text.endswith("set-up failed: timed out") for text in caplog.messages) == 2


def test_a_set_up_byte_by_byte_is_one_like_any_other() -> None:
    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0) as listener,
            through(listener.port, chunk=1) as (port, _),
            mrc.connect(f"127.0.0.1:{port}") as one,
        ):
            two = await listener.accept()
            await one.send(b"whole")
            assert bytes(await two.recv()) == b"whole"
            two.abort()

    run(main())


@pytest.mark.parametrize("way", ["cut", "back"])
def test_a_peer_that_vanishes_at_any_step_leaves_nothing(way: str) -> None:
    """The control connection ends after so many bytes there or back: a typed error, no link."""

    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            async with through(listener.port) as (port, seen), mrc.connect(f"127.0.0.1:{port}"):
                (await listener.accept()).abort()
            whole = HEADER_SIZE + int.from_bytes(seen[8:12], "big")
            # Its numbers vary in length, and with them the frame does.
            steps = [0, 1, 4, 11, 12, 13, whole // 2, whole - 100]
            for step in steps:
                async with through(listener.port, **{way: step}) as (port, _):
                    with pytest.raises(mrc.MRCError):
                        await mrc.connect(f"127.0.0.1:{port}", timeout=5)
            await until(lambda: not links(listener))
            await serves(listener)

    run(main())


def test_a_set_up_that_is_replayed_opens_nothing_that_anybody_uses() -> None:
    """The replayed HELLO is answered like any other; the real connection does not notice."""

    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0) as listener,
            through(listener.port) as (port, seen),
            mrc.connect(f"127.0.0.1:{port}") as one,
        ):
            two = await listener.accept()
            for _ in range(10):
                sock = await hostile(listener.port, bytes(seen))
                await asyncio.sleep(0.01)
                sock.close()
            for _ in range(10):
                await one.send(b"still here")
                assert bytes(await two.recv()) == b"still here"
            two.abort()

    run(main())


def test_who_chatters_after_the_set_up_is_cut_off() -> None:
    """Frames that have no place there would be read for ever."""

    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0) as listener,
            through(listener.port) as (port, seen),
            mrc.connect(f"127.0.0.1:{port}") as one,
        ):
            two = await listener.accept()
            sock = await hostile(listener.port, bytes(seen))
            three = await listener.accept()
            await asyncio.get_running_loop().sock_sendall(sock, encode(Kind.READY))
            with pytest.raises(mrc.ConnectionLost, match="READY came after the set-up"):
                await three.recv()
            await everything(sock)
            await one.send(b"unharmed")
            assert bytes(await two.recv()) == b"unharmed"
            two.abort()

    run(main())


def plane(address: str, number: int = 0) -> PeerPlane:
    parsed = ipaddress.ip_address(address)
    return PeerPlane(number=number, remote=number, address=parsed, next_hop=parsed)


def test_an_incarnation_said_from_elsewhere_draws_no_plane_to_itself() -> None:
    """An incarnation is told to anybody: only its own site changes where a peer is reached."""

    async def main() -> None:
        async with mrc.Endpoint() as endpoint:
            hub = endpoint._hub
            real, other = ["fd00::1", "fd00:1::1"], ["fd00::66", "fd00:1::66"]
            planes = [plane(address, number) for number, address in enumerate(real)]
            theirs = [plane(address, number) for number, address in enumerate(other)]
            incarnation = hub.engine.incarnation
            number = hub.add_peer(incarnation, planes[:1], "fd00::/64")
            told: list[int] = []
            engine: Any = hub.engine
            add = engine.add_peer

            def recorded(key: int, *arguments: Any, **options: Any) -> int:
                told.append(key)
                return int(add(incarnation, *arguments, **options))

            engine.add_peer = recorded
            assert number == 0
            hub.add_peer(incarnation, theirs, "fd66::/64")  # others' addresses
            hub.add_peer(incarnation, [planes[0], theirs[1]], "fd66::/64")  # one more
            assert incarnation not in told
            hub.add_peer(incarnation, planes, "fd00::/64")  # its own, and another plane of it
            hub.add_peer(incarnation, planes[:1], "fd77::/64")  # changes nothing
            assert told[2:] == [incarnation, incarnation]

    run(main())


def test_a_number_that_is_none_is_refused_whatever_json_calls_it() -> None:
    """NaN, Infinity, 1e400, 10**5000, true, "1" and a field that comes twice."""
    good = {"versions": 1}
    for text in ("NaN", "Infinity", "1e400", "1" * 5000, "true", '"1"', "1.0", "null", "[1]"):
        body = json.dumps(good).replace(": 1", ": " + text).encode()
        with pytest.raises(mrc.ProtocolError, match=r"versions|not JSON|missing"):
            handshake.decode_setup(body.replace(b"}", b', "planes": []}'))
    with pytest.raises(mrc.ProtocolError, match="not JSON"):
        handshake.decode_setup(b'{"versions": 1, "versions": 2}')
