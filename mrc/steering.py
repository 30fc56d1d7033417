# SPDX-License-Identifier: Apache-2.0
"""Source routing of an endpoint: which host of the topology it is, and its paths to a peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mrc.config import Config
from mrc.errors import ConfigError, HandshakeError
from mrc.planes import Address, LocalPlane
from mrc.topology import Path, Template, Topology
from mrc.topology_file import load

__all__ = ["Steering", "overhead"]

_OUTER_IPV6: Final = 40
_SRH: Final = 24


def overhead(config: Config) -> int:
    """Bytes of an IP packet that source routing takes from every payload."""
    if config.routing != "srv6":
        return 0
    return _OUTER_IPV6 + (_SRH if config.srh else 0)


class Steering:
    """The paths from this host, where the sender chooses them.

    Raises:
        ConfigError: The topology is wrong, or the planes are not those of one of its hosts.
        OSError: The topology cannot be read.
    """

    def __init__(self, topology: Topology, planes: Sequence[LocalPlane]) -> None:
        self._topology = topology
        self._name = self._here(planes)

    @property
    def topology(self) -> Topology:
        """The fabric."""
        return self._topology

    @property
    def here(self) -> str:
        """Our name in it."""
        return self._name

    @classmethod
    def of(cls, config: Config, planes: Sequence[LocalPlane]) -> Steering | None:
        """That of an endpoint with these settings and planes; None: switches choose the ways."""
        if config.routing == "ecmp":
            return None
        topology = load(config.topology)
        if topology.routing != config.routing:
            raise ConfigError(
                f"routing = {config.routing!r}, but that of {config.topology} is "
                f"{topology.routing!r}"
            )
        return cls(topology, planes)

    def _here(self, planes: Sequence[LocalPlane]) -> str:
        """Our name: plane n must have our address in the topology's plane n, as EVs name it."""
        names = set()
        for plane in planes:
            address = plane.interface.address
            if address is None:
                continue  # it is down, or will have one later
            host = self._topology.host_of(address)
            if host is None:
                raise ConfigError(
                    f"plane {plane.interface.name} has the address {address}, "
                    "which no host of the topology has"
                )
            wanted = self._topology.address(host.name, plane.number)
            if address != wanted:
                raise ConfigError(
                    f"plane {plane.interface.name} is number {plane.number} and has the address "
                    f"{address}; the topology's is {wanted}: name the planes in its order"
                )
            names.add(host.name)
        if not names:
            raise ConfigError("no plane has an address, so which host this is cannot be told")
        if len(names) != 1:
            raise ConfigError(f"the planes are of different hosts: {', '.join(sorted(names))}")
        return names.pop()

    def name_of(self, addresses: Iterable[Address]) -> str:
        """The name of the peer that has these addresses.

        Raises:
            HandshakeError: No host, or more than one, of the topology has them.
        """
        hosts = {self._topology.host_of(address) for address in addresses}
        host = hosts.pop() if len(hosts) == 1 else None
        if host is None:
            raise HandshakeError("the peer's addresses are not those of a host of the topology")
        return host.name

    def path(self, addresses: Iterable[Address], ev: int) -> Path | None:
        """The path to the peer that has these addresses, by its EV; None: it names none."""
        try:
            return self._topology.path(self._name, self.name_of(addresses), ev)
        except (ConfigError, HandshakeError):
            return None

    def template(self, addresses: Iterable[Address]) -> Template:
        """All paths to the peer that has these addresses.

        Raises:
            HandshakeError: As `name_of`.
        """
        return self._topology.template(self._name, self.name_of(addresses))
