# SPDX-License-Identifier: Apache-2.0
"""Programs: round trips of one byte by plain UDP on uvloop, and by the synchronous layer."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from mrc import Config, verbs
from mrc.cli.perf import percentiles
from tools.bench.program import main, say

UDP_PORT = 7007
EXCHANGE_PORT = 7008
LAST = 1
"""The immediate of the last write."""


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data, addr)


class _Asker(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def udp_server(target: str) -> None:
    """Sends every datagram back, until killed."""
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(_Echo, local_addr=(target, UDP_PORT))
    say("listening")
    await asyncio.Event().wait()


async def udp_client(target: str, *, seconds: float) -> dict[str, Any]:
    """Measures round trips between two asyncio programs, as mrc-perf --latency does."""
    loop = asyncio.get_running_loop()
    transport, asker = await loop.create_datagram_endpoint(_Asker, remote_addr=(target, UDP_PORT))
    trips = []
    now = time.perf_counter()
    end = now + seconds
    while now < end:
        asker.waiter = loop.create_future()
        transport.sendto(b"x")
        await asker.waiter
        before, now = now, time.perf_counter()
        trips.append(now - before)
    transport.close()
    return {"rtt_us": percentiles(trips)}


class _Bouncer:
    """A queue pair, and one byte of the peer's memory to write to."""

    def __init__(self, sock: socket.socket, context: verbs.Context) -> None:
        self._context = context
        self._qp = context.create_qp()
        self._qp.connect(verbs.exchange(sock, self._qp.attributes))
        self._region = context.register(bytearray(1))
        descriptor = verbs.exchange(sock, self._region.descriptor)
        self._remote = verbs.RemoteRegion.from_descriptor(descriptor)
        self._qp.post_receive(32)
        verbs.exchange(sock, b"ready")

    def write(self, imm: int) -> None:
        """Writes the byte."""
        self._qp.post_write(b"x", self._remote, imm=imm)

    def await_write(self) -> int:
        """Sleeps until the peer has written; returns its immediate.

        Raises:
            RuntimeError: A write failed, or nothing came for 10 s.
        """
        imm = None
        while imm is None:
            events = self._context.poll(10.0)
            if not events or any(event.status for event in events):
                raise RuntimeError(f"no answer, or a write failed: {events}")
            for event in events:
                if event.kind == "receive":
                    self._qp.post_receive(1)
                    imm = event.imm
        return imm


def verbs_server(target: str, *, config: dict[str, Any]) -> None:
    """Writes back whatever one peer writes."""
    with socket.create_server((target, EXCHANGE_PORT), family=socket.AF_INET6) as server:
        say("listening")
        sock = server.accept()[0]
    with sock, verbs.Context(config=Config(**config)) as context:
        bouncer = _Bouncer(sock, context)
        while bouncer.await_write() != LAST:
            bouncer.write(0)
        bouncer.write(LAST)
        context.poll(1.0)  # its acknowledgement
        verbs.exchange(sock, b"done")


def verbs_client(target: str, *, seconds: float, config: dict[str, Any]) -> dict[str, Any]:
    """Measures round trips through `mrc.verbs`."""
    sock = socket.create_connection((target, EXCHANGE_PORT), 10)
    with sock, verbs.Context(config=Config(**config)) as context:
        bouncer = _Bouncer(sock, context)
        trips = []
        now = time.perf_counter()
        end = now + seconds
        while now < end:
            bouncer.write(0)
            bouncer.await_write()
            before, now = now, time.perf_counter()
            trips.append(now - before)
        bouncer.write(LAST)
        bouncer.await_write()
        context.poll(0.2)
        verbs.exchange(sock, b"done")
    return {"rtt_us": percentiles(trips)}


if __name__ == "__main__":
    main(globals())
