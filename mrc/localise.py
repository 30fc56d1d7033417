# SPDX-License-Identifier: Apache-2.0
"""Which link or switch is at fault, from the paths that carry packets and those that do not.

Pure: paths in, faults out. What a good path crosses is innocent; of the rest, what explains most
bad paths at once is at fault, and then what explains most of those left (the greedy set cover). One
element at fault is always found; two at once are told as few as can be.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mrc.topology import Path

__all__ = ["Element", "Fault", "elements", "localise"]

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
        elements: What it can be: all of these explain the same paths, and no good path crosses
            any of them.
        paths: The bad paths that it explains.
    """

    elements: tuple[Element, ...]
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        named = " or ".join(map(str, self.elements[:_NAMED]))
        more = f" or {len(self.elements) - _NAMED} more" if len(self.elements) > _NAMED else ""
        return f"{named}{more} of plane {self.elements[0].plane}"


def elements(path: Path) -> list[Element]:
    """Every link and switch of a path; a host is neither."""
    hops = path.hops
    found = [Element(path.plane, (name,)) for name in hops[1:-1]]
    for at, pair in enumerate(itertools.pairwise(hops)):
        is_upwards = at < len(hops) // 2
        found.append(Element(path.plane, pair if is_upwards else pair[::-1]))
    return found


def localise(good: Iterable[Path], bad: Iterable[Path]) -> list[Fault]:
    """What is at fault when some paths carry packets and others do not.

    Args:
        good: Paths that carry packets, of any hosts.
        bad: Paths that do not. One that crosses good elements alone is explained by none.

    Returns:
        Faults, that of most paths first.
    """
    innocent = {element for path in good for element in elements(path)}
    explains: dict[Element, set[Path]] = defaultdict(set)
    for path in bad:
        for element in elements(path):
            if element not in innocent:
                explains[element].add(path)
    faults = []
    while explains:
        _, best = max(explains.items(), key=lambda item: (len(item[1]), _order(item[0])))
        alike = sorted(each for each, paths in explains.items() if paths == best)
        found = tuple(sorted(best, key=lambda path: (path.plane, path.hops)))
        faults.append(Fault(elements=tuple(alike), paths=found))
        left = {each: paths - best for each, paths in explains.items()}
        explains = defaultdict(set, {each: paths for each, paths in left.items() if paths})
    return faults


def _order(element: Element) -> tuple[int, tuple[str, ...]]:
    """Of two that explain as much any will do, but always the same."""
    return element.plane, element.nodes
