# SPDX-License-Identifier: Apache-2.0
"""The cables of one plane: a veth pair from every host to the hub, or between two hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tools.rig import names, shell
from tools.rig.host import Host

HUB_MTU = 65535
"""So that the hosts' own MTUs alone decide what crosses."""

SETTLE_TIMEOUT = 10.0
"""Seconds that an interface has to become ready in; it takes milliseconds."""


class Cables:
    """Those of one plane.

    Attributes:
        number: Which plane; its interface is "p<number>" in every host.
        hub: The namespace in the middle; None if the hosts' interfaces are one veth pair.
    """

    def __init__(
        self, number: int, hosts: Sequence[Host], *, hub: str | None, mtu: int, ids: Iterator[int]
    ) -> None:
        self.number = number
        self.hub = hub
        self._hosts = {host.label: host for host in hosts}
        self._mtus = {host.label: mtu for host in hosts}
        self._ids = ids  # ifindexes, unique in the rig
        self._present: set[str] = set()
        self._down: set[str] = set()

    @property
    def interface(self) -> str:
        """The name of the plane's interface in each host."""
        return f"p{self.number}"

    def port(self, label: str) -> str:
        """The hub's interface for a host."""
        return f"{self.interface}-{label}"

    def mac(self, label: str) -> str:
        """The link address of a host's interface."""
        return names.mac(self.number, self._hosts[label].number)

    def label(self, host: Host | str) -> str:
        """A host's label.

        Raises:
            ValueError: The rig has no such host.
        """
        label = host if isinstance(host, str) else host.label
        if label not in self._hosts:
            raise ValueError(f"the rig has no host {label!r}")
        return label

    def links(self, labels: Sequence[str]) -> list[str]:
        """The lines of `ip -batch` that make the interfaces of these hosts, down."""
        lines = []
        ends = [
            f"{self.interface} index {next(self._ids)} mtu {self._mtus[label]} "
            f"address {self.mac(label)} netns {self._hosts[label].name}"
            for label in labels
        ]
        if self.hub is None:
            lines.append(f"link add {ends[0]} type veth peer name {ends[1]}")
        else:
            for label, end in zip(labels, ends, strict=True):
                port = f"{self.port(label)} index {next(self._ids)} mtu {HUB_MTU}"
                lines.append(f"link add {end} type veth peer name {port} netns {self.hub}")
        self._present.update(labels)
        return lines

    def host_lines(self, label: str) -> list[str]:
        """The lines of `ip -n HOST -batch` that bring a host's interface up, with its address."""
        address = self._hosts[label].addresses[self.number]
        lines = [f"link set {self.interface} up"]
        if not address.startswith("fe80:"):  # the kernel makes that one itself, from the MAC
            nodad = " nodad" if ":" in address else ""
            lines.append(f"address replace {address} dev {self.interface}{nodad}")
        return lines

    def live(self) -> list[str]:
        """The hosts that have the interface, up, and a carrier."""
        return [label for label in self._hosts if label in self._present - self._down]


def settle(cables: Sequence[Cables]) -> None:
    """Waits until the kernel has done what it puts off when an interface comes up.

    Until its worker has seen the carrier a queue drops what is sent, and until it has joined an
    address's group, neighbours ask for that address in vain, and again only a second later.

    Raises:
        RigError: An interface does not come up, for example because it was changed by hand.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while missing := _unsettled(cables):
        if time.monotonic() > deadline:
            raise shell.RigError("ip link, ip maddress", f"not ready: {', '.join(missing)}")
        time.sleep(0.002)


def _unsettled(cables: Sequence[Cables]) -> list[str]:
    """The live interfaces that are not ready yet, of the hosts and of the hub."""
    missing = []
    for label, host in cables[0]._hosts.items():
        live = [plane for plane in cables if label in plane.live()]
        if live:
            running, joined = shell.running(host.name), host.groups()
            for plane in live:
                group = host.solicited_group(plane.number)
                if plane.interface not in running or (group and group not in joined):
                    missing.append(f"{plane.interface} of {label}")
    hub = cables[0].hub
    if hub is not None:
        running = shell.running(hub)
        ports = [plane.port(label) for plane in cables for label in plane.live()]
        missing += [port for port in ports if port not in running]
    return missing
