# SPDX-License-Identifier: Apache-2.0
"""Clos networks of one or many planes: hosts, switches, and the links between them.

A `Topology` is arrays, so that one with millions of ports is built in seconds. Port
`host * planes + plane` is a host's; those of each switch follow, first down, then up.
Every plane is a network of its own with the same shape.

    cores                       the third tier of three_tier, each linked to every pod
    T1 .. T1    T1 .. T1        every T0 is linked to every T1 of its pod
    T0 .. T0    T0 .. T0
    hosts       hosts
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mrc.errors import ConfigError
from mrc.topology import Topology as Fabric

__all__ = ["Link", "Topology", "from_fabric", "paper", "three_tier", "two_tier"]

SWITCH: Final = np.dtype(
    [
        (name, np.uint32)
        for name in (
            *("first_host", "host_count", "group"),
            *("down_first", "down_width", "up_first", "up_count"),
        )
    ]
)
"""`mrc_sim_switch`: how a switch routes by intervals of hosts."""

_NS: Final = 1e-9

ANY: Final = (1 << 32) - 1
"""Of a limit: there is none."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a link, and the queue in front of it.

    Attributes:
        rate: bit/s, at least 1e6.
        delay: Of propagation, s.
        data_limit: Bytes of data that may wait; `ANY`: no limit.
        control_limit: The same for control packets and trimmed ones.
        mark_from: CE is never set while at most so many bytes wait,
        mark_to: and always from so many on; 0: never.
        control_weight: Control packets served for each of data; 0: control strictly first.
        trim: What finds the queue full is cut to its headers.
        loss: Probability that a packet is lost at random.
        duplicate: Probability that one arrives twice.
        jitter: Of each packet, uniform on top of delay, s, below 4e-3: packets overtake.
    """

    rate: float
    delay: float = 1e-6
    data_limit: int = ANY
    control_limit: int = ANY
    mark_from: int = 0
    mark_to: int = 0
    control_weight: int = 0
    trim: bool = False
    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hosts, switches and links.

    Attributes:
        hosts: How many.
        planes: Of each host, 1..16.
        tiers: Of switches.
        kinds: What ports have in common, by index.
        peer: For each port the port at the other end, uint32.
        node: For each port its node: hosts from 0 on, then switches; uint32.
        kind: For each port its index in `kinds`, uint32.
        switches: Routing intervals, dtype `SWITCH`.
        tier: For each switch its tier, 0 next to the hosts; uint8.
        plane: For each switch its plane, uint8.
        names: For each host its name in the fabric's description, "" where that has none; empty
            if there was no description.
    """

    hosts: int
    planes: int
    tiers: int
    kinds: tuple[Link, ...]
    peer: npt.NDArray[np.uint32]
    node: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint32]
    switches: npt.NDArray[Any]
    tier: npt.NDArray[np.uint8]
    plane: npt.NDArray[np.uint8]
    names: tuple[str, ...] = ()

    def host(self, name: str) -> int:
        """The number of a host by its name.

        Raises:
            ConfigError: There is none of this name.
        """
        if not name or name not in self.names:
            raise ConfigError(f"the topology has no host {name!r}")
        return self.names.index(name)

    def host_port(self, host: int, plane: int) -> int:
        """The port of a host on a plane."""
        return host * self.planes + plane

    def switch(self, *, tier: int, index: int, plane: int = 0) -> int:
        """The number of a switch: the index-th of its tier and plane.

        Raises:
            ConfigError: There is none.
        """
        found = np.flatnonzero((self.tier == tier) & (self.plane == plane))
        if not 0 <= index < len(found):
            raise ConfigError(f"tier {tier} of plane {plane} has {len(found)} switches")
        return int(found[index])

    def up_ports(self, switch: int) -> range:
        """The ports of a switch towards the next tier."""
        first, count = self.switches[switch][["up_first", "up_count"]].item()
        return range(first, first + count)

    def switch_ports(self, switch: int) -> npt.NDArray[np.intp]:
        """All ports of a switch."""
        return np.flatnonzero(self.node == self.hosts + switch)

    def with_kind(self, link: Link, ports: Any) -> Topology:
        """The same network with another kind of link at these ports, and at their other ends."""
        kind = self.kind.copy()
        ends = np.asarray(ports, dtype=np.int64)
        kind[ends] = len(self.kinds)
        kind[self.peer[ends]] = len(self.kinds)
        return replace(self, kinds=(*self.kinds, link), kind=kind)

    @property
    def links(self) -> dict[str, int]:
        """How many links each layer has: `host` to T0, then `t0-t1`, `t1-t2`."""
        names = ["host", "t0-t1", "t1-t2"][: self.tiers]
        up = self.switches["up_count"]
        between = [int(up[self.tier == tier].sum()) for tier in range(self.tiers - 1)]
        return dict(zip(names, [self.hosts * self.planes, *between], strict=True))

    def summary(self) -> dict[str, float]:
        """What table T1 of the MRC paper (arXiv 2605.04333) compares, counted.

        `optics` are of the links between switches and to hosts, two a link, in units of a host's
        whole bandwidth; `switch_ports_per_host` in the same unit. Shares are of what a T0 (uplinks
        of one plane) or a host (ports) loses with one link.
        """
        links = self.links
        up = int(self.switches["up_count"][self.tier == 0].max()) if self.tiers > 1 else 0
        host = self.kinds[self.kind[0]].rate
        rates = np.array([link.rate for link in self.kinds])
        bandwidth = float(rates[self.kind].sum())
        at_switches = float(rates[self.kind[self.hosts * self.planes :]].sum())
        return {
            "hosts": self.hosts,
            "planes": self.planes,
            "tiers": self.tiers,
            "switches": len(self.switches),
            "links": sum(links.values()),
            "longest_path_switches": 2 * self.tiers - 1,
            "optics_per_host": bandwidth / (self.hosts * self.planes * host),
            "switch_ports_per_host": at_switches / (self.hosts * self.planes * host),
            "t0_uplink_share": 1 / up if up else 0.0,
            "host_port_share": 1 / self.planes,
        }


