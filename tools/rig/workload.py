# SPDX-License-Identifier: Apache-2.0
"""Workloads of a scenario: each is a list of flows between hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["KINDS", "Flow", "Pair", "WorkloadError"]


class WorkloadError(ValueError):
    """A workload does not suit its hosts."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Messages from one host to another.

    Attributes:
        source: Who sends.
        destination: Who receives.
        start: Seconds of the timeline.
        end: Seconds of the timeline, after which nothing more begins.
        size: Of a message, bytes.
        messages: How many; 0: without end.
        turn: It waits for those of its source that have an earlier one.
        trains: Whether it is instead what a rank of a training loop (tools.examples.training)
            passes to the next, from `start` to `end`; `size` and `messages` mean nothing to it.
    """

    source: str
    destination: str
    start: float
    end: float
    size: int
    messages: int = 0
    turn: int = 0
    trains: bool = False

    @property
    def name(self) -> str:
        """As "a-b"."""
        return f"{self.source}-{self.destination}"


class Pair(NamedTuple):
    """Who sends to whom, in which turn of the sender, and whether it is a training loop's."""

    source: str
    destination: str
    turn: int = 0
    trains: bool = False


Hosts = Sequence[str]
Pairs = list[Pair]


def _stream(hosts: Hosts) -> Pairs:
    """The first host sends to the second."""
    if len(hosts) != 2:
        raise WorkloadError(f"two hosts, not {len(hosts)}")
    return [Pair(hosts[0], hosts[1])]


def _bidirectional(hosts: Hosts) -> Pairs:
    """Two hosts send to each other."""
    ((one, other, *_),) = _stream(hosts)
    return [Pair(one, other), Pair(other, one)]


def _permutation(hosts: Hosts) -> Pairs:
    """Each host sends to the one half the list further, so that none is on the sender's T0."""
    _several(hosts, 2)
    shift = len(hosts) // 2
    return _shifted(hosts, shift + (shift % 2 == 0 and len(hosts) > 2))


def _incast(hosts: Hosts) -> Pairs:
    """All others send to the first."""
    _several(hosts, 2)
    return [Pair(host, hosts[0]) for host in hosts[1:]]


def _ring(hosts: Hosts) -> Pairs:
    """Each sends to the next."""
    _several(hosts, 2)
    return _shifted(hosts, 1)


def _training(hosts: Hosts) -> Pairs:
    """A ring whose ranks train a model together."""
    return [pair._replace(trains=True) for pair in _ring(hosts)]


def _all_to_all(hosts: Hosts) -> Pairs:
    """Everybody sends to everybody at once."""
    return [pair._replace(turn=0) for pair in _serial_all_to_all(hosts)]


def _serial_all_to_all(hosts: Hosts) -> Pairs:
    """Everybody sends to everybody, to one after the other: to the next, then the one behind."""
    _several(hosts, 2)
    return [
        pair._replace(turn=shift)
        for shift in range(1, len(hosts))
        for pair in _shifted(hosts, shift)
    ]


def _shifted(hosts: Hosts, shift: int) -> Pairs:
    """Each sends to the one so much further."""
    return [Pair(host, hosts[(at + shift) % len(hosts)]) for at, host in enumerate(hosts)]


def _several(hosts: Hosts, least: int) -> None:
    if len(set(hosts)) < max(least, len(hosts)):
        raise WorkloadError(f"at least {least} hosts, each once")


KINDS: Final[dict[str, Callable[[Hosts], Pairs]]] = {
    "stream": _stream,
    "bidirectional": _bidirectional,
    "permutation": _permutation,
    "incast": _incast,
    "ring": _ring,
    "all-to-all": _all_to_all,
    "serial-all-to-all": _serial_all_to_all,
    "training": _training,
}
"""The pairs of hosts of each kind."""
