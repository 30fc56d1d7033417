# SPDX-License-Identifier: Apache-2.0
"""Datagrams between hosts of the rig, for the tests over real packets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from tools.rig import Host, shell

PORT = 5001
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
QUIET = 0.3
"""Seconds without a datagram after which no more are expected."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition, and fails when it does not come within ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.005)


def target(
    source: Host, destination: Host, plane: int
) -> tuple[str, int] | tuple[str, int, int, int]:
    """Where `source` finds a host on a plane, as a socket's address."""
    address = destination.address(plane)
    if ":" not in address:
        return (address, PORT)
    bare, _, zone = address.partition("%")
    scope = shell.inside(source.name, lambda: socket.if_nametoindex(zone)) if zone else 0
    return (bare, PORT, 0, scope)


@contextlib.contextmanager
def pair(
    source: Host, destination: Host, plane: int
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A UDP socket connected to the destination, and the one that receives there."""
    where = target(source, destination, plane)
    family = socket.AF_INET6 if len(where) == 4 else socket.AF_INET
    with (
        source.socket(family, socket.SOCK_DGRAM) as sender,
        destination.socket(family, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("", PORT))
        receiver.settimeout(QUIET)
        sender.connect(where)
        yield sender, receiver


def drain(receiver: socket.socket) -> list[tuple[float, bytes]]:
    """All that arrives until it is quiet, each with the kernel's time in seconds."""
    arrived = []
    with contextlib.suppress(TimeoutError):
        while True:
            data, ancillary, _, _ = receiver.recvmsg(1 << 16, 64)
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            arrived.append((seconds + nanoseconds * 1e-9, data))
    return arrived


def numbers(source: Host, destination: Host, plane: int = 0, *, count: int = 10) -> list[int]:
    """Sends `count` datagrams, numbered from 0, and returns the numbers that arrive."""
    with pair(source, destination, plane) as (sender, receiver):
        for number in range(count):
            sender.send(struct.pack("!I", number))
        return [struct.unpack("!I", data)[0] for _, data in drain(receiver)]


@contextlib.contextmanager
def packet_socket(host: Host, plane: int) -> Iterator[socket.socket]:
    """A packet socket of one interface that takes every protocol, as the engine's is."""
    with host.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.bind((host.interface(plane), 3))
        sock.settimeout(QUIET)
        yield sock


def udp_frames(sock: socket.socket) -> Sequence[bytes]:
    """The UDP payloads (over IPv6) that arrive at a packet socket until it is quiet."""
    return [
        frame[62:] for _, frame in drain(sock) if frame[12:14] == b"\x86\xdd" and frame[20] == 17
    ]
