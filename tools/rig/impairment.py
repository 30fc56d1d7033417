# SPDX-License-Identifier: Apache-2.0
"""What befalls the frames that go from one host to another, as nftables rules of the hub."""

from __future__ import annotations

import dataclasses

MILLION = 1_000_000
"""What a random number is drawn from: percentages keep four decimals."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Impairment:
    """The faults of one direction; a fault that is 0 or False does not occur.

    Attributes:
        blackhole: Every frame vanishes.
        loss: Percent of the frames that vanish, each by a draw of its own.
        every: Every so many-th frame vanishes.
        match: The nftables expression of the frames that `loss` and `every` are for; "" is all.
        corrupt: Percent of the UDP frames in which one byte is changed.
        offset: Which byte, counted from the start of the UDP payload.
        duplicate: Percent of the frames that arrive twice.
    """

    blackhole: bool = False
    loss: float = 0.0
    every: int = 0
    match: str = ""
    corrupt: float = 0.0
    offset: int = 12
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        for percent in (self.loss, self.corrupt, self.duplicate):
            if not 0 <= percent <= 100:
                raise ValueError(f"{percent} is no percentage")
        if self.every < 0 or self.offset < 0:
            raise ValueError("a count and an offset are not negative")

    def rules(self, port: str) -> list[str]:
        """The rules that send a frame on to `port`, or do not."""
        if self.blackhole:
            return ["counter drop"]
        rules = []
        if self.loss:
            rules.append(f"{self.match} {draw(self.loss)} counter drop")
        if self.every:
            nth = f"numgen inc mod {self.every} == {self.every - 1}"
            rules.append(f"{self.match} {nth} counter drop")
        if self.corrupt:
            # After the eight bytes of UDP's header; 0x55 turns half of the bits.
            byte = f"@th,{64 + 8 * self.offset},8"
            change = f"{byte} set {byte} ^ 0x55 counter"
            rules.append(f"meta l4proto udp {draw(self.corrupt)} {change}")
        if self.duplicate:
            rules.append(f'{draw(self.duplicate)} dup to "{port}"')
        return [*rules, f'fwd to "{port}"']


def draw(percent: float) -> str:
    """The condition that is true for so many percent of the frames, which are more than none."""
    bound = round(percent * MILLION / 100)
    # nftables refuses a comparison that is always true, or never.
    return "" if bound >= MILLION else f"numgen random mod {MILLION} < {max(bound, 1)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Port:
    """A host's end of a plane, as the hub sees it: the hub's interface and the host's MAC."""

    label: str
    interface: str
    mac: str


def ruleset(table: str, ports: list[Port], faults: dict[tuple[str, str], Impairment]) -> str:
    """The script that makes the hub forward between `ports`, in place of what was there.

    Between two hosts everything crosses, as on a cable. Among more, the destination's MAC
    decides, and what is for several goes to all that no blackhole cuts off.
    """
    lines = [f"table netdev {table}", f"delete table netdev {table}", f"table netdev {table} {{"]
    for source in ports:
        others = [port for port in ports if port is not source]
        # First the chains that the source's hook goes to.
        for port in others:
            rules = faults[source.label, port.label].rules(port.interface)
            lines += [f"chain {source.label}_{port.label} {{", *rules, "}"]
        # Nothing gets past the last rule; but while the kernel replaces these chains by new ones,
        # a frame may meet an empty one of either kind, and must then find the other.
        lines += [
            f"chain from_{source.label} {{",
            f'type filter hook ingress device "{source.interface}" priority 0; policy accept;',
        ]
        if len(others) == 1:
            lines.append(f"goto {source.label}_{others[0].label}")
        else:
            lines += [f"ether daddr {port.mac} goto {source.label}_{port.label}" for port in others]
            lines += [
                f'meta pkttype {{ broadcast, multicast }} dup to "{port.interface}"'
                for port in others
                if not faults[source.label, port.label].blackhole
            ]
        lines.append("}")
    return "\n".join([*lines, "}"])
