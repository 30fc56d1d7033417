# SPDX-License-Identifier: Apache-2.0
"""What a seed stands for: a network, settings, flows and troubles.

In a life that is not `mortal` every trouble passes or is mild, and nothing may be given up; in a
mortal one links stay dead, and peers that hear nothing of each other for `dead_after` part.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from mrc import sim

__all__ = ["Scenario", "Trouble", "draw"]

_US: Final = 1e-6
_MS: Final = 1e-3
_PROBES: Final = 50 * _MS
"""Between probes of a plane that has not answered yet (`mrc.Config.plane_probe`)."""

_FEW_EVS: Final = 16

_MOST_BYTES: Final = 2 << 20
"""Of all flows: a life takes a fraction of a second."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One thing that goes wrong, and its passing.

    Attributes:
        name: Which of those below.
        faults: What happens to links.
    """

    name: str
    faults: tuple[sim.Fault, ...]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A life.

    Attributes:
        seed: That it was drawn from, and of the run.
        topology: The network; its `kinds` include those that troubles set.
        settings: Of every endpoint.
        flows: Array of `sim.FLOW`.
        troubles: What goes wrong.
        mortal: Peers may be given up.
    """

    seed: int
    topology: sim.Topology
    settings: sim.Settings
    flows: Any
    troubles: tuple[Trouble, ...]
    mortal: bool

    @property
    def faults(self) -> list[sim.Fault]:
        """Of all troubles."""
        return [fault for trouble in self.troubles for fault in trouble.faults]

    @property
    def may_part(self) -> bool:
        """Whether peers may give each other up.

        For a trouble, or where all begin at once and first probes, lost in the crowd, are repeated
        too late for a short patience.
        """
        return self.mortal and (bool(self.troubles) or self.settings.dead_after < _PROBES)

    @property
    def last_fault(self) -> float:
        """When the last of them happens, s; 0 without any."""
        return max((fault.time for fault in self.faults), default=0.0)

    def part(self, *, flows: list[int], troubles: list[int], most: int) -> Scenario:
        """A smaller scenario: these flows, of at most `most` bytes, and these troubles.

        A flow that waited for one that is left out starts at once.
        """
        kept = self.flows[flows].copy()
        place = {old: new for new, old in enumerate(flows)}
        kept["after"] = [place.get(int(after), sim.NONE) for after in kept["after"]]
        kept["bytes"] = np.minimum(kept["bytes"], most)
        return replace(
            self, flows=kept, troubles=tuple(self.troubles[number] for number in troubles)
        )


def _time(rng: random.Random, low: float, high: float) -> float:
    """Any order of magnitude is as likely as any other."""
    return float(low * (high / low) ** rng.random())


# Networks, settings, flows.


def _topology(rng: random.Random) -> sim.Topology:
    common: dict[str, Any] = {
        "planes": rng.choice([1, 1, 2, 2, 3, 4, 8]),
        "rate": rng.choice([1e9, 25e9, 100e9, 400e9]),
        "delay": rng.choice([0.0, 0.1 * _US, _US, 20 * _US]),
        "trim": rng.random() < 0.7,
    }
    common["fabric_rate"] = common["rate"] * rng.choice([0.25, 1, 1, 4])
    hosts, t0 = rng.randint(1, 4), rng.randint(1, 4)
    if rng.random() < 0.25:
        t1 = rng.randint(1, 2)
        return sim.three_tier(
            pods=2, t0=t0, hosts=hosts, t1=t1, cores=t1 * rng.randint(1, 2), **common
        )
    if t0 * hosts < 2:
        hosts = 2
    return sim.two_tier(t0=t0, hosts=hosts, t1=rng.randint(1, 4), width=rng.randint(1, 2), **common)


