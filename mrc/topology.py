# SPDX-License-Identifier: Apache-2.0
"""The fabric between the hosts, and the paths that follow from it; `topology_file` reads one.

Each plane is a two-tier Clos: every T0 has one link to every T1. A path from host a to host b in
one plane is then named by a single number, the T0 uplink, and is `a t0a t1? t0b b`; two hosts of
one T0 have one path in each plane. With plane and uplink in the EV (MRC 1.0, Entropy Value; RFC
8986 and 9800 for uSIDs) an EV names one physical path, whatever the number of paths:

    srv6, ecmp   plane EV[15:12], T0 uplink EV[11:0] (in ecmp only a seed of the switches' hash)
    stev         plane EV[15:12], then a bit field a tier, most significant first

uSIDs and EVs are arithmetic: nothing here grows with the number of paths until they are listed.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from mrc.errors import ConfigError

__all__ = [
    "MAX_CARRIER_USIDS",
    "MAX_PLANES",
    "MAX_UPLINKS",
    "USID_BITS",
    "Cable",
    "Forwarding",
    "Host",
    "LinkClass",
    "Path",
    "Routing",
    "Template",
    "Tier",
    "Topology",
    "carrier",
]

Routing = Literal["srv6", "stev"]
"""How an EV names a path: it gives the uSIDs that the sender writes, or switches read a bit field
of it. In srv6 switches pick an uplink for a packet without uSIDs by a hash, which is ecmp."""

MAX_PLANES: Final = 16
MAX_UPLINKS: Final = 4096
"""Twelve bits of an EV name the T0 uplink."""

USID_BITS: Final = 16
MAX_CARRIER_USIDS: Final = 6
"""Most uSIDs of one address (F3216); a longer block leaves fewer."""

_UPLINK_BITS: Final = 12


# The model.


@dataclass(frozen=True, kw_only=True)
class LinkClass:
    """What the links below one tier have in common, in each direction.

    Attributes:
        rate: Bits a second.
        delay: Propagation, ns.
    """

    rate: int
    delay: int


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One tier of switches, the same in every plane.

    Attributes:
        switches: Their names, in order; the position is the number that a uSID and an EV carry.
        usid: Of the first one in plane 0.
        down: Of the links downwards: to hosts (T0), to the tier below (T1).
    """

    switches: tuple[str, ...]
    usid: int
    down: LinkClass


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, which hangs on the same T0 in every plane.

    Attributes:
        name: In the topology.
        number: From 1, in the file's order; the last bits of its addresses.
        t0: The name of its switch.
        usid: In plane 0.
    """

    name: str
    number: int
    t0: str
    usid: int


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A link of one plane.

    Attributes:
        plane: Which.
        lower: The node nearer to the hosts: a host or a T0.
        upper: The switch above it.
        link: Rate and delay.
    """

    plane: int
    lower: str
    upper: str
    link: LinkClass


@dataclass(frozen=True, kw_only=True)
class Forwarding:
    """The static tables of one switch; ports are named by the neighbour they lead to.

    Attributes:
        usid: Its own: it shifts it out of a destination (uN) and looks the rest up.
        ports: Its neighbours: downwards first, then uplink 0, 1, ...
        usids: Next uSID to port (srv6). What is not here is dropped.
        addresses: Destination of a plain packet to its ports (ecmp, stev); with several, port k
            is uplink k.
        field: Where stev finds the uplink in an EV: (lowest bit, number of bits); None: it has
            no uplinks, or picks one by a hash.
    """

    usid: int
    ports: tuple[str, ...]
    usids: Mapping[int, str]
    addresses: Mapping[ipaddress.IPv6Address, tuple[str, ...]]
    field: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Template:
    """All paths between two hosts in one: what an EV is put into to give its uSIDs.

    uSID i of a path is usids[i] + plane * plane_stride, and for i == uplink_hop + uplink.

    Attributes:
        block: The locator block.
        usids: Of the path through plane 0 and uplink 0, without a final zero.
        plane_stride: What each plane adds.
        uplink_hop: Which uSID the uplink goes into; None: the hosts share a T0.
        uplinks: How many there are (1 if uplink_hop is None).
        planes: How many there are.
        routing: How an EV names one of them.
    """

    block: ipaddress.IPv6Network
    usids: tuple[int, ...]
    plane_stride: int
    uplink_hop: int | None
    uplinks: int
    planes: int
    routing: Routing

    @property
    def ev_values(self) -> int:
        """EV[11:0] is below this, 1..4096; in stev the lowest bits are free."""
        if self.routing == "srv6":
            return self.uplinks
        return self.uplinks << _UPLINK_BITS - (self.uplinks - 1).bit_length()

    def path_usids(self, plane: int, uplink: int) -> tuple[int, ...]:
        """The uSIDs of one path."""
        return tuple(
            usid + plane * self.plane_stride + (uplink if hop == self.uplink_hop else 0)
            for hop, usid in enumerate(self.usids)
        )


