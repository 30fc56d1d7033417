# SPDX-License-Identifier: Apache-2.0
"""A rig whose hosts hang on a userspace fabric (tools/fabric) instead of bare planes."""

from __future__ import annotations

import itertools
from pathlib import Path

from mrc.topology_file import load
from tools.fabric import Fabric, Settings
from tools.rig import names, shell
from tools.rig.cables import Cables, settle
from tools.rig.rig import FIRST_IFINDEX, HOST_SYSCTLS, HUB_SYSCTLS
from tools.rig.topology_site import TopologySite

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


class FabricRig(TopologySite):
    """The hosts of a topology around one fabric.

    What befalls packets on the way is the business of `fabric`; links and switches go down and
    come up by the rig, since hosts see it at their ports.

    Attributes:
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
        control: Path | None = None,
    ) -> None:
        """Reads the topology; hosts have its names, short ones (`Rig`).

        Args:
            topology: The file.
            settings: Of the switches.
            prefix: Of the namespaces' names; "mrc" if None.
            stay: Whether the rig and its fabric outlive the process.
            control: Where the fabric's control socket is to be; None: a temporary place.

        Raises:
            ConfigError: The topology is wrong.
            ValueError: The rig cannot have hosts of these names.
        """
        read = load(topology)
        length = read.addresses.prefixlen + 16
        super().__init__(read, prefix=prefix, stay=stay, prefix_length=length)
        self._file = topology
        self._settings = settings or Settings()
        self._control = control
        self._hub = f"{self._stem}-{names.HUB}"
        ids = itertools.count(FIRST_IFINDEX)
        self._links = tuple(
            _HostLinks(plane, self.hosts, hub=self._hub, mtu=self.topology.mtu, ids=ids)
            for plane in range(read.planes)
        )

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
            lines = [line for each in self._links for line in self._host_lines(each, host.label)]
            shell.batch(["link set lo up", *lines], netns=host.name)
            offloads = "; ".join(f"ethtool -K {each.interface} {OFFLOADS}" for each in self._links)
            shell.run(["ip", "netns", "exec", host.name, "sh", "-ec", offloads])
        self.fabric = Fabric(self._hub, self._file, self._settings, control=self._control)
        settle(self._links)

    def _host_lines(self, links: _HostLinks, label: str) -> list[str]:
        """A host's interface, its address, and the others' link addresses.

        The fabric answers nobody who asks for one.
        """
        return links.host_lines(label) + [
            f"neigh replace {self.topology.address(other.label, links.number)} "
            f"lladdr {links.mac(other.label)} nud permanent dev {links.interface}"
            for other in self.hosts
            if other.label != label
        ]

    def set_interface(self, plane: int, host: str, *, up: bool) -> None:
        """Takes a host's own interface down (`ip link`), or up again with all that it had.

        The kernel flushes IPv6 addresses, routes and neighbours, permanent ones too, of an
        interface that goes down. The T0 loses its carrier, which it does not mind.

        Raises:
            RigError: The kernel refused.
            ValueError: There is no such host.
        """
        links = self._links[plane]
        down = [f"link set {links.interface} down"]
        lines = self._host_lines(links, host) if up else down
        shell.batch(lines, netns=self.host(host).name)
        if up:
            settle([links])

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
