# SPDX-License-Identifier: Apache-2.0
"""From a topology to the arrays that csrc/fabric is configured with."""

from __future__ import annotations

import itertools
from typing import Any

from mrc.topology import Topology
from tools.fabric._fabric import ffi, lib
from tools.fabric.settings import Settings
from tools.rig.names import mac

PACKETS = 8192
"""In the fabric at once; at 9 KB a packet 75 MB."""

RULES = 64
NIC_BYTES = 16 << 20
"""Of a host's own queue: what waits there waits in the host's socket buffer otherwise."""

ETHERNET = 14
USID = 2

Port = tuple[int, str, str]
"""Plane, node, and the neighbour that the port leads to."""


class Network:
    """The configuration of one fabric, and the names of its parts.

    Attributes:
        config: `struct fabric_config *`.
        ports: The number of every port.
        nodes: The number of every (plane, name).
        host_ports: Those of hosts, whose frames come from interfaces.
    """

    def __init__(self, topology: Topology, settings: Settings) -> None:
        hosts = [host.name for host in topology.hosts]
        switches = [name for tier in topology.tiers for name in tier.switches]
        planes = range(topology.planes)
        names = list(itertools.product(planes, [*hosts, *switches]))
        self.nodes = {name: number for number, name in enumerate(names)}
        self.ports: dict[Port, int] = {}
        for cable in topology.cables():
            for ends in ((cable.lower, cable.upper), (cable.upper, cable.lower)):
                self.ports[cable.plane, *ends] = len(self.ports)
        self.host_ports = [port for port in self.ports if port[1] in hosts]
        # cffi frees an array with its last reference in Python.
        self._kept = (
            self._nodes(topology),
            self._ports(topology, settings),
            *self._routes(topology),
        )
        nodes, ports, routes, choices = self._kept
        prefix = topology.block.prefixlen // 8
        self.config = ffi.new(
            "struct fabric_config *",
            {
                "seed": settings.seed,
                "block_size": prefix,
                "node_count": len(nodes),
                "nodes": nodes,
                "port_count": len(ports),
                "ports": ports,
                "route_count": len(routes),
                "routes": routes,
                "choice_count": len(choices),
                "choices": choices,
                "block": list(topology.block.network_address.packed[:prefix]),
                "packet_count": PACKETS,
                "frame_size": max(128, topology.mtu + ETHERNET),
                "rule_count": RULES,
                "dscp_control": 46,
                "dscp_trimmed": 12,
                "dscp_trimmed_lasthop": 16,
                "dscp_trimmable": 4,
                "dscp_trimmable_retx": 8,
            },
        )
        index = ffi.new("uint32_t *")
        wrong = lib.fabric_check(self.config, index)
        if wrong != ffi.NULL:
            raise ValueError(f"{ffi.string(wrong).decode()} (number {index[0]})")

    def _nodes(self, topology: Topology) -> Any:
        nodes = ffi.new("struct fabric_node_config[]", len(self.nodes))
        for plane in range(topology.planes):
            for name, table in topology.forwarding(plane).items():
                node = nodes[self.nodes[plane, name]]
                node.is_switch = node.has_usid = True
                node.usid = table.usid
                if table.field is not None:
                    node.ev_shift, node.ev_width = table.field
        return nodes

    def _ports(self, topology: Topology, settings: Settings) -> Any:
        ports = ffi.new("struct fabric_port_config[]", len(self.ports))
        hosts = {host.name: host.number for host in topology.hosts}
        for cable in topology.cables():
            for name, next_ in ((cable.lower, cable.upper), (cable.upper, cable.lower)):
                number = self.ports[cable.plane, name, next_]
                port = ports[number]
                port.node, port.peer = self.nodes[cable.plane, name], number ^ 1
                port.rate, port.delay = cable.link.rate, cable.link.delay
                port.control_weight = settings.control_weight
                if next_ in hosts:
                    # As a router does: a round trip comes back to who addressed it to another.
                    port.sets_mac = True
                    port.mac = bytes.fromhex(mac(cable.plane, hosts[next_]).replace(":", ""))
                if name in hosts:
                    port.data_limit = port.control_limit = NIC_BYTES
                else:
                    port.data_limit, port.control_limit = (
                        settings.data_bytes,
                        settings.control_bytes,
                    )
                    port.mark_from, port.mark_to = settings.mark_from, settings.mark_to
                    port.trim = settings.trim
        return ports

    def _routes(self, topology: Topology) -> tuple[Any, Any]:
        rows: list[tuple[int, bytes, list[int]]] = []
        usid_at = topology.block.prefixlen // 8
        block = topology.block.network_address.packed[:usid_at]
        for plane in range(topology.planes):
            for name, table in topology.forwarding(plane).items():
                node = self.nodes[plane, name]
                for usid, next_ in table.usids.items():
                    prefix = block + usid.to_bytes(USID, "big")
                    rows.append((node, prefix, [self.ports[plane, name, next_]]))
                for address, nexts in table.addresses.items():
                    choices = [self.ports[plane, name, next_] for next_ in nexts]
                    rows.append((node, address.packed, choices))
        routes = ffi.new("struct fabric_route[]", len(rows))
        first = 0
        for route, (node, prefix, choices) in zip(routes, rows, strict=True):
            route.node, route.prefix, route.prefix_size = node, list(prefix), len(prefix)
            route.first, route.count = first, len(choices)
            first += len(choices)
        return routes, ffi.new("uint32_t[]", [port for _, _, ports in rows for port in ports])
