# SPDX-License-Identifier: Apache-2.0
"""Linux itself as every switch of a topology: namespaces with `seg6local End flavors next-csid`.

    host a  p0 ── h0  t0a  u0 ── d0  t1a  d1 ── u0  t0b  h0 ── p0  host b        plane 0
                           u1 ── d0  t1b  d1 ── u1

    with KernelFabric(load("topology.toml")) as fabric:
        fabric.host("a").run(["ping", "-c", "1", fabric.host("b").address(1)])

A switch shifts its own uSID out of a destination and looks the rest up in a static table (RFC 8986,
9800); plain packets to hosts' addresses are forwarded too, with one uplink each. Nothing is learnt:
every port has one neighbour, fe80::1. Needs root, iproute2 of 6.1 or later, nftables.
"""

from __future__ import annotations

import ipaddress
import itertools
import json

from mrc.topology import Cable, Topology
from tools.rig import names, shell
from tools.rig.host import Host
from tools.rig.topology_site import TopologySite

_NEIGHBOUR = "fe80::1"
_ANCHOR = "sr0"
"""What a SID's route names as its device: lo would make it a reject route, a port takes it along
when it goes down."""

_QUIET = {
    f"net/ipv6/conf/{where}/{key}": value
    for where in ("all", "default")
    for key, value in {
        "accept_dad": 0,
        "accept_ra": 0,
        "autoconf": 0,
        "router_solicitations": 0,
        "addr_gen_mode": 1,
    }.items()
}
_FORWARDING = {f"net/ipv6/conf/{where}/forwarding": 1 for where in ("all", "default")}


class _Port:
    """One end of a cable, in the namespace of a node."""

    def __init__(self, netns: str, name: str, index: int) -> None:
        self.netns = netns
        self.name = name
        self.index = index
        self.mac = f"02:00:00:{index >> 16:02x}:{index >> 8 & 0xFF:02x}:{index & 0xFF:02x}"

    def text(self, mtu: int) -> str:
        return f"{self.name} index {self.index} mtu {mtu} address {self.mac} netns {self.netns}"


