# SPDX-License-Identifier: Apache-2.0
"""Walking a path without its far end: round trips to each of its switches and back.

    a ─ t0a ─ t1a ─ t0b ─ b      a t0a a,   a t0a t1a t0a a,   a t0a t1a t0b t1a t0a a

A packet that we address to ourselves goes out by the uSIDs of the switches up to one of them and
comes back by the same ones (RFC 9800), so that no other host need be there. Six uSIDs fit one
address of an F3216 block; what is longer goes on in an SRH (RFC 8754).
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mrc.errors import ConfigError
from mrc.topology import MAX_CARRIER_USIDS, USID_BITS, Path, Topology, carrier

__all__ = ["RoundTrip", "detour", "round_trip", "walk"]

_CARRIERS: Final = 2


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Out to a switch and back by the same way.

    Attributes:
        plane: Which.
        hops: The way out: names of the host and of the switches.
        carriers: One address; a second one if the first does not hold all uSIDs.
    """

    plane: int
    hops: tuple[str, ...]
    carriers: tuple[ipaddress.IPv6Address, ...]

    @property
    def switches(self) -> tuple[str, ...]:
        """All but the host."""
        return self.hops[1:]

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Both ends of each link, the one nearer to the hosts first."""
        pairs = enumerate(itertools.pairwise(self.hops))
        # Up to a T0, then up and down in turn.
        return tuple((a, b) if at == 0 or at % 2 == 1 else (b, a) for at, (a, b) in pairs)

    def __str__(self) -> str:
        return " ".join(self.hops)


def round_trip(topology: Topology, plane: int, hops: Sequence[str]) -> RoundTrip:
    """The round trip of a host by these switches, each a neighbour of the one before it.

    Raises:
        ConfigError: It has more uSIDs than two addresses hold, or there is no such node or plane.
    """
    host, *switches = hops
    names = (*switches, *switches[-2::-1], host)
    usids = [topology.usid(name, plane) for name in names]
    room = min((128 - topology.block.prefixlen) // USID_BITS, MAX_CARRIER_USIDS)
    if len(usids) > _CARRIERS * room:
        raise ConfigError(
            f"the way to {hops[-1]} and back takes {len(usids)} uSIDs; two addresses of "
            f"{topology.block} hold {_CARRIERS * room}"
        )
    parts = [usids[at : at + room] for at in range(0, len(usids), room)]
    return RoundTrip(
        plane=plane,
        hops=tuple(hops),
        carriers=tuple(carrier(topology.block, part) for part in parts),
    )


def walk(topology: Topology, path: Path) -> list[RoundTrip]:
    """The round trips to every switch of a path, the nearest first.

    Raises:
        ConfigError: As `round_trip`.
    """
    ends = range(2, len(path.hops))
    return [round_trip(topology, path.plane, path.hops[:end]) for end in ends]


def detour(topology: Topology, silent: RoundTrip, good: Sequence[RoundTrip]) -> RoundTrip | None:
    """Another way to a T1 that does not answer by our own T0's link: then it is the link.

    Args:
        topology: The fabric.
        silent: To the T1.
        good: Round trips that answer; one to another T0 is gone on with.

    Returns:
        It, by another T1 and T0; None: there is none, or `silent` is not to a T1.

    Raises:
        ConfigError: As `round_trip`.
    """
    upper = topology.tiers[1].switches
    if silent.hops[-1] not in upper:
        return None
    for trip in good:
        if trip.plane == silent.plane and len(trip.hops) == 4 and trip.hops[1] == silent.hops[1]:
            return round_trip(topology, trip.plane, (*trip.hops, silent.hops[-1]))
    return None
