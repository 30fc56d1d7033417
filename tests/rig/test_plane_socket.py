# SPDX-License-Identifier: Apache-2.0
"""The engine's socket on one interface: what it lets in, how it cuts frames, what it survives."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from datagrams import packet_socket, wait_until
from native.build import load

from tools.rig import Host, Rig, shell

pytestmark = pytest.mark.rig

ffi, lib = load("engine")

PORT = 4791
PREFIX = 0x5A
UDP, IPV6 = 17, 41
MACS = [bytes.fromhex("020000000001"), bytes.fromhex("020000000002")]
"""Of host a and b on plane 0 (tools/rig/plane.py)."""


# Frames.


def udp(payload: bytes, *, port: int = PORT) -> bytes:
    return struct.pack("!HHHH", 0xC000, port, 8 + len(payload), 0) + payload


def ipv6(payload: bytes, *, header: int = UDP, source: str, destination: str) -> bytes:
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    return struct.pack("!IHBB", 6 << 28, len(payload), header, 64) + addresses + payload


def ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ipv4(payload: bytes, *, header: int = UDP, source: str, destination: str) -> bytes:
    def fields(checksum: int) -> bytes:
        addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
        fixed = (0x45, 0, 20 + len(payload), 7, 0x4000, 64, header, checksum)
        return struct.pack("!BBHHHBBH", *fixed) + addresses

    return fields(0xFFFF ^ ones_sum(fields(0))) + payload


def ethernet(payload: bytes, *, to: int = 1) -> bytes:
    ethertype = b"\x86\xdd" if payload[0] >> 4 == 6 else b"\x08\x00"
    return MACS[to] + MACS[1 - to] + ethertype + payload


def transport(size: int, *, prefix: int = PREFIX, number: int = 0) -> bytes:
    """Bytes whose destination queue pair has the prefix; what else they are matters to nobody."""
    body = random.Random(number).randbytes(size)
    return body[:5] + bytes([prefix]) + body[6:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ends:
    """Two hosts on plane 0, and how a packet from a to b is wrapped."""

    a: Host
    b: Host

    @property
    def is_six(self) -> bool:
        return ":" in self.a.address(0)

    def ip(self, payload: bytes, *, header: int = UDP) -> bytes:
        wrap = ipv6 if self.is_six else ipv4
        return wrap(payload, header=header, source=self.a.address(0), destination=self.b.address(0))


# The socket.


class Plane:
    """A plane socket on p0 of a host."""

    def __init__(
        self, host: Host, stack: ExitStack, *, receive_buffer: int = 1 << 22, bind: bool = True
    ) -> None:
        self.host = host
        self.it = ffi.new("struct plane_socket *")
        self.buffers = ffi.new("uint8_t[]", lib.PLANE_BATCH * lib.PLANE_FRAME_MAX)
        self.keep: list[Any] = []
        config = ffi.new(
            "struct plane_socket_config *",
            {
                "udp_port": PORT,
                "qp_prefix": PREFIX,
                "receive_buffer": receive_buffer,
                "send_buffer": 1 << 22,
            },
        )
        opened = shell.inside(host.name, lambda: lib.plane_socket_open(self.it, config))
        assert opened == 0
        stack.callback(lib.plane_socket_close, self.it)
        if bind:
            assert self.bind() == 0

    def bind(self) -> int:
        index = shell.inside(self.host.name, lambda: socket.if_nametoindex("p0"))
        return int(lib.plane_socket_bind(self.it, index))

    def silence(self, address: str) -> int:
        out = ffi.new("mrc_address *")
        if address:
            ip = ipaddress.ip_address(address)
            out.version = ip.version
            out.bytes[0 : len(ip.packed)] = ip.packed
        return shell.inside(
            self.host.name, lambda: int(lib.plane_socket_silence(self.it, out, PORT))
        )

    def receive(self) -> list[tuple[bytes, int]]:
        """The frames that are there, each with its segment size."""
        frames = ffi.new("mrc_frame_in[]", lib.PLANE_BATCH)
        count = lib.plane_socket_receive(self.it, self.buffers, frames)
        return [
            (bytes(ffi.buffer(frame.data, frame.size)), int(frame.segment_size))
            for frame in frames[0:count]
        ]

    def receive_until(self, count: int) -> list[tuple[bytes, int]]:
        got: list[tuple[bytes, int]] = []

        def is_enough() -> bool:
            got.extend(self.receive())
            return len(got) >= count

        wait_until(is_enough, f"{count} frames")
        return got

    def frame(self, header: bytes, packets: list[bytes], *, version: int = 6) -> Any:
        """A frame of the core's: a header in scratch, and packets anywhere."""
        frame = ffi.new("mrc_frame_out *")
        body = b"".join(packets)
        frame.packets = len(packets)
        frame.header_size = len(header)
        frame.segment_size = len(packets[0])
        frame.size = len(header) + len(body)
        frame.ip_version = version
        frame.scratch[0 : len(header)] = header
        frame.slices[0].base = frame.scratch
        frame.slices[0].size = len(header)
        middle = len(body) // 3  # slices end in the middle of packets, too
        for number, part in enumerate((body[:middle], body[middle:]), 1):
            kept = ffi.from_buffer(part)
            self.keep.append(kept)
            frame.slices[number].base = kept
            frame.slices[number].size = len(part)
        frame.slice_count = 3
        self.keep.append(frame)
        return frame

    def send(self, *frames: Any) -> int:
        return int(
            lib.plane_socket_send(self.it, ffi.new("mrc_frame_out *[]", frames), len(frames))
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(planes=1, direct=True) as made:
        yield made


@pytest.fixture
def ends(rig: Rig) -> Ends:
    return Ends(a=rig.hosts[0], b=rig.hosts[1])


@pytest.fixture(params=[4, 6])
def ends_of_each(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with Rig(planes=1, direct=True, ip=request.param) as rig:
        yield Ends(a=rig.hosts[0], b=rig.hosts[1])


def burst(plane: Plane, ends: Ends, packets: list[bytes]) -> Any:
    """A frame of several packets as the core makes it: lengths of the whole, checksum begun."""
    body = b"".join(packets)
    ip = ends.ip(udp(body))
    at = 40 if ends.is_six else 20
    addresses = ip[8:40] if ends.is_six else ip[12:20]
    begun = ones_sum(addresses + struct.pack("!HH", 8 + len(body), UDP))
    header = ethernet(ip)[: 14 + at + 8]
    if len(packets) > 1:
        header = header[:-2] + struct.pack("!H", begun)
    return plane.frame(header, packets, version=6 if ends.is_six else 4)


# What comes in.


def wrapped_in_ipv6(ends: Ends, payload: bytes) -> bytes:
    return ends.ip(ends.ip(payload), header=IPV6)


OURS: dict[str, Callable[[Ends], bytes]] = {
    "our prefix": lambda ends: ethernet(ends.ip(udp(transport(64)))),
    "an endpoint operation": lambda ends: ethernet(ends.ip(udp(transport(64, prefix=0)))),
    "in IPv6": lambda ends: ethernet(wrapped_in_ipv6(ends, udp(transport(64)))),
    "IPv4": lambda ends: ethernet(
        ipv4(udp(transport(64)), source="10.0.0.1", destination="10.0.0.2")
    ),
    "priority-tagged": lambda ends: (
        (plain := ethernet(ends.ip(udp(transport(64)))))[:12] + b"\x81\0\x60\0" + plain[12:]
    ),
}

OTHERS: dict[str, Callable[[Ends], bytes]] = {
    "another prefix": lambda ends: ethernet(ends.ip(udp(transport(64, prefix=PREFIX + 1)))),
    "another port": lambda ends: ethernet(ends.ip(udp(transport(64), port=PORT + 1))),
    "another protocol": lambda ends: ethernet(ends.ip(udp(transport(64)), header=136)),
    "another port in IPv6": lambda ends: ethernet(
        wrapped_in_ipv6(ends, udp(transport(64), port=PORT + 1))
    ),
    "a third IPv6": lambda ends: ethernet(
        ends.ip(wrapped_in_ipv6(ends, udp(transport(64))), header=IPV6)
    ),
    "ARP": lambda ends: MACS[1] + MACS[0] + b"\x08\x06" + bytes(60),
    "another host's": lambda ends: b"\x02\0\0\0\0\x77" + ethernet(ends.ip(udp(transport(64))))[6:],
    "a VLAN's": lambda ends: (
        (plain := ethernet(ends.ip(udp(transport(64)))))[:12] + b"\x81\0\0\x05" + plain[12:]
    ),
    "too short for a queue pair": lambda ends: ethernet(ends.ip(udp(bytes(4)))),
}


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_a_packet_for_us_comes_in(ends: Ends, stack: ExitStack, make: Any) -> None:
    plane = Plane(ends.b, stack)
    with packet_socket(ends.a, 0) as sender:
        sender.send(make(ends))
    [(frame, segment_size)] = plane.receive_until(1)
    assert transport(64)[6:] in frame
    assert segment_size == 0


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_the_kernel_drops_what_is_not_for_us(ends: Ends, stack: ExitStack, make: Any) -> None:
    plane = Plane(ends.b, stack)
    last = ethernet(ends.ip(udp(transport(100, number=1))))
    with packet_socket(ends.a, 0) as sender:
        sender.send(make(ends))
        sender.send(last)
    assert plane.receive_until(1) == [(last, 0)]


def test_what_the_host_sends_itself_does_not_come_in(ends: Ends, stack: ExitStack) -> None:
    plane, other, peer = Plane(ends.a, stack), Plane(ends.a, stack), Plane(ends.b, stack)
    assert plane.send(burst(plane, ends, [transport(64)])) == 1
    peer.receive_until(1)
    assert plane.receive() == []
    assert other.receive() == []


@pytest.mark.parametrize("is_silent", [False, True])
def test_the_kernel_answers_no_packet_of_ours_with_icmp(
    ends_of_each: Ends, stack: ExitStack, is_silent: bool
) -> None:
    ends = ends_of_each
    plane = Plane(ends.b, stack)
    if is_silent:
        assert plane.silence(ends.b.address(0)) == 0
        assert plane.silence(ends.b.address(0)) == 0  # an address that comes again
    family = socket.AF_INET6 if ends.is_six else socket.AF_INET
    with ends.a.socket(family, socket.SOCK_DGRAM) as sender:
        sender.connect((ends.b.address(0), PORT))
        sender.settimeout(1)
        sender.send(transport(64))
        with pytest.raises(TimeoutError if is_silent else ConnectionRefusedError):
            sender.recv(1)
    plane.receive_until(1)


def test_an_address_that_is_not_there_cannot_be_silenced(ends: Ends, stack: ExitStack) -> None:
    plane = Plane(ends.b, stack)
    assert plane.silence("fd00:99::1") == errno.EADDRNOTAVAIL
    assert plane.it.quiet == -1


def test_frames_that_find_no_room_are_counted(ends: Ends, stack: ExitStack) -> None:
    plane = Plane(ends.b, stack, receive_buffer=4096)
    frame = ethernet(ends.ip(udp(transport(1000))))
    with packet_socket(ends.a, 0) as sender:
        for _ in range(100):
            sender.send(frame)
    received = 0
    while frames := plane.receive():
        received += len(frames)
    for _ in range(2):  # the kernel forgets what it has told
        lib.plane_socket_count_drops(plane.it)
        assert plane.it.kernel_drops == 100 - received
    assert 0 < received < 100


# What goes out.


PACKETS = [transport(1000, number=number) for number in range(6)] + [transport(300, number=9)]


def test_a_burst_comes_whole_with_its_segment_size(ends_of_each: Ends, stack: ExitStack) -> None:
    sender, receiver = Plane(ends_of_each.a, stack), Plane(ends_of_each.b, stack)
    assert sender.send(burst(sender, ends_of_each, PACKETS)) == 1
    [(frame, segment_size)] = receiver.receive_until(1)
    assert frame.endswith(b"".join(PACKETS))
    assert segment_size == 1000


def test_a_burst_cut_by_us_is_what_the_kernel_makes_of_it(
    ends_of_each: Ends, stack: ExitStack
) -> None:
    """Same packets, lengths, IPv4 ids and header checksums; the UDP checksum is none of MRC's."""
    ends = ends_of_each
    sender, receiver = Plane(ends.a, stack), Plane(ends.b, stack)
    shell.run([*ends.a.command(["ethtool"]), "-K", "p0", "tx-udp-segmentation", "off"])
    assert sender.send(burst(sender, ends, PACKETS)) == 1
    cut_by_kernel = receiver.receive_until(len(PACKETS))
    assert sender.it.has_gso
    sender.it.has_gso = False
    assert sender.send(burst(sender, ends, PACKETS)) == 1
    cut_by_us = receiver.receive_until(len(PACKETS))
    at = 14 + (40 if ends.is_six else 20) + 6
    for (theirs, _), (ours, _), packet in zip(cut_by_kernel, cut_by_us, PACKETS, strict=True):
        assert ours == theirs[:at] + b"\0\0" + theirs[at + 2 :]
        assert ours.endswith(packet)


def test_packets_of_a_frame_that_the_kernel_refuses_leave_one_by_one(
    ends: Ends, stack: ExitStack
) -> None:
    """No burst in an outer IPv6 header: the kernel cannot cut it."""
    sender, receiver = Plane(ends.a, stack), Plane(ends.b, stack)
    header = ethernet(wrapped_in_ipv6(ends, udp(b"".join(PACKETS))))[: 14 + 40 + 40 + 8]
    plain = burst(sender, ends, [transport(64)])
    assert sender.send(plain, sender.frame(header, PACKETS), plain) == 3
    frames = receiver.receive_until(len(PACKETS) + 2)
    for (frame, segment_size), packet in zip(frames[1:-1], PACKETS, strict=True):
        assert frame.endswith(packet)
        assert segment_size == 0
    assert not sender.it.has_gso
    assert sender.it.send_errors == 1


def test_a_full_queue_makes_the_port_busy(rig: Rig, ends: Ends, stack: ExitStack) -> None:
    rig.plane(0).rate(1, direction="a->b")
    sender = Plane(ends.a, stack)
    frames = [burst(sender, ends, PACKETS) for _ in range(lib.PLANE_BATCH)]
    assert sender.send(*frames) < lib.PLANE_BATCH
    assert sender.it.send_errno in {errno.ENOBUFS, errno.EAGAIN}


# What befalls the interface.


def crosses(sender: Plane, receiver: Plane, ends: Ends) -> None:
    def has_come() -> bool:
        sender.send(burst(sender, ends, PACKETS))
        return any(frame.endswith(PACKETS[-1]) for frame, _ in receiver.receive())

    wait_until(has_come, "a frame")


def test_a_link_that_is_down_is_counted_and_works_again(
    rig: Rig, ends: Ends, stack: ExitStack
) -> None:
    sender, receiver = Plane(ends.a, stack), Plane(ends.b, stack)
    rig.plane(0).down("a")
    assert sender.receive() == []
    frames = [burst(sender, ends, [transport(64)]) for _ in range(3)]
    assert sender.send(*frames) == 3
    assert sender.it.send_errors == 3
    assert sender.it.send_errno == errno.ENETDOWN
    rig.plane(0).up("a")
    crosses(sender, receiver, ends)


def test_an_interface_made_anew_is_bound_again(rig: Rig, ends: Ends, stack: ExitStack) -> None:
    sender, receiver = Plane(ends.a, stack), Plane(ends.b, stack)
    rig.plane(0).delete()
    assert sender.send(burst(sender, ends, [transport(64)])) == 1
    assert sender.it.send_errno in {errno.ENXIO, errno.ENODEV}
    with suppress(OSError):
        sender.bind()  # nothing to bind to: refused, and harmless
    rig.plane(0).recreate()
    assert sender.bind() == 0
    assert receiver.bind() == 0
    crosses(sender, receiver, ends)


def test_nothing_comes_in_before_the_socket_is_bound(ends: Ends, stack: ExitStack) -> None:
    plane = Plane(ends.b, stack, bind=False)
    frame = ethernet(ends.ip(udp(transport(64))))
    with packet_socket(ends.a, 0) as sender:
        sender.send(frame)
        assert plane.receive() == []
        assert plane.bind() == 0
        sender.send(frame)
    assert plane.receive_until(1) == [(frame, 0)]