def _settings(rng: random.Random, planes: int, *, mortal: bool) -> sim.Settings:
    settings = sim.Settings(
        mtu=rng.choice([256, 1024, 4096, 4096, 8192]),
        mpr=rng.choice([1, 2, 8, 32]),
        ev_count=rng.choice([planes, max(planes, 16), 128, 256]),
        ev_backup=rng.choice([0, 1, 8]),
        ev_min_active=rng.choice([1, 4]),
        policy=rng.choice(["adaptive", "equal"]),
        trimming=rng.random() < 0.7,
        sack_threshold=rng.choice([1, 16384, 1 << 20]),
        sack_delay=rng.choice([1 * _US, 10 * _US, 100 * _US]),
        chunks=rng.choice([1, 2, 32, 1024]),
        dead_after=rng.choice([20 * _MS, 200 * _MS]) if mortal else 3600.0,
        exp_cnt=rng.choice([1, 4, 25]) if mortal else 25,
        warm_up=rng.choice([0.0, 10 * _US, 100 * _US]),
        payload=rng.random() < 0.3,
    )
    # All of very few EVs may lead over one link; where that stays dead, only the budget of
    # retransmissions ends what the peer's probes still reach by others.
    few = mortal and settings.ev_count + settings.ev_backup < _FEW_EVS
    return replace(settings, exp_cnt=min(settings.exp_cnt, 4)) if few else settings


