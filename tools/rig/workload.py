# SPDX-License-Identifier: Apache-2.0
"""Workloads of a scenario: each is a list of flows between hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["KINDS", "Flow", "WorkloadError"]


class WorkloadError(ValueError):
    """A workload does not suit its hosts."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Messages without end from one host to another.

    Attributes:
        source: Who sends.
        destination: Who receives.
        start: Seconds of the timeline.
        end: Seconds of the timeline.
        size: Of a message, bytes.
    """

    source: str
    destination: str
    start: float
    end: float
    size: int

    @property
    def name(self) -> str:
        """As "a-b"."""
        return f"{self.source}-{self.destination}"


Hosts = Sequence[str]
Pairs = Sequence[tuple[str, str]]


def _stream(hosts: Hosts) -> Pairs:
    """The first host sends to the second."""
    if len(hosts) != 2:
        raise WorkloadError(f"two hosts, not {len(hosts)}")
    return [(hosts[0], hosts[1])]


def _bidirectional(hosts: Hosts) -> Pairs:
    """Two hosts send to each other."""
    ((one, other),) = _stream(hosts)
    return [(one, other), (other, one)]


def _permutation(hosts: Hosts) -> Pairs:
    """Each host sends to the one half the list further, so that none is on the sender's T0."""
    _several(hosts, 2)
    shift = len(hosts) // 2
    shift += shift % 2 == 0 and len(hosts) > 2
    return [(host, hosts[(at + shift) % len(hosts)]) for at, host in enumerate(hosts)]


def _incast(hosts: Hosts) -> Pairs:
    """All others send to the first."""
    _several(hosts, 2)
    return [(host, hosts[0]) for host in hosts[1:]]


def _ring(hosts: Hosts) -> Pairs:
    """Each sends to the next."""
    _several(hosts, 2)
    return [(host, hosts[(at + 1) % len(hosts)]) for at, host in enumerate(hosts)]


def _all_to_all(hosts: Hosts) -> Pairs:
    """Everybody sends to everybody."""
    _several(hosts, 2)
    return list(itertools.permutations(hosts, 2))


def _several(hosts: Hosts, least: int) -> None:
    if len(set(hosts)) < max(least, len(hosts)):
        raise WorkloadError(f"at least {least} hosts, each once")


def _kind(pairs: Callable[[Hosts], Pairs]) -> Callable[[Hosts, float, float, int], list[Flow]]:
    def flows(hosts: Hosts, start: float, end: float, size: int) -> list[Flow]:
        return [
            Flow(source=source, destination=destination, start=start, end=end, size=size)
            for source, destination in pairs(hosts)
        ]

    return flows


KINDS: Final = {
    "stream": _kind(_stream),
    "bidirectional": _kind(_bidirectional),
    "permutation": _kind(_permutation),
    "incast": _kind(_incast),
    "ring": _kind(_ring),
    "all-to-all": _kind(_all_to_all),
}
"""The flows of each kind: (hosts, start, end, size of a message)."""
