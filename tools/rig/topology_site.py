# SPDX-License-Identifier: Apache-2.0
"""A site whose hosts are those of a topology: the base of the rigs that have switches."""

from __future__ import annotations

from mrc.topology import Topology
from tools.rig import names
from tools.rig.host import Host
from tools.rig.site import Site


class TopologySite(Site):
    """Hosts of a topology, and what a subclass puts between them.

    Attributes:
        topology: What is built.
    """

    def __init__(
        self, topology: Topology, *, prefix: str | None, stay: bool, prefix_length: int
    ) -> None:
        """Names the hosts as the topology does.

        Args:
            topology: What is to be built.
            prefix: As of `Site`.
            stay: As of `Site`.
            prefix_length: Of the hosts' addresses, bits.

        Raises:
            ValueError: The rig cannot have hosts of these names (`names.check_labels`).
        """
        super().__init__(prefix, stay=stay)
        self.topology = topology
        names.check_labels([host.name for host in topology.hosts])
        self.hosts = tuple(
            Host(
                f"{self._stem}-{host.name}",
                host.name,
                number=host.number,
                addresses=[
                    f"{topology.address(host.name, plane)}/{prefix_length}"
                    for plane in range(topology.planes)
                ],
            )
            for host in topology.hosts
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
