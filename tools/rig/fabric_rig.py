# SPDX-License-Identifier: Apache-2.0
"""A rig whose hosts hang on a userspace fabric (tools/fabric) instead of bare planes."""

from __future__ import annotations

import itertools
from pathlib import Path

from mrc.topology_file import load
from tools.fabric import Fabric, Settings
from tools.rig import names, shell
from tools.rig.cables import Cables, settle
from tools.rig.host import Host
from tools.rig.rig import FIRST_IFINDEX, HOST_SYSCTLS, HUB_SYSCTLS
from tools.rig.site import Site

OFFLOADS = "tx off sg off tso off gso off gro off tx-udp-segmentation off"
"""What would hand the fabric frames that no wire carries: bursts, and unfinished checksums."""


class _HostLinks(Cables):
    """One plane's links between hosts and their T0s: each can lose its carrier by itself."""

    def hub_lines(self) -> list[str]:
        """The lines of `ip -n HUB -batch` that bring the hub's ports up, or not."""
        live = self.live()
        return [
            f"link set {self.port(label)} {'up' if label in live else 'down'}"
            for label in self._present
        ]

    def carrier(self, label: str, *, up: bool) -> None:
        """Takes a host's carrier away, or gives it back and waits for it."""
        (self._down.discard if up else self._down.add)(label)
        assert self.hub is not None
        shell.batch(self.hub_lines(), netns=self.hub)
        if up:
            settle([self])


class FabricRig(Site):
    """The hosts of a topology around one fabric.

    What befalls packets on the way is the business of `fabric`; links and switches go down and
    come up by the rig, since hosts see it at their ports.

    Attributes:
        topology: As it was read.
        fabric: The process in the middle, from `start` to `close`.
    """

    fabric: Fabric

    def __init__(
        self,
        topology: Path,
        settings: Settings | None = None,
        *,
        prefix: str | None = None,
        stay: bool = False,
    ) -> None:
        """Reads the topology; hosts have its names, short ones (`Rig`).

        Raises:
            ConfigError: The topology is wrong.
            ValueError: The rig cannot have hosts of these names.
        """
        super().__init__(prefix, stay=stay)
        self.topology = load(topology)
        self._file = topology
        self._settings = settings or Settings()
        self._hub = f"{self._stem}-{names.HUB}"
        length = self.topology.addresses.prefixlen + 16
        planes = range(self.topology.planes)
        names.check_labels([host.name for host in self.topology.hosts])
        self.hosts = tuple(
            Host(
                f"{self._stem}-{host.name}",
                host.name,
                number=host.number,
                addresses=[
                    f"{self.topology.address(host.name, plane)}/{length}" for plane in planes
                ],
            )
            for host in self.topology.hosts
        )
        ids = itertools.count(FIRST_IFINDEX)
        self._links = tuple(
            _HostLinks(plane, self.hosts, hub=self._hub, mtu=self.topology.mtu, ids=ids)
            for plane in planes
        )

    def host(self, name: str) -> Host:
        """A host by its name.

        Raises:
            ValueError: There is none.
        """
        for host in self.hosts:
            if host.label == name:
                return host
        raise ValueError(f"the rig has no host {name!r}")

    def _namespaces(self) -> list[str]:
        return [*super()._namespaces(), self._hub]

    def _build(self) -> None:
        super()._build()
        shell.set_sysctls(self._hub, HUB_SYSCTLS)
        labels = [host.label for host in self.hosts]
        for host in self.hosts:
            shell.set_sysctls(host.name, HOST_SYSCTLS)
        shell.batch(line for links in self._links for line in links.links(labels))
        shell.batch((line for each in self._links for line in each.hub_lines()), netns=self._hub)
        for host in self.hosts:
            shell.batch(["link set lo up", *self._host_lines(host.label)], netns=host.name)
            offloads = "; ".join(f"ethtool -K {each.interface} {OFFLOADS}" for each in self._links)
            shell.run(["ip", "netns", "exec", host.name, "sh", "-ec", offloads])
        self.fabric = Fabric(self._hub, self._file, self._settings)
        settle(self._links)

    def _host_lines(self, label: str) -> list[str]:
        """Interfaces, addresses, and every other host's link address: the fabric answers nobody."""
        lines = []
        for links in self._links:
            lines += links.host_lines(label)
            lines += [
                f"neigh replace {self.topology.address(other.label, links.number)} "
                f"lladdr {links.mac(other.label)} nud permanent dev {links.interface}"
                for other in self.hosts
                if other.label != label
            ]
        return lines

    def set_link(self, plane: int, lower: str, upper: str, *, up: bool) -> None:
        """Takes a link down, or up: its T0 and its T1, or its host, notice it at their ports.

        Raises:
            FabricError: The plane has no such link.
            RigError: The kernel refused.
        """
        self.fabric.link(plane, lower, upper, up=up)
        if lower in {host.label for host in self.hosts}:
            self._links[plane].carrier(lower, up=up)

    def set_switch(self, plane: int, name: str, *, up: bool) -> None:
        """Takes a switch down with all of its links, or up with all of them.

        Raises:
            FabricError, RigError: As of `set_link`.
        """
        for cable in self.topology.cables():
            if cable.plane == plane and name in {cable.lower, cable.upper}:
                self.set_link(plane, cable.lower, cable.upper, up=up)

    def close(self) -> None:
        """Ends the fabric, then as every rig."""
        if hasattr(self, "fabric"):
            self.fabric.close()
        super().close()