def _some_flows(rng: random.Random, hosts: int, mtu: int) -> Any:
    members = rng.sample(range(hosts), rng.randint(2, hosts))
    size = rng.choice([0, 1, mtu - 1, mtu, mtu + 1, rng.randrange(1 << 18)])
    kind = rng.randrange(5)
    if kind == 0:
        return sim.permutation(hosts, size=size, seed=rng.randrange(1 << 32))
    if kind == 1:
        return sim.incast(members[1:], members[0], size=size)
    if kind == 2:
        return sim.all_to_all(members, size=size // len(members), window=rng.randrange(3))
    if kind == 3:
        return sim.ring_all_reduce(members, size=size)
    flows = sim.incast(members[1:] * rng.randint(1, 20), members[0], size=size)
    for flow in flows:
        flow["start"] = round(_time(rng, _US, 20 * _MS) * 1e12)
        flow["bytes"] = rng.randrange(size + 1)
    return flows


def _flows(rng: random.Random, hosts: int, mtu: int) -> Any:
    flows = sim.join(*(_some_flows(rng, hosts, mtu) for _ in range(rng.randint(1, 4))))
    total = int(flows["bytes"].sum())
    if total > _MOST_BYTES:
        flows["bytes"] = flows["bytes"] * (_MOST_BYTES / total)
    return flows


# Troubles.


class _Troubles:
    """Draws them, and collects the kinds of link that they set."""

    def __init__(self, rng: random.Random, topology: sim.Topology, *, mortal: bool) -> None:
        self.rng = rng
        self.topology = topology
        self.mortal = mortal
        self.kinds = list(topology.kinds)
        self.makers: dict[str, Callable[[], list[sim.Fault]]] = {
            "link": lambda: self._outage([self._port()], one_way=False),
            "port": lambda: self._outage([self._host_port()], one_way=False),
            "direction": lambda: self._outage([self._port()], one_way=True),
            "switch": lambda: self._outage(self._switch(), one_way=False),
            "host": lambda: self._outage(self._host(), one_way=False),
            "flaps": self._flaps,
            "grey": self._grey,
            "slow": self._slow,
            "late": self._late,
            "twins": self._twins,
            "small": self._small,
        }

    def draw(self) -> Trouble:
        name = self.rng.choice(list(self.makers))
        return Trouble(name=name, faults=tuple(self.makers[name]()))

    def _port(self) -> int:
        return self.rng.randrange(len(self.topology.peer))

    def _host_port(self) -> int:
        return self.rng.randrange(self.topology.hosts * self.topology.planes)

    def _switch(self) -> list[int]:
        number = self.rng.randrange(len(self.topology.switches))
        return [int(port) for port in self.topology.switch_ports(number)]

    def _host(self) -> list[int]:
        host = self.rng.randrange(self.topology.hosts)
        return [self.topology.host_port(host, plane) for plane in range(self.topology.planes)]

    def _ends(self) -> tuple[float, float | None]:
        """From when to when; None: it stays, as it may in a mortal life."""
        start = _time(self.rng, 0.1 * _US, 20 * _MS)
        if self.mortal and self.rng.random() < 0.5:
            return start, None
        return start, start + _time(self.rng, _US, 300 * _MS)

    def _outage(self, ports: list[int], *, one_way: bool) -> list[sim.Fault]:
        start, end = self._ends()
        faults = [sim.Fault(time=start, port=port, up=False, one_way=one_way) for port in ports]
        if end is not None:
            faults += [sim.Fault(time=end, port=port, one_way=one_way) for port in ports]
        return faults

    def _flaps(self) -> list[sim.Fault]:
        port, one_way = self._port(), self.rng.random() < 0.3
        at, faults = _time(self.rng, 0.1 * _US, 20 * _MS), []
        for _ in range(self.rng.randint(2, 20)):
            for up in (False, True):
                faults.append(sim.Fault(time=at, port=port, up=up, one_way=one_way))
                at += _time(self.rng, _US, 20 * _MS)
        return faults

    def _change(self, *, passing: bool, **changes: Any) -> list[sim.Fault]:
        """Another kind of link, from the start on or for a time."""
        port = self._port()
        before = int(self.topology.kind[port])
        one_way = passing or self.rng.random() < 0.3
        self.kinds.append(replace(self.topology.kinds[before], **changes))
        changed = len(self.kinds) - 1
        if not passing:
            return [sim.Fault(time=0.0, port=port, kind=changed, one_way=one_way)]
        start = _time(self.rng, 0.1 * _US, 20 * _MS)
        end = start + _time(self.rng, _US, 300 * _MS)
        return [
            sim.Fault(time=start, port=port, kind=changed, one_way=one_way),
            sim.Fault(time=end, port=port, kind=before, one_way=one_way),
        ]

    def _grey(self) -> list[sim.Fault]:
        passing = self.rng.random() < 0.5
        loss = self.rng.choice([0.1, 0.5, 1.0] if passing else [0.001, 0.01, 0.05])
        return self._change(passing=passing, loss=loss)

    def _slow(self) -> list[sim.Fault]:
        rate = max(self.topology.kinds[0].rate / self.rng.choice([2, 10, 100]), 1e8)
        return self._change(passing=self.rng.random() < 0.5, rate=rate)

    def _late(self) -> list[sim.Fault]:
        delay = _time(self.rng, 0.1 * _US, 300 * _US)
        jitter = self.rng.choice([0.0, delay, 10 * delay])
        return self._change(passing=self.rng.random() < 0.5, delay=delay, jitter=jitter)

    def _twins(self) -> list[sim.Fault]:
        return self._change(
            passing=self.rng.random() < 0.5,
            duplicate=self.rng.choice([0.01, 0.5]),
            jitter=self.rng.choice([0.0, 30 * _US]),
        )

    def _small(self) -> list[sim.Fault]:
        return self._change(
            passing=False,
            data_limit=self.rng.choice([9000, 20000]),
            control_limit=self.rng.choice([200, 1000, 10000]),
        )


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    mortal = rng.random() < 0.3
    topology = _topology(rng)
    settings = _settings(rng, topology.planes, mortal=mortal)
    makers = _Troubles(rng, topology, mortal=mortal)
    troubles = tuple(makers.draw() for _ in range(rng.choice([0, 1, 2, 5, 10])))
    return Scenario(
        seed=seed,
        topology=replace(topology, kinds=tuple(makers.kinds)),
        settings=settings,
        flows=_flows(rng, topology.hosts, settings.mtu),
        troubles=troubles,
        mortal=mortal,
    )
