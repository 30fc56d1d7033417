# SPDX-License-Identifier: Apache-2.0
"""Which link or switch is at fault, from the ways that carry packets and those that do not.

Pure: ways in, faults out. A way is a path, or a round trip through a part of one. What a good way
crosses is innocent; of the rest, what explains most bad ways at once is at fault, and then what
explains most of those left (the greedy set cover). One element at fault is always found; two at
once are told as few as can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mrc.topology import Path
from mrc.walk import RoundTrip

__all__ = ["Element", "Fault", "Way", "elements", "localise"]

Way = Path | RoundTrip

_NAMED: Final = 4
"""Elements of a fault that are named in words."""


@dataclass(frozen=True, order=True)
class Element:
    """A switch or a link of one plane.

    Attributes:
        plane: Which.
        nodes: The switch; or both ends of the link, the one nearer to the hosts first.
    """

    plane: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'link' if len(self.nodes) == 2 else 'switch'} {'-'.join(self.nodes)}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is broken.

    Attributes:
        elements: What it can be: all of these explain the same ways, and no good way crosses
            any of them.
        ways: The bad ways that it explains.
    """

    elements: tuple[Element, ...]
    ways: tuple[Way, ...]

    def __str__(self) -> str:
        named = " or ".join(map(str, self.elements[:_NAMED]))
        more = f" or {len(self.elements) - _NAMED} more" if len(self.elements) > _NAMED else ""
        return f"{named}{more} of plane {self.elements[0].plane}"


def elements(way: Way) -> list[Element]:
    """Every switch and link that a way crosses; a host is neither."""
    crossed = [*((name,) for name in way.switches), *way.links]
    return [Element(way.plane, nodes) for nodes in crossed]


def localise(good: Iterable[Way], bad: Iterable[Way]) -> list[Fault]:
    """What is at fault when some ways carry packets and others do not.

    Args:
        good: Ways that carry packets, of any hosts.
        bad: Ways that do not. One that crosses good elements alone is explained by none.

    Returns:
        Faults, that of most ways first.
    """
    innocent = {element for way in good for element in elements(way)}
    explains: dict[Element, set[Way]] = defaultdict(set)
    for way in bad:
        for element in elements(way):
            if element not in innocent:
                explains[element].add(way)
    faults = []
    while explains:
        _, best = max(explains.items(), key=lambda item: (len(item[1]), _order(item[0])))
        alike = sorted(each for each, ways in explains.items() if ways == best)
        found = tuple(sorted(best, key=lambda way: (way.plane, way.hops)))
        faults.append(Fault(elements=tuple(alike), ways=found))
        left = {each: ways - best for each, ways in explains.items()}
        explains = defaultdict(set, {each: ways for each, ways in left.items() if ways})
    return faults


def _order(element: Element) -> tuple[int, tuple[str, ...]]:
    """Of two that explain as much any will do, but always the same."""
    return element.plane, element.nodes
