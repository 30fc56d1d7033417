# SPDX-License-Identifier: Apache-2.0
"""A plane of the rig: a cable between two hosts, or a switch among more, and its faults.

A direction is "both", or "a->b" for what host a sends to host b. Every method returns once the
kernel has done it. All raise `RigError` when a tool fails (the interface is deleted, say),
ValueError for a direction, a host or a number that makes no sense.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tools.rig import shell
from tools.rig.cables import Cables, settle
from tools.rig.host import Host
from tools.rig.impairment import Impairment, Port, ruleset

BURST = 80_000
"""Bytes that tbf lets pass at once: more than a GSO frame (64 KiB), which it would cut else."""


class Plane(Cables):
    """One plane, made by `Rig`: its cables, and what befalls frames on them."""

    def __init__(
        self, number: int, hosts: Sequence[Host], *, hub: str | None, mtu: int, ids: Iterator[int]
    ) -> None:
        super().__init__(number, hosts, hub=hub, mtu=mtu, ids=ids)
        self._faults = {(a, b): Impairment() for a in self._hosts for b in self._hosts if a != b}

    # What it is made of.

    def _labels(self, host: Host | str | None) -> list[str]:
        return list(self._hosts) if host is None else [self.label(host)]

    def _pairs(self, direction: str) -> list[tuple[str, str]]:
        if direction == "both":
            return list(self._faults)
        source, _, destination = direction.partition("->")
        if (source, destination) not in self._faults:
            raise ValueError(f'{direction!r} is not "both" nor like "a->b" with hosts of the rig')
        return [(source, destination)]

    def hub_lines(self) -> list[str]:
        """The lines of `ip -n HUB -batch` that set the hub's ports.

        On a cable, which has two ends, an end loses its carrier when the other goes down.
        """
        cable = len(self._hosts) == 2
        missing = self._down | (set(self._hosts) - self._present)
        return [
            f"link set {self.port(label)} {'down' if cable and missing - {label} else 'up'}"
            for label in self._present
        ]

    def hub_rules(self) -> str:
        """The hub's nftables script for this plane."""
        ports = [
            Port(label=label, interface=self.port(label), mac=self.mac(label))
            for label in self._hosts
            if label in self._present
        ]
        return ruleset(self.interface, ports, self._faults)

    def _set_hub(self) -> None:
        if self.hub is not None:
            shell.batch(self.hub_lines(), netns=self.hub)
            shell.run(["ip", "netns", "exec", self.hub, "nft", "-f", "-"], self.hub_rules())

    def live(self) -> list[str]:
        """The hosts that have the interface, up, and a carrier."""
        up = [label for label in self._hosts if label in self._present - self._down]
        return [] if len(self._hosts) == 2 and len(up) < 2 else up

    # What befalls frames.

    def _impair(self, direction: str, change: Callable[[Impairment], Impairment]) -> None:
        """Changes faults, and loads the plane's rules anew, at once and as a whole."""
        if self.hub is None:
            raise shell.RigError("nft", "a rig whose planes are direct can lose nothing")
        before = dict(self._faults)
        for pair in self._pairs(direction):
            self._faults[pair] = change(before[pair])
        try:
            self._set_hub()
        except shell.RigError:
            self._faults = before
            raise

    def loss(
        self, percent: float = 0.0, *, every: int = 0, match: str = "", direction: str = "both"
    ) -> None:
        """Makes frames vanish without a trace: nftables `drop` at the hub's ingress.

        A GSO frame is lost whole; with `offload(False)` packets are lost, each by its own draw.
        What was set before for the direction is replaced; `loss(0)` ends it.

        Args:
            percent: Of the frames, each by a draw of its own; the kernel's draws have no seed.
            every: n for the n-th, 2n-th, ... frame after this call or any later change to
                the plane's faults; every frame counts, also of ARP and of neighbour discovery.
            match: An nftables expression; only frames that match can be lost or are counted,
                as with "udp dport 4791".
            direction: "both" or like "a->b".
        """
        self._impair(direction, lambda old: replace(old, loss=percent, every=every, match=match))

    def blackhole(self, *, direction: str = "both") -> None:
        """Lets every frame vanish, while both ends keep their carrier (nftables `drop`)."""
        self._impair(direction, lambda old: replace(old, blackhole=True))

    def corrupt(self, percent: float, *, offset: int = 12, direction: str = "both") -> None:
        """Turns four bits of one byte (nftables payload `set`), checksums left as they are.

        A frame too short to have the byte stays as it is; of a GSO frame only the first packet
        is hit, unless `offload(False)`.

        Args:
            percent: Of the UDP frames, each by a draw of its own.
            offset: Of the byte from the start of the UDP payload; 12 is the first after the BTH.
            direction: "both" or like "a->b".
        """
        self._impair(direction, lambda old: replace(old, corrupt=percent, offset=offset))

    def duplicate(self, percent: float, *, direction: str = "both") -> None:
        """Makes frames arrive twice, at once after each other (nftables `dup`)."""
        self._impair(direction, lambda old: replace(old, duplicate=percent))

    def heal(self) -> None:
        """Ends blackhole, loss, corruption and duplication in all directions (nftables).

        Rates, MTUs, links and offloads stay as they are.
        """
        self._impair("both", lambda _: Impairment())

    def lost(self) -> int:
        """Frames that vanished by the rules since these were last changed (`nft list`)."""
        return self._counted(dropping=True)

    def corrupted(self) -> int:
        """Frames that were corrupted since the rules were last changed (`nft list`)."""
        return self._counted(dropping=False)

    def _counted(self, *, dropping: bool) -> int:
        if self.hub is None:
            return 0
        command = ["ip", "netns", "exec", self.hub, "nft", "-j"]
        listed = json.loads(shell.run([*command, "list", "table", "netdev", self.interface]))
        rules = [item["rule"]["expr"] for item in listed["nftables"] if "rule" in item]
        return sum(
            expression["counter"]["packets"]
            for rule in rules
            for expression in rule
            if "counter" in expression and any("drop" in each for each in rule) == dropping
        )

    # What limits it.

    def rate(self, mbit: float | None, *, queue_ms: float = 10.0, direction: str = "both") -> None:
        """Shapes a sender on its own interface (tc tbf), headers included.

        GSO frames pass whole; the sender's socket feels the queue: its buffer fills, and a frame
        beyond the queue is refused with ENOBUFS.

        Args:
            mbit: Mb/s; None removes the limit.
            queue_ms: How long the queue is, at that rate, beyond the burst of 80 kB.
            direction: "both" or like "a->b", which shapes all that host a sends on the plane.
        """
        for label in sorted({source for source, _ in self._pairs(direction)}):
            tc = ["tc", "-n", self._hosts[label].name, "qdisc"]
            shell.run([*tc, "replace", "dev", self.interface, "root", *_shaper(mbit, queue_ms)])

    def set_mtu(self, host: Host | str, mtu: int) -> None:
        """Sets the MTU of a host's interface (`ip link`): larger frames to it vanish then.

        Args:
            host: Whose.
            mtu: Bytes of an IP packet; below 1280 the kernel takes IPv6 off the interface.
        """
        label = self.label(host)
        shell.batch([f"link set {self.interface} mtu {mtu}"], netns=self._hosts[label].name)
        self._mtus[label] = mtu

    def offload(self, on: bool, *, host: Host | str | None = None) -> None:
        """Sets tx-udp-segmentation (`ethtool -K`): off, the kernel cuts a host's GSO frames.

        They are cut where they leave the host, behind its qdisc.

        Args:
            on: True is what a new interface has.
            host: Whose; all hosts' if None.
        """
        value = "on" if on else "off"
        for label in self._labels(host):
            ethtool = ["ip", "netns", "exec", self._hosts[label].name, "ethtool"]
            shell.run([*ethtool, "-K", self.interface, "tx-udp-segmentation", value])

    # Its links and addresses.

    def down(self, host: Host | str) -> None:
        """Takes a host's interface down (`ip link`).

        The kernel flushes its IPv6 addresses and routes, unless the rig keeps them. If the rig
        has two hosts, the other loses its carrier, some milliseconds later.
        """
        label = self.label(host)
        shell.batch([f"link set {self.interface} down"], netns=self._hosts[label].name)
        self._down.add(label)
        if self.hub is not None:
            shell.batch(self.hub_lines(), netns=self.hub)

    def up(self, host: Host | str) -> None:
        """Brings a host's interface up again, with its address (`ip link`, `ip address`).

        If it gets its carrier, it carries frames when this returns.
        """
        label = self.label(host)
        shell.batch(self.host_lines(label), netns=self._hosts[label].name)
        self._down.discard(label)
        if self.hub is not None:
            shell.batch(self.hub_lines(), netns=self.hub)
        settle([self])

    def delete(self, host: Host | str | None = None) -> None:
        """Deletes interfaces (`ip link`): a host's, or all hosts' if None.

        If the rig has two hosts, the other loses its carrier; if its planes are direct, the
        other's interface goes too.
        """
        gone = self._labels(host)
        for label in gone if self.hub is not None else gone[:1]:
            shell.batch([f"link delete {self.interface}"], netns=self._hosts[label].name)
        self._present -= set(self._hosts if self.hub is None else gone)
        self._set_hub()

    def recreate(self) -> None:
        """Makes the interfaces that were deleted again, up, with new ifindexes.

        Name, MAC, MTU and addresses are as before, rate and offload as of a new interface.
        """
        missing = [label for label in self._hosts if label not in self._present]
        if not missing:
            return
        shell.batch(self.links(missing))
        self._down -= set(missing)
        for label in missing:
            shell.batch(self.host_lines(label), netns=self._hosts[label].name)
        self._set_hub()
        settle([self])

    def change_address(self, host: Host | str, address: str) -> None:
        """Gives a host's interface another address in place of all of its kind (`ip address`).

        Args:
            host: Whose.
            address: With the prefix's length: "fd00:2::77/64", "10.2.0.77/24".
        """
        label = self.label(host)
        # Link-local addresses stay: IPv6 itself needs one on every interface.
        family = "-6" if ":" in address else "-4"
        flush = ["address", "flush", "dev", self.interface, "scope", "global"]
        shell.run(["ip", "-n", self._hosts[label].name, family, *flush])
        self._hosts[label].addresses[self.number] = address
        shell.batch(self.host_lines(label), netns=self._hosts[label].name)
        settle([self])


def _shaper(mbit: float | None, queue_ms: float) -> list[str]:
    """The qdisc of a rate; without one, what the kernel gives a veth."""
    if mbit is None:
        return ["noqueue"]
    if mbit <= 0 or queue_ms <= 0:
        raise ValueError("a rate and a queue are positive")
    limit = BURST + round(mbit * 1000 / 8 * queue_ms)
    rate = f"{round(mbit * 1_000_000)}bit"
    return ["tbf", "rate", rate, "burst", str(BURST), "limit", str(limit)]
