# SPDX-License-Identifier: Apache-2.0
"""A small network of csrc/fabric for tests: two hosts, and switches in a row or side by side."""

from __future__ import annotations

import dataclasses
import ipaddress
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from native.build import load

ffi, lib = load("fabric")

MS = 1_000_000
SECOND = 1_000_000_000
OVERHEAD = 24
"""Bytes of preamble, FCS and gap that each frame costs on a link."""

WRITE = 0xC7
CONTROL, TRIMMED, TRIMMED_LASTHOP, TRIMMABLE, RETX, NO_TRIM = 46, 12, 16, 4, 8, 0
DROPS = (
    *("data_full", "control_full", "link_down", "silent", "rebooting"),
    *("no_route", "hop_limit", "malformed", "loss"),
)


def address(text: str) -> bytes:
    return ipaddress.IPv6Address(text).packed


A, B = "fd00::1", "fd00::2"


def frame(
    psn: int,
    size: int = 1000,
    *,
    ev: int = 0x11112222,
    dscp: int = TRIMMABLE,
    ecn: int = 2,
    destination: str = B,
    outer: str | None = None,
    rtx: bool = False,
    hop_limit: int = 64,
) -> bytes:
    """A write of `size` bytes of payload from A, as MRC 1.0 lays it out."""
    bth = struct.pack(">BBHII", WRITE, 0, 0xFFFF, 0x77, (0x20 if rtx else 0) << 24 | psn)
    transport = bth + bytes(20) + bytes(psn % 251 for _ in range(size)) + b"icrc"
    udp = struct.pack(">HHHH", ev & 0xFFFF, 4791, 8 + len(transport), 0) + transport
    first = 6 << 28 | (dscp << 2 | ecn) << 20
    ip = struct.pack(">IHBB", first | ev >> 16, len(udp), 17, hop_limit)
    packet = ip + address(A) + address(destination) + udp
    if outer is not None:
        ip = struct.pack(">IHBB", first, len(packet), 41, hop_limit)
        packet = ip + address(A) + address(outer) + packet
    return bytes(12) + b"\x86\xdd" + packet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One link; both directions are alike."""

    ends: tuple[str, str]
    rate: int = 1_000_000_000
    delay: int = 0
    data_limit: int = 1 << 30
    control_limit: int = 1 << 30
    mark_from: int = 0
    mark_to: int = 0
    control_weight: int = 0
    trim: bool = False
    mac: bytes = b""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivered:
    """A packet that has reached a host."""

    host: str
    due: int
    frame: bytes
    handle: int
    corrupt: bool

    @property
    def dscp(self) -> int:
        return int(struct.unpack_from(">H", self.frame, 14)[0] >> 6) & 63

    @property
    def ecn(self) -> int:
        return int(struct.unpack_from(">H", self.frame, 14)[0] >> 4) & 3


class Net:
    """A fabric built from named nodes. Hosts have small letters, switches begin with "t".

    Routes are (switch, prefix as an IPv6 address, bytes of it, names of the next nodes).
    """

    def __init__(
        self,
        links: Sequence[Link],
        routes: Sequence[tuple[str, str, int, Sequence[str]]],
        *,
        usids: Mapping[str, int] | None = None,
        fields: Mapping[str, tuple[int, int]] | None = None,
        seed: int = 1,
        packets: int = 2500,
        frame_size: int = 2048,
    ) -> None:
        self.names = list(dict.fromkeys(name for link in links for name in link.ends))
        usids, fields = usids or {}, fields or {}
        nodes = ffi.new("struct fabric_node_config[]", len(self.names))
        for node, name in zip(nodes, self.names, strict=True):
            node.is_switch = name.startswith("t")
            node.has_usid, node.usid = name in usids, usids.get(name, 0)
            node.ev_shift, node.ev_width = fields.get(name, (0, 0))
        self.ports = {
            (link.ends[end], link.ends[1 - end]): 2 * number + end
            for number, link in enumerate(links)
            for end in (0, 1)
        }
        ports = ffi.new("struct fabric_port_config[]", 2 * len(links))
        for (name, _), number in self.ports.items():
            self._set_port(ports[number], links[number // 2], name, number)
        choices = [self.ports[switch, next_] for switch, _, _, nexts in routes for next_ in nexts]
        table = ffi.new("struct fabric_route[]", len(routes))
        first = 0
        for route, (switch, prefix, size, nexts) in zip(table, routes, strict=True):
            route.node, route.prefix, route.prefix_size = (
                self.names.index(switch),
                list(address(prefix)[:size]),
                size,
            )
            route.first, route.count = first, len(nexts)
            first += len(nexts)
        config = ffi.new("struct fabric_config *")
        config.seed, config.block, config.block_size = seed, list(address("fc00::")[:4]), 4
        config.node_count, config.nodes = len(self.names), nodes
        config.port_count, config.ports = 2 * len(links), ports
        config.route_count, config.routes = len(routes), table
        choices_ = ffi.new("uint32_t[]", choices)
        config.choice_count, config.choices = len(choices), choices_
        config.packet_count, config.frame_size, config.rule_count = packets, frame_size, 8
        config.dscp_control, config.dscp_trimmed = CONTROL, TRIMMED
        config.dscp_trimmed_lasthop = TRIMMED_LASTHOP
        config.dscp_trimmable, config.dscp_trimmable_retx = TRIMMABLE, RETX
        index = ffi.new("uint32_t *")
        wrong = lib.fabric_check(config, index)
        if wrong != ffi.NULL:
            raise ValueError(f"{ffi.string(wrong).decode()} ({index[0]})")
        self.memory = ffi.new("uint8_t[]", lib.fabric_size(config))
        self.fabric = lib.fabric_init(config, self.memory)
        self.now = 0

    def _set_port(self, port: Any, link: Link, name: str, number: int) -> None:
        port.node, port.peer = self.names.index(name), number ^ 1
        for field in ("rate", "delay", "data_limit", "control_limit", "mark_from", "mark_to"):
            setattr(port, field, getattr(link, field))
        port.control_weight, port.trim = link.control_weight, link.trim
        if link.mac:
            port.sets_mac, port.mac = True, list(link.mac)

    def enter(self, host: str, next_: str, frame: bytes, *, at: int, handle: int = 0) -> bool:
        """Puts a frame into a host's port; false when the fabric has no packet left."""
        packet = lib.fabric_take(self.fabric)
        if packet == ffi.NULL:
            return False
        packet.size, packet.handle = len(frame), handle
        packet.present = len(frame)
        ffi.memmove(packet.frame, frame, len(frame))
        lib.fabric_enter(self.fabric, self.ports[host, next_], packet, at)
        self.now = at
        return True

    def advance(self, until: int) -> list[Delivered]:
        """Lets time pass, and takes out what has arrived."""
        lib.fabric_advance(self.fabric, until)
        self.now = until
        port = ffi.new("uint32_t *")
        got = []
        ends = {number: ends for ends, number in self.ports.items()}
        while (packet := lib.fabric_poll(self.fabric, port)) != ffi.NULL:
            got.append(
                Delivered(
                    host=ends[port[0]][0],
                    due=packet.due,
                    frame=bytes(ffi.buffer(packet.frame, packet.present)),
                    handle=packet.handle,
                    corrupt=packet.corrupt,
                )
            )
            lib.fabric_give(self.fabric, packet)
        return got

    def rule(
        self, values: Mapping[str, int], *, slot: int = 0, at: tuple[str, str] | None = None
    ) -> None:
        """Sets a rule at the port of at[0] towards at[1], or at the entrance."""
        rule = ffi.new("struct fabric_rule *", dict(values))
        rule.port = 2**32 - 1 if at is None else self.ports[at]
        lib.fabric_rule_set(self.fabric, slot, rule, self.now)

    def node(self, name: str) -> int:
        return self.names.index(name)

    def counters(self, name: str, next_: str) -> dict[str, int]:
        counters = lib.fabric_counters(self.fabric, self.ports[name, next_])
        fields = [field for field, _ in ffi.typeof("struct fabric_counters").fields]
        values = {field: int(getattr(counters, field)) for field in fields if field != "dropped"}
        return values | dict(zip(DROPS, map(int, counters.dropped), strict=True))

    def total(self, *names: str) -> int:
        """The sum of counters over all ports."""
        return sum(self.counters(*ends)[name] for ends in self.ports for name in names)
