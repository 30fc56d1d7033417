# SPDX-License-Identifier: Apache-2.0
"""The operator's DENIED (MRC 1.0, Paths): what carries no data, by entropy value, link or switch.

    0x1001      the path that this entropy value names
    t1a         a switch, in every plane;  t1a@1  in plane 1
    t0a-t1a     a link, in every plane;    t0a-t1a@1  in plane 1

Pure: words in, which EVs are meant out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mrc.errors import ConfigError
from mrc.topology import Path, Topology

__all__ = ["Denial", "are_denied", "denial"]

_EV: Final = re.compile(r"0[xX][0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Denial:
    """What carries no data.

    Attributes:
        ev: The path that it names; None: an element of the fabric is meant.
        nodes: A switch; or both ends of a link, the one nearer to the hosts first.
        plane: Of the element; None: in every plane.
    """

    ev: int | None = None
    nodes: tuple[str, ...] = ()
    plane: int | None = None

    def covers(self, ev: int, path_of: Callable[[int], Path | None]) -> bool:
        """Whether an EV is meant.

        Args:
            ev: 32 bits, of which EV[15:0] names a path.
            path_of: The path that an EV names; None where no topology says.
        """
        path = path_of(ev)
        if self.ev is not None:
            same = path_of(self.ev)
            return (self.ev ^ ev) & 0xFFFF == 0 or (path is not None and path == same)
        if path is None or self.plane not in {None, path.plane}:
            return False
        return self.nodes in {*((name,) for name in path.switches), *path.links}


def denial(what: int | str, topology: Topology | None) -> Denial:
    """Reads what an operator names.

    Raises:
        ConfigError: It is neither an entropy value nor a link or switch of the topology.
    """
    if isinstance(what, int) or _EV.fullmatch(what):
        ev = what if isinstance(what, int) else int(what, 0 if what[1:2] in {"x", "X"} else 10)
        if not 0 <= ev < 1 << 32:
            raise ConfigError(f"{what!r} is no entropy value: it has more than 32 bits")
        return Denial(ev=ev)
    if topology is None:
        raise ConfigError(f"{what!r} can be a link or a switch only of a topology")
    name, at, number = what.partition("@")
    if at and not (number.isdecimal() and number.isascii() and int(number) < topology.planes):
        raise ConfigError(f"{what!r}: the topology has planes 0..{topology.planes - 1}")
    return Denial(nodes=_nodes(name, topology), plane=int(number) if at else None)


def _nodes(name: str, topology: Topology) -> tuple[str, ...]:
    t0, t1 = (tier.switches for tier in topology.tiers)
    if name in {*t0, *t1}:
        return (name,)
    above = {host.name: (host.t0,) for host in topology.hosts} | dict.fromkeys(t0, t1)
    for dash in re.finditer("-", name):  # which names may have too
        ends = name[: dash.start()], name[dash.end() :]
        for lower, upper in (ends, ends[::-1]):
            if upper in above.get(lower, ()):
                return lower, upper
    raise ConfigError(f"the topology has no switch or link {name!r}; a link is as {t0[0]}-{t1[0]}")


def are_denied(
    evs: Iterable[int], denials: Collection[Denial], path_of: Callable[[int], Path | None]
) -> dict[int, bool]:
    """Of each EV, whether any denial means it."""
    return {ev: any(each.covers(ev, path_of) for each in denials) for ev in evs}