@dataclass
class _Ports:
    """Ports while a network is built: blocks of them, each with its node and kind."""

    count: int = 0
    node: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    kind: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    pairs: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = field(default_factory=list)

    def add(self, nodes: npt.NDArray[Any], each: int, kind: int) -> npt.NDArray[np.int64]:
        """`each` ports at every node; returns their numbers, a row for each node."""
        total = len(nodes) * each
        self.node.append(np.repeat(nodes, each).astype(np.uint32))
        self.kind.append(np.full(total, kind, dtype=np.uint32))
        self.count += total
        return np.arange(self.count - total, self.count).reshape(len(nodes), each)

    def join(self, ends: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> None:
        """Links the ports of two arrays of one shape, element by element."""
        self.pairs.append((ends.ravel(), others.ravel()))

    def peers(self) -> npt.NDArray[np.uint32]:
        """For each port the one at the other end."""
        peer = np.empty(self.count, dtype=np.uint32)
        for ends, others in self.pairs:
            peer[ends] = others
            peer[others] = ends
        return peer


@dataclass(frozen=True)
class _Tier:
    """Switches of one tier and plane: numbers, and ports down and up by row."""

    numbers: npt.NDArray[np.int64]
    down: npt.NDArray[np.int64]
    up: npt.NDArray[np.int64]

    def routes(
        self, *, first_host: npt.NDArray[Any] | int, host_count: int, group: int, width: int
    ) -> npt.NDArray[Any]:
        """Their intervals."""
        rows = np.zeros(len(self.numbers), dtype=SWITCH)
        rows["first_host"] = first_host
        rows["host_count"] = host_count
        rows["group"] = group
        rows["down_first"] = self.down[:, 0]
        rows["down_width"] = width
        rows["up_count"] = self.up.shape[1]
        if self.up.shape[1]:
            rows["up_first"] = self.up[:, 0]
        return rows


class _Builder:
    """Puts planes of equal shape beside each other."""

    def __init__(self, *, hosts: int, planes: int, kinds: tuple[Link, ...]) -> None:
        if not 1 <= planes <= 16:
            raise ConfigError("a host has 1 to 16 planes")
        if hosts < 2:
            raise ConfigError("a network has at least two hosts")
        self.hosts = hosts
        self.planes = planes
        self.kinds = kinds
        self.ports = _Ports()
        self.host_ports = self.ports.add(np.arange(hosts), planes, 0)
        self.routes: list[npt.NDArray[Any]] = []
        self.tiers: list[tuple[int, int, int]] = []  # tier, plane, switches
        self.switches = 0

    def tier(self, count: int, *, down: int, down_kind: int, up: int, up_kind: int) -> _Tier:
        """New switches, each with so many ports."""
        numbers = np.arange(self.switches, self.switches + count)
        self.switches += count
        nodes = numbers + self.hosts
        return _Tier(
            numbers,
            self.ports.add(nodes, down, down_kind),
            self.ports.add(nodes, up, up_kind),
        )

    def finish(self, tier: int, plane: int, routes: npt.NDArray[Any]) -> None:
        """The routes of a tier; called in the order in which the tiers were made."""
        self.routes.append(routes)
        self.tiers.append((tier, plane, len(routes)))

    def topology(self) -> Topology:
        """What was built."""
        columns = np.repeat(
            np.array([(tier, plane) for tier, plane, _ in self.tiers], dtype=np.uint8),
            [count for _, _, count in self.tiers],
            axis=0,
        )
        return Topology(
            hosts=self.hosts,
            planes=self.planes,
            tiers=1 + max(tier for tier, _, _ in self.tiers),
            kinds=self.kinds,
            peer=self.ports.peers(),
            node=np.concatenate(self.ports.node),
            kind=np.concatenate(self.ports.kind),
            switches=np.concatenate(self.routes),
            tier=columns[:, 0],
            plane=columns[:, 1],
        )


def _kinds(
    rate: float, fabric_rate: float | None, delay: float, *, base_rtt: float, trim: bool
) -> tuple[Link, ...]:
    """A host's port, a switch's to a host, and those between switches.

    Queues hold one bandwidth-delay product with trimming, five without, and mark from a fifth to
    four fifths of one on (Ultra Ethernet 1.0, defaults of NSCC). A host's own
    port has no limit: the endpoint gives it one packet at a time.
    """
    between = rate if fabric_rate is None else fabric_rate

    def queued(speed: float) -> Link:
        product = max(int(speed * base_rtt / 8), 16 * 4160)
        return Link(
            rate=speed,
            delay=delay,
            data_limit=product if trim else 5 * product,
            control_limit=product,
            mark_from=product // 5,
            mark_to=4 * product // 5,
            trim=trim,
        )

    return (Link(rate=rate, delay=delay), queued(rate), queued(between))


HOST, TO_HOST, BETWEEN = range(3)
"""Indexes of `Topology.kinds`: a host's port, a switch's port to a host, ports between switches."""


def _base_rtt(tiers: int, rate: float, delay: float) -> float:
    """Of a full packet on the longest path and its answer: 2 * tiers links each way."""
    return 2 * tiers * (2 * delay + (4200 + 140) * 8 / rate)


def _with_delay(topology: Topology, kind: int, delay: float) -> Topology:
    """The same network with another delay of one kind of link."""
    kinds = list(topology.kinds)
    kinds[kind] = replace(kinds[kind], delay=delay)
    return replace(topology, kinds=tuple(kinds))


def two_tier(
    *,
    t0: int,
    hosts: int,
    t1: int,
    planes: int = 1,
    width: int = 1,
    rate: float = 100e9,
    fabric_rate: float | None = None,
    delay: float = 1e-6,
    trim: bool = True,
) -> Topology:
    """A leaf-spine network a plane: every T0 has `width` links to every T1.

    Args:
        t0: T0 switches a plane.
        hosts: Hosts a T0.
        t1: T1 switches a plane.
        planes: Of each host, 1..16.
        width: Parallel links; oversubscription is hosts * rate / (t1 * width * fabric_rate).
        rate: Of a host's port, bit/s.
        fabric_rate: Of links between switches; None: the same.
        delay: Of each link, s.
        trim: Switches trim; queues are then shorter.

    Raises:
        ConfigError: No such network.
    """
    if min(t0, hosts, t1, width) < 1:
        raise ConfigError("every tier has at least one switch, with at least one host and link")
    kinds = _kinds(rate, fabric_rate, delay, base_rtt=_base_rtt(2, rate, delay), trim=trim)
    builder = _Builder(hosts=t0 * hosts, planes=planes, kinds=kinds)
    for plane in range(planes):
        low = builder.tier(t0, down=hosts, down_kind=TO_HOST, up=t1 * width, up_kind=BETWEEN)
        high = builder.tier(t1, down=t0 * width, down_kind=BETWEEN, up=0, up_kind=BETWEEN)
        builder.ports.join(low.down, builder.host_ports[:, plane].reshape(t0, hosts))
        # up[t0, t1, width] meets down[t1, t0, width]
        builder.ports.join(
            low.up.reshape(t0, t1, width),
            high.down.reshape(t1, t0, width).transpose(1, 0, 2).copy(),
        )
        firsts = np.arange(t0) * hosts
        builder.finish(0, plane, low.routes(first_host=firsts, host_count=hosts, group=1, width=1))
        builder.finish(
            1,
            plane,
            high.routes(first_host=0, host_count=t0 * hosts, group=hosts, width=width),
        )
    return builder.topology()


def three_tier(
    *,
    pods: int,
    t0: int,
    hosts: int,
    t1: int,
    cores: int,
    planes: int = 1,
    rate: float = 100e9,
    fabric_rate: float | None = None,
    delay: float = 1e-6,
    trim: bool = True,
) -> Topology:
    """A fat tree a plane: every T0 is linked to every T1 of its pod, each T1 to its own cores.

    With radix k, `pods=k, t0=k//2, hosts=k//2, t1=k//2, cores=k*k//4` is the k-ary fat tree of
    k^3/4 hosts.

    Args:
        pods: Groups of T0 and T1 switches.
        t0: T0 switches a pod.
        hosts: Hosts a T0.
        t1: T1 switches a pod.
        cores: Switches of the third tier, a multiple of t1: core c is linked to T1
            number c // (cores // t1) of every pod.
        planes: Of each host, 1..16.
        rate: Of a host's port, bit/s.
        fabric_rate: Of links between switches; None: the same.
        delay: Of each link, s.
        trim: Switches trim; queues are then shorter.

    Raises:
        ConfigError: No such network.
    """
    if min(pods, t0, hosts, t1, cores) < 1 or cores % t1:
        raise ConfigError(
            "every tier has a switch, and the cores are a multiple of the T1 of a pod"
        )
    each = cores // t1
    pod_hosts = t0 * hosts
    kinds = _kinds(rate, fabric_rate, delay, base_rtt=_base_rtt(3, rate, delay), trim=trim)
    builder = _Builder(hosts=pods * pod_hosts, planes=planes, kinds=kinds)
    for plane in range(planes):
        low = builder.tier(pods * t0, down=hosts, down_kind=TO_HOST, up=t1, up_kind=BETWEEN)
        middle = builder.tier(pods * t1, down=t0, down_kind=BETWEEN, up=each, up_kind=BETWEEN)
        core = builder.tier(cores, down=pods, down_kind=BETWEEN, up=0, up_kind=BETWEEN)
        builder.ports.join(low.down, builder.host_ports[:, plane].reshape(pods * t0, hosts))
        builder.ports.join(  # up[pod, t0, t1] meets down[pod, t1, t0]
            low.up.reshape(pods, t0, t1),
            middle.down.reshape(pods, t1, t0).transpose(0, 2, 1).copy(),
        )
        builder.ports.join(  # up[pod, t1 and core of it] meets down[core, pod]
            middle.up.reshape(pods, cores), core.down.transpose().copy()
        )
        low_firsts = np.arange(pods * t0) * hosts
        pod_firsts = np.repeat(np.arange(pods) * pod_hosts, t1)
        builder.finish(
            0, plane, low.routes(first_host=low_firsts, host_count=hosts, group=1, width=1)
        )
        builder.finish(
            1,
            plane,
            middle.routes(first_host=pod_firsts, host_count=pod_hosts, group=hosts, width=1),
        )
        builder.finish(
            2,
            plane,
            core.routes(first_host=0, host_count=pods * pod_hosts, group=pod_hosts, width=1),
        )
    return builder.topology()


def from_fabric(fabric: Fabric, *, trim: bool = True) -> Topology:
    """The fabric that a `topology.toml` describes, which library, commands and rig read as well.

    Planes, switches, and rate and delay of each tier's links are the file's; hosts have its names
    (`Topology.host`), switches of a tier its order. Switches pick uplinks by a hash of addresses
    and EV, as the file's do for a packet without uSIDs. A T0 with fewer hosts than another one gets
    as many, which have no name and nothing to do.

    Args:
        fabric: What `mrc.topology_file.load` read.
        trim: Switches trim; queues are then shorter.

    Raises:
        ConfigError: It has one host only.
    """
    t0, t1 = fabric.tiers
    hosts = {name: [host.name for host in fabric.hosts if host.t0 == name] for name in t0.switches}
    most = max(len(names) for names in hosts.values())
    topology = two_tier(
        t0=len(t0.switches),
        hosts=most,
        t1=len(t1.switches),
        planes=fabric.planes,
        rate=t0.down.rate,
        fabric_rate=t1.down.rate,
        delay=max(t0.down.delay, t1.down.delay) * _NS,
        trim=trim,
    )
    for kind, link in ((HOST, t0.down), (TO_HOST, t0.down), (BETWEEN, t1.down)):
        topology = _with_delay(topology, kind, link.delay * _NS)
    names = [name for below in hosts.values() for name in [*below, *[""] * (most - len(below))]]
    return replace(topology, names=tuple(names))


def paper(*, rate: float = 100e9, delay: float = 1e-6, trim: bool = True) -> Topology:
    """The network of the MRC paper: 131,072 NICs, 8 planes, two tiers of 512-port switches."""
    return two_tier(t0=512, hosts=256, t1=256, planes=8, rate=rate, delay=delay, trim=trim)
