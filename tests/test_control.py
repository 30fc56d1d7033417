# SPDX-License-Identifier: Apache-2.0
"""The control connection over loopback: addresses, refusals, other protocols."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mrc.control import Control, bind, dial, expect, parse_target
from mrc.errors import ConfigError, ConnectRefused, HandshakeError, ProtocolError
from mrc.handshake import Kind, encode


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("host", ("host", 4791)),
        ("host:99", ("host", 99)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("fd00::1", ("fd00::1", 4791)),
        ("[fd00::1]", ("fd00::1", 4791)),
        ("[fe80::1%eth0]:99", ("fe80::1%eth0", 99)),
        ("mrc://[fd00::1]:99", ("fd00::1", 99)),
        ("mrc://host/", ("host", 4791)),
    ],
)
def test_a_target_is_host_and_port(target: str, expected: tuple[str, int]) -> None:
    assert parse_target(target) == expected


@pytest.mark.parametrize("target", ["", ":99", "host:", "host:x", "host:65536", "[::1", "[::1]x"])
def test_a_wrong_target_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(target)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve(handler: Handler) -> tuple[asyncio.Server, int]:
    (sock,) = await bind("127.0.0.1", 0, 8)
    server = await asyncio.start_server(handler, sock=sock)
    return server, sock.getsockname()[1]


def test_frames_travel_both_ways_and_the_end_is_told() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        control = Control(reader, writer)
        kind, _ = await control.read()
        control.write(encode(kind))
        control.close(Kind.CLOSE)

    async def main() -> None:
        server, port = await serve(handler)
        async with server:
            control = await dial([("127.0.0.1", port)], [])
            control.write(encode(Kind.IDENTIFY))
            assert await expect(control, Kind.IDENTIFY) == (Kind.IDENTIFY, b"{}")
            assert (await control.read())[0] == Kind.CLOSE
            with pytest.raises(EOFError):
                await control.read()
            control.close()

    asyncio.run(main())


def test_another_protocol_on_the_port_is_named() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ftp\n")
        writer.close()

    async def main() -> None:
        server, port = await serve(handler)
        async with server:
            control = await dial([("127.0.0.1", port)], [])
            with pytest.raises(ProtocolError, match="220 ftp"):
                await control.read()
            control.close()

    asyncio.run(main())


def test_a_port_that_nobody_listens_on_refuses() -> None:
    async def main() -> None:
        (sock,) = await bind("127.0.0.1", 0, 8)
        port = sock.getsockname()[1]
        sock.close()
        with pytest.raises(ConnectRefused, match="nobody listens"):
            await dial([("127.0.0.1", port)], [])

    asyncio.run(main())


def test_a_refusal_says_what_the_name_has_resolved_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B33: as where a host's own name is an address of its loopback."""

    def resolve(host: str, port: int, *_: object, **__: object) -> list[Any]:
        assert host == "b.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", port))]

    async def main() -> None:
        (sock,) = await bind("127.0.0.1", 0, 8)
        port = sock.getsockname()[1]
        sock.close()
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        told = rf"nobody listens at b\.example port {port} \(127\.0\.1\.1\)"
        with pytest.raises(ConnectRefused, match=told):
            await dial([("b.example", port)], [])

    asyncio.run(main())


def test_the_next_address_is_tried_when_one_refuses() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> None:
        server, port = await serve(handler)
        async with server:
            control = await dial([("127.0.0.2", port), ("127.0.0.1", port)], [])
            assert control.peer == f"127.0.0.1:{port}"
            control.close()

    asyncio.run(main())


def test_a_name_without_an_address_is_told() -> None:
    with pytest.raises(HandshakeError, match=r"cannot resolve nosuch\.invalid"):
        asyncio.run(dial([("nosuch.invalid", 1)], []))


def test_both_ip_versions_share_one_free_port() -> None:
    async def main() -> set[int]:
        sockets = await bind(None, 0, 8)
        ports = {sock.getsockname()[1] for sock in sockets}
        for sock in sockets:
            sock.close()
        return ports

    assert len(asyncio.run(main())) == 1
