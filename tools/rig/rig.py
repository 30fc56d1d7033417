# SPDX-License-Identifier: Apache-2.0
"""Building and removing the rig."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from typing import Literal

from tools.rig import names, shell
from tools.rig.cables import settle
from tools.rig.host import Host
from tools.rig.plane import Plane
from tools.rig.site import Site

IPFamily = Literal[4, 6, "ll"]

FIRST_IFINDEX = 100
"""Above what the kernel itself gives to the interfaces of a new namespace."""

HOST_SYSCTLS = {
    f"net/ipv6/conf/{scope}/{key}": 0
    for scope in ("all", "default")
    for key in ("accept_dad", "accept_ra", "autoconf", "router_solicitations")
} | {f"net/ipv4/conf/{scope}/rp_filter": 0 for scope in ("all", "default")}
"""No wait for duplicate addresses, no routers, and an answer may come by another plane."""

HUB_SYSCTLS = {"net/ipv6/conf/default/disable_ipv6": 1}
"""The cable itself says nothing."""


class Rig(Site):
    """Hosts joined by planes, from `start` (or `with`) to `close`; however it ends, it is removed.

    Attributes:
        hosts: In the order of their names.
        planes: In order.
    """

    def __init__(
        self,
        hosts: Sequence[str] = ("a", "b"),
        planes: int = 4,
        *,
        mtu: int = 4200,
        ip: IPFamily = 6,
        prefix: str | None = None,
        keep_address: bool = False,
        direct: bool = False,
        stay: bool = False,
    ) -> None:
        """Says what is to be built.

        Args:
            hosts: Their labels, two to 250: a letter and up to seven more letters or digits.
            planes: How many, 1 to 250.
            mtu: Of the hosts' interfaces, in bytes of an IP packet.
            ip: 6 for fd00:<plane>::<host>/64, 4 for 10.<plane>.0.<host>/24 (planes from 0, hosts
                from 1), "ll" for IPv6 link-local addresses alone.
            prefix: Of the namespaces' names; "mrc" if None.
            keep_address: Whether IPv6 addresses survive a link that goes down
                (sysctl keep_addr_on_down).
            direct: Whether the interfaces of two hosts are one veth pair a plane, without the
                hub: somewhat faster, but nothing can be lost, corrupted or doubled.
            stay: Whether the rig outlives the process, under names without its id.

        Raises:
            ValueError: One of them makes no sense.
        """
        if not 1 <= planes <= 250 or not 2 <= len(hosts) <= 250:
            raise ValueError("a rig has 2 to 250 hosts and 1 to 250 planes")
        names.check_labels(hosts)
        if direct and len(hosts) != 2:
            raise ValueError("direct planes join two hosts")
        super().__init__(prefix, stay=stay)
        self._keep_address = keep_address
        self._hub = None if direct else f"{self._stem}-{names.HUB}"
        self.hosts = tuple(
            Host(
                f"{self._stem}-{label}",
                label,
                number=number,
                addresses=[_address(ip, plane, number) for plane in range(planes)],
            )
            for number, label in enumerate(hosts, 1)
        )
        ids = itertools.count(FIRST_IFINDEX)
        self.planes = tuple(
            Plane(number, self.hosts, hub=self._hub, mtu=mtu, ids=ids) for number in range(planes)
        )

    def plane(self, number: int) -> Plane:
        """A plane by its number, from 0."""
        return self.planes[number]

    def _namespaces(self) -> list[str]:
        return [host.name for host in self.hosts] + ([self._hub] if self._hub else [])

    def _build(self) -> None:
        super()._build()
        sysctls = HOST_SYSCTLS | {
            f"net/ipv6/conf/{scope}/keep_addr_on_down": int(self._keep_address)
            for scope in ("all", "default")
        }
        for host in self.hosts:
            shell.set_sysctls(host.name, sysctls)
        if self._hub is not None:
            shell.set_sysctls(self._hub, HUB_SYSCTLS)
        labels = [host.label for host in self.hosts]
        shell.batch(line for plane in self.planes for line in plane.links(labels))
        if self._hub is not None:
            script = "\n".join(plane.hub_rules() for plane in self.planes)
            shell.run(["ip", "netns", "exec", self._hub, "nft", "-f", "-"], script)
            shell.batch((line for p in self.planes for line in p.hub_lines()), netns=self._hub)
        for host in self.hosts:
            lines = [line for plane in self.planes for line in plane.host_lines(host.label)]
            shell.batch(["link set lo up", *lines], netns=host.name)
        settle(self.planes)


def _address(ip: IPFamily, plane: int, host: int) -> str:
    """A host's address on a plane, with the prefix's length."""
    if ip == 4:
        return f"10.{plane}.0.{host}/24"
    if ip == 6:
        return str(ipaddress.ip_interface(f"fd00:{plane:x}::{host:x}/64"))
    if ip == "ll":  # what the kernel makes of the MAC
        return f"fe80::ff:fe00:{plane << 8 | host:x}/64"
    raise ValueError(f"ip is 4, 6 or 'll', not {ip!r}")