def carrier(block: ipaddress.IPv6Network, usids: Sequence[int]) -> ipaddress.IPv6Address:
    """The address of a block and the uSIDs behind it, the rest zero."""
    value = int(block.network_address)
    shift = 128 - block.prefixlen
    for usid in usids:
        shift -= USID_BITS
        value |= usid << shift
    return ipaddress.IPv6Address(value)


@dataclass(frozen=True, kw_only=True)
class Path:
    """One physical path.

    Attributes:
        plane: Which.
        uplink: Of the first T0; None: the hosts share it.
        hops: Names of the nodes, both hosts included.
        usids: One for each hop but the first.
        seen: Destination as it arrives at each hop but the first. In srv6 the first of them is what
            the sender writes (the carrier), and each switch shifts one uSID out; in stev it is the
            host's own address all the way.
    """

    plane: int
    uplink: int | None
    hops: tuple[str, ...]
    usids: tuple[int, ...]
    seen: tuple[ipaddress.IPv6Address, ...]

    @property
    def address(self) -> ipaddress.IPv6Address:
        """The destination as it is sent; in srv6 the uSID carrier."""
        return self.seen[0]

    @property
    def switches(self) -> tuple[str, ...]:
        """The hops between the hosts."""
        return self.hops[1:-1]

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Both ends of each link, the one nearer to the hosts first."""
        middle = len(self.hops) // 2
        pairs = enumerate(itertools.pairwise(self.hops))
        return tuple((a, b) if at < middle else (b, a) for at, (a, b) in pairs)

    def __str__(self) -> str:
        return " ".join(self.hops)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A fabric; made by `load` or `parse`, which check it.

    Attributes:
        planes: How many, 1..16.
        routing: How an EV names a path.
        block: uSID locator block.
        plane_stride: What each plane adds to every uSID.
        addresses: Network of the hosts' addresses.
        mtu: Largest IP packet on every link, bytes.
        tiers: T0 first.
        hosts: In the file's order.
    """

    planes: int
    routing: Routing
    block: ipaddress.IPv6Network
    plane_stride: int
    addresses: ipaddress.IPv6Network
    mtu: int
    tiers: tuple[Tier, ...]
    hosts: tuple[Host, ...]

    # Nodes.

    @cached_property
    def _usids(self) -> dict[str, int]:
        """Every node's uSID in plane 0."""
        usids = {host.name: host.usid for host in self.hosts}
        for tier in self.tiers:
            usids |= {name: tier.usid + number for number, name in enumerate(tier.switches)}
        return usids

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @property
    def uplinks(self) -> int:
        """Uplinks of a T0."""
        return len(self.tiers[1].switches)

    def host(self, name: str) -> Host:
        """A host by its name.

        Raises:
            ConfigError: There is none of this name.
        """
        if name not in self._hosts:
            known = ", ".join(self._hosts)
            raise ConfigError(f"the topology has no host {name!r}; it has {known}")
        return self._hosts[name]

    def usid(self, node: str, plane: int) -> int:
        """The uSID of a host or switch in one plane.

        Raises:
            ConfigError: No such node or plane.
        """
        self._check_plane(plane)
        if node not in self._usids:
            raise ConfigError(f"the topology has no node {node!r}")
        return self._usids[node] + plane * self.plane_stride

    def address(self, host: str, plane: int) -> ipaddress.IPv6Address:
        """The address of a host's interface in one plane.

        Raises:
            ConfigError: No such host or plane.
        """
        self._check_plane(plane)
        high = plane << (128 - self.addresses.prefixlen - 16)
        return self.addresses.network_address + (high | self.host(host).number)

    def host_of(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Host | None:
        """The host that has this address in one of its planes; None: no host has."""
        shift = 128 - self.addresses.prefixlen - 16
        offset = int(address) - int(self.addresses.network_address)
        plane, number = offset >> shift, offset & (1 << shift) - 1
        is_ours = address.version == 6 and 0 <= plane < self.planes
        return self.hosts[number - 1] if is_ours and 1 <= number <= len(self.hosts) else None

    def _check_plane(self, plane: int) -> None:
        if not 0 <= plane < self.planes:
            raise ConfigError(f"the topology has no plane {plane}, only 0..{self.planes - 1}")

    # Paths.

    def template(self, source: str, destination: str) -> Template:
        """All paths from one host to another, as the sender's core keeps them.

        Raises:
            ConfigError: No such host, or both are the same.
        """
        first, last = self.host(source), self.host(destination)
        if first == last:
            raise ConfigError(f"no path leads from host {source!r} to itself")
        ends = (self._usids[last.t0], last.usid)
        together = first.t0 == last.t0
        return Template(
            block=self.block,
            usids=ends if together else (self._usids[first.t0], self.tiers[1].usid, *ends),
            plane_stride=self.plane_stride,
            uplink_hop=None if together else 1,
            uplinks=1 if together else self.uplinks,
            planes=self.planes,
            routing=self.routing,
        )

    def paths(self, source: str, destination: str) -> list[Path]:
        """Every path from one host to another, plane by plane.

        Raises:
            ConfigError: No such host, or both are the same.
        """
        template = self.template(source, destination)
        return [
            self._path(template, source, destination, plane, uplink)
            for plane in range(self.planes)
            for uplink in range(template.uplinks)
        ]

    def _path(
        self, template: Template, source: str, destination: str, plane: int, uplink: int
    ) -> Path:
        usids = template.path_usids(plane, uplink)
        first, last = self.host(source), self.host(destination)
        between = [first.t0]
        if template.uplink_hop is not None:
            between += [self.tiers[1].switches[uplink], last.t0]
        if self.routing == "srv6":
            seen = tuple(carrier(self.block, usids[hop:]) for hop in range(len(usids)))
        else:
            seen = (self.address(destination, plane),) * len(usids)
        return Path(
            plane=plane,
            uplink=None if template.uplink_hop is None else uplink,
            hops=(source, *between, destination),
            usids=usids,
            seen=seen,
        )

    def find_host(self, text: str) -> Host:
        """A host by its name or by one of its addresses.

        Raises:
            ConfigError: There is none.
        """
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return self.host(text)
        host = self.host_of(address)
        if host is None:
            raise ConfigError(f"no host of the topology has the address {address}")
        return host

    def path(self, source: str, destination: str, ev: int) -> Path:
        """The path that an EV names.

        What lies above EV[15:0], and below the fields of stev, names no path and is not looked
        at; nor is the uplink between hosts of one T0.

        Raises:
            ConfigError: No such host, or the EV names a plane or an uplink that is not there.
        """
        template = self.template(source, destination)
        plane, low = ev >> _UPLINK_BITS & 0xF, ev & (1 << _UPLINK_BITS) - 1
        self._check_plane(plane)
        shift = self._field[0] if self.routing == "stev" else 0
        uplink = 0 if template.uplink_hop is None else low >> shift
        if uplink >= template.uplinks:
            raise ConfigError(
                f"EV {ev:#x} names uplink {uplink}; a T0 has only 0..{self.uplinks - 1}"
            )
        return self._path(template, source, destination, plane, uplink)

    def ev(self, path: Path) -> int:
        """The EV that names a path, its free bits zero."""
        shift = self._field[0] if self.routing == "stev" else 0
        return path.plane << _UPLINK_BITS | (path.uplink or 0) << shift

    def path_of_address(
        self, source: str, destination: str, address: ipaddress.IPv6Address
    ) -> Path:
        """The path whose carrier an address is, as its sender wrote it.

        Raises:
            ConfigError: It is the carrier of none.
        """
        template = self.template(source, destination)
        bits = 128 - template.block.prefixlen
        rest = int(address) & ((1 << bits) - 1)
        usid = [rest >> bits - USID_BITS * (hop + 1) & 0xFFFF for hop in range(len(template.usids))]
        # The first hop tells the plane, for the stride is in every uSID; then the uplink.
        plane, odd = divmod(usid[0] - template.usids[0], template.plane_stride)
        uplink = 0
        if template.uplink_hop is not None:
            hop = template.uplink_hop
            uplink = usid[hop] - template.usids[hop] - plane * template.plane_stride
        if odd == 0 and 0 <= plane < self.planes and 0 <= uplink < template.uplinks:
            path = self._path(template, source, destination, plane, uplink)
            if path.address == address:
                return path
        raise ConfigError(f"{address} is the carrier of no path from {source} to {destination}")

    @property
    def _field(self) -> tuple[int, int]:
        """The uplink's field of an EV in stev mode: lowest bit, width."""
        width = (self.uplinks - 1).bit_length()
        return _UPLINK_BITS - width, width

    # What switches and cables are told.

    def cables(self) -> Iterator[Cable]:
        """Every link of every plane: hosts' first."""
        t0, t1 = self.tiers
        for plane in range(self.planes):
            for host in self.hosts:
                yield Cable(plane=plane, lower=host.name, upper=host.t0, link=t0.down)
            for lower in t0.switches:
                for upper in t1.switches:
                    yield Cable(plane=plane, lower=lower, upper=upper, link=t1.down)

    def forwarding(self, plane: int) -> dict[str, Forwarding]:
        """The tables of every switch of one plane, by its name.

        Raises:
            ConfigError: No such plane.
        """
        self._check_plane(plane)
        t0, t1 = self.tiers
        tables = {name: self._t0_forwarding(name, plane) for name in t0.switches}
        below = {self.usid(name, plane): name for name in t0.switches}
        for name in t1.switches:
            tables[name] = Forwarding(
                usid=self.usid(name, plane),
                ports=t0.switches,
                usids=below,
                addresses={self.address(host.name, plane): (host.t0,) for host in self.hosts},
                field=None,
            )
        return tables

    def _t0_forwarding(self, switch: str, plane: int) -> Forwarding:
        uplinks = self.tiers[1].switches
        below = tuple(host.name for host in self.hosts if host.t0 == switch)
        ports = (*below, *uplinks)
        return Forwarding(
            usid=self.usid(switch, plane),
            ports=ports,
            usids={self.usid(port, plane): port for port in ports},
            addresses={
                self.address(host.name, plane): (host.name,) if host.t0 == switch else uplinks
                for host in self.hosts
            },
            field=self._field if self.routing == "stev" else None,
        )
