# SPDX-License-Identifier: Apache-2.0
"""A rig whose hosts hang on a userspace fabric (tools/fabric) instead of bare planes."""

from __future__ import annotations

from pathlib import Path

from mrc.topology_file import load
from tools.fabric import Fabric, Settings
from tools.rig import shell
from tools.rig.plane import settle
from tools.rig.rig import HOST_SYSCTLS, HUB_SYSCTLS, Rig

OFFLOADS = "tx off sg off tso off gso off gro off tx-udp-segmentation off"
"""What would hand the fabric frames that no wire carries: bursts, and unfinished checksums."""


class FabricRig(Rig):
    """The hosts and planes of a topology around one fabric.

    A host's interfaces can be taken down and up by `plane(n)`; everything that befalls packets on
    the way is the business of `fabric`.

    Attributes:
        topology: As it was read.
        fabric: The process in the middle, from `start` to `close`.
    """

    fabric: Fabric

    def __init__(
        self, topology: Path, settings: Settings | None = None, *, prefix: str | None = None
    ) -> None:
        """Reads the topology; hosts have its names, short ones (`Rig`).

        Raises:
            ConfigError: The topology is wrong.
            ValueError: The rig cannot have hosts of these names.
        """
        self.topology = load(topology)
        self._file = topology
        self._settings = settings or Settings()
        names = [host.name for host in self.topology.hosts]
        super().__init__(names, self.topology.planes, mtu=self.topology.mtu, prefix=prefix)
        length = self.topology.addresses.prefixlen + 16
        for host in self.hosts:
            host.addresses[:] = [
                f"{self.topology.address(host.label, plane)}/{length}"
                for plane in range(self.topology.planes)
            ]

    def _build(self) -> None:
        assert self._hub is not None
        shell.batch(f"netns add {name}" for name in self._namespaces())
        shell.set_sysctls(self._hub, HUB_SYSCTLS)
        labels = [host.label for host in self.hosts]
        for host in self.hosts:
            shell.set_sysctls(host.name, HOST_SYSCTLS)
        shell.batch(line for plane in self.planes for line in plane.links(labels))
        shell.batch((line for p in self.planes for line in p.hub_lines()), netns=self._hub)
        for host in self.hosts:
            shell.batch(["link set lo up", *self._host_lines(host.label)], netns=host.name)
            offloads = "; ".join(f"ethtool -K {p.interface} {OFFLOADS}" for p in self.planes)
            shell.run(["ip", "netns", "exec", host.name, "sh", "-ec", offloads])
        self.fabric = Fabric(self._hub, self._file, self._settings)
        settle(self.planes)

    def _host_lines(self, label: str) -> list[str]:
        """Interfaces, addresses, and every other host's link address: the fabric answers nobody."""
        lines = []
        for plane in self.planes:
            lines += plane.host_lines(label)
            lines += [
                f"neigh replace {self.topology.address(other.label, plane.number)} "
                f"lladdr {plane._mac(other.label)} nud permanent dev {plane.interface}"
                for other in self.hosts
                if other.label != label
            ]
        return lines

    def close(self) -> None:
        """Ends the fabric, then as every rig."""
        if hasattr(self, "fabric"):
            self.fabric.close()
        super().close()