class KernelFabric(TopologySite):
    """Hosts and switches of a topology; interface "p<plane>" of a host is in that plane.

    Attributes:
        switches: The namespace of each (switch, plane).
    """

    def __init__(
        self, topology: Topology, *, prefix: str | None = None, stay: bool = False
    ) -> None:
        """Names them.

        Args:
            topology: What is to be built; its hosts have short names (`Rig`).
            prefix: Of the namespaces' names; "mrc" if None.
            stay: Whether the rig outlives the process.

        Raises:
            ValueError: The rig cannot have hosts of these names.
        """
        super().__init__(topology, prefix=prefix, stay=stay, prefix_length=128)
        self.switches = dict(self._name_switches())
        self._lines: dict[str, list[str]] = {name: [] for name in self._namespaces()}

    def _name_switches(self) -> list[tuple[tuple[str, int], str]]:
        """(switch, plane) and its namespace."""
        return [
            ((name, plane), f"{self._stem}-{names.switch(plane, number)}")
            for plane in range(self.topology.planes)
            for number, name in enumerate(
                name for tier in self.topology.tiers for name in tier.switches
            )
        ]

    def _namespaces(self) -> list[str]:
        return [*super()._namespaces(), *self.switches.values()]

    def netns(self, node: str, plane: int) -> str:
        """The namespace of a node.

        Raises:
            ValueError: There is no such node.
        """
        found = self.switches.get((node, plane))
        return found if found is not None else self.host(node).name

    def remove_switch(self, name: str, plane: int) -> None:
        """A switch is gone for good, and its neighbours' ports lose their carrier.

        Raises:
            RigError: There is no such switch now.
        """
        names.remove([self.switches[name, plane]])

    def cut(self, lower: str, upper: str, plane: int) -> None:
        """A link between two switches is gone for good: both ends lose their carrier.

        Raises:
            RigError: There is no such link.
        """
        netns = self.netns(lower, plane)
        shell.run(["ip", "-n", netns, "link", "set", self.port_name(lower, upper), "down"])

    # Building.

    def _build(self) -> None:
        super()._build()
        for host in self.hosts:
            shell.set_sysctls(host.name, _QUIET)
        for name in self.switches.values():
            shell.set_sysctls(name, _QUIET | _FORWARDING)
        indexes = itertools.count(100)
        links = []
        for cable in self.topology.cables():
            lower, upper = self._ends(cable, indexes)
            mtu = self.topology.mtu
            links.append(f"link add {lower.text(mtu)} type veth peer name {upper.text(mtu)}")
            for port, other in ((lower, upper), (upper, lower)):
                self._lines[port.netns] += [
                    f"link set {port.name} up",
                    f"neigh add {_NEIGHBOUR} lladdr {other.mac} nud permanent dev {port.name}",
                ]
        shell.batch(links)
        for host in self.hosts:
            self._configure_host(host)
        for plane in range(self.topology.planes):
            self._configure_switches(plane)
        for netns, lines in self._lines.items():
            shell.batch(lines, netns=netns)

    def port_name(self, node: str, neighbour: str) -> str:
        """Of a switch's port: "h<n>" to a host, "u<n>" upwards, "d<n>" downwards."""
        lowest, highest = (tier.switches for tier in self.topology.tiers)
        if neighbour in lowest:
            return f"d{lowest.index(neighbour)}"
        if neighbour in highest:
            return f"u{highest.index(neighbour)}"
        return f"h{self.topology.host(neighbour).number}"

    def _ends(self, cable: Cable, indexes: itertools.count[int]) -> tuple[_Port, _Port]:
        is_host = cable.lower in {host.label for host in self.hosts}
        down = f"p{cable.plane}" if is_host else self.port_name(cable.lower, cable.upper)
        up = self.port_name(cable.upper, cable.lower)
        # Unlike indexes at the ends: else carrier changes are told a second late.
        return (
            _Port(self.netns(cable.lower, cable.plane), down, next(indexes)),
            _Port(self.netns(cable.upper, cable.plane), up, next(indexes)),
        )

    def _configure_host(self, host: Host) -> None:
        lines = self._lines[host.name]
        length = self.topology.addresses.prefixlen + 16
        for plane, address in enumerate(host.addresses):
            network = ipaddress.ip_network(f"{address.split('/')[0]}/{length}", strict=False)
            lines += [
                f"address add {address} dev p{plane} nodad",
                f"route add {network} via {_NEIGHBOUR} dev p{plane} src {address.split('/')[0]}",
            ]

    def _configure_switches(self, plane: int) -> None:
        block = self.topology.block
        length = block.prefixlen
        for name, table in self.topology.forwarding(plane).items():
            lines = self._lines[self.switches[name, plane]]
            lines += [
                f"link add {_ANCHOR} type ifb",
                f"link set {_ANCHOR} up",
                f"route add {self._sid(table.usid)} encap seg6local action End "
                f"flavors next-csid lblen {length} nflen 16 dev {_ANCHOR}",
                # An unknown uSID is dropped in silence, not answered by an ICMPv6 error.
                "route add blackhole ::/0",
            ]
            for usid, neighbour in table.usids.items():
                port = self.port_name(name, neighbour)
                lines.append(f"route add {self._sid(usid)} via {_NEIGHBOUR} dev {port}")
            for address, neighbours in table.addresses.items():
                port = self.port_name(name, neighbours[int(address) % len(neighbours)])
                lines.append(f"route add {address}/128 via {_NEIGHBOUR} dev {port}")

    def _sid(self, usid: int) -> str:
        block = self.topology.block
        address = int(block.network_address) | usid << 128 - block.prefixlen - 16
        return f"{ipaddress.IPv6Address(address)}/{block.prefixlen + 16}"

    # Watching.

    def watch(self) -> None:
        """From now on every node notes the uSID addresses of what arrives there."""
        script = f"""
            table ip6 watch {{
                set seen {{ type ipv6_addr; flags dynamic; size 4096; counter; }}
                chain arrivals {{
                    type filter hook prerouting priority raw;
                    ip6 daddr {self.topology.block} update @seen {{ ip6 daddr counter }}
                }}
            }}
        """
        for name in self._namespaces():
            shell.run(["ip", "netns", "exec", name, "nft", "-f", "-"], script)

    def seen(self, node: str, plane: int) -> dict[ipaddress.IPv6Address, int]:
        """Packets that have arrived at a node since `watch`, by their outer destination there.

        A host sees all its planes' packets whatever the plane.
        """
        command = ["ip", "netns", "exec", self.netns(node, plane), "nft", "-j"]
        listed = json.loads(shell.run([*command, "list", "set", "ip6", "watch", "seen"]))
        (found,) = (each["set"] for each in listed["nftables"] if "set" in each)
        return {
            ipaddress.IPv6Address(each["elem"]["val"]): each["elem"]["counter"]["packets"]
            for each in found.get("elem", [])
        }
