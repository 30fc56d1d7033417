# SPDX-License-Identifier: Apache-2.0
"""How long a receiver stands still when a plane dies in mid-transfer, and when it comes back.

Planes are switches here (a third host), so that a link that goes down at one end does not take the
other end's carrier along. Each trial takes another plane; a new connection begins after one of
each, because a plane that flaps is trusted later each time.

Two gaps are taken of each trial: without a new byte at the receiver, and without a message (of
256 KiB) for its program; the latter counts, and is what a stream in order would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tools.bench.lab import Stream
from tools.bench.report import Options, Row, median, ranked, say
from tools.bench.shaped import RATE, shape
from tools.rig import Plane, Rig

PLANES = 4
MESSAGE = 256 << 10
WARM_UP = 0.7
"""Seconds before the first trial of a connection, and between trials."""
DEAD = 0.7
"""Seconds for which a plane is away."""
BACK_WITHIN = 0.5
SHARE = 0.8
"""Of the other planes' mean rate: what a healed plane must carry to be back."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way for a plane to die.

    Attributes:
        name: For people.
        limit_ms: Gap that one trial at most may exceed.
        strike: Kills a plane.
        heal: Brings it back.
    """

    name: str
    limit_ms: float
    strike: Callable[[Plane], None]
    heal: Callable[[Plane], None]


FAULTS = (
    Fault(
        name="own link down",
        limit_ms=20,
        strike=lambda plane: plane.down("a"),
        heal=lambda plane: plane.up("a"),
    ),
    Fault(
        name="peer's link down",
        limit_ms=20,
        strike=lambda plane: plane.down("b"),
        heal=lambda plane: plane.up("b"),
    ),
    Fault(
        name="blackhole",
        limit_ms=50,
        strike=lambda plane: plane.blackhole(),
        heal=lambda plane: plane.heal(),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """What the trials of one fault gave, in milliseconds.

    Attributes:
        delivered: Longest without a message.
        arrived: Longest without a byte.
        healed: From the heal until the plane carried its share.
        calm: Longest without a message when nothing happened, for as long.
        slept: Longest time that the sampler of bytes did not look.
    """

    delivered: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    healed: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)


def measure(options: Options) -> list[Row]:
    """Runs it."""
    rows: list[Row] = []
    with Rig(hosts=("a", "b", "c"), planes=PLANES) as rig:
        shape(rig, [RATE] * PLANES)
        for fault in FAULTS:
            gaps, trials = Gaps(), options.count(50, 2)
            while len(gaps.delivered) < trials:
                connection(rig, fault, gaps, min(PLANES, trials - len(gaps.delivered)))
            rows += _rows(fault, gaps)
    return rows


def connection(rig: Rig, fault: Fault, gaps: Gaps, trials: int) -> None:
    """Adds trials on different planes in one connection."""
    with Stream(rig, size=MESSAGE, window=64) as stream:
        for number in range(trials):
            plane = rig.plane(number)
            calm = stream.watch(DEAD, after=WARM_UP)
            start = calm.end
            fault.strike(plane)
            dead = stream.between(start, start + DEAD)
            begin = dead.end
            fault.heal(plane)
            back = stream.between(begin, begin + 2 * BACK_WITHIN)
            gaps.calm.append(calm.gap_delivered() * 1e3)
            gaps.delivered.append(dead.gap_delivered() * 1e3)
            gaps.arrived.append(dead.gap_arrived() * 1e3)
            gaps.slept.append(dead.slept * 1e3)
            gaps.healed.append(back.back_after(number, SHARE) * 1e3)
            say(
                f"{fault.name}, trial {len(gaps.delivered)}, plane {number}: no message for "
                f"{gaps.delivered[-1]:.1f} ms (before: {gaps.calm[-1]:.1f}), no byte for "
                f"{gaps.arrived[-1]:.1f} ms, back after {gaps.healed[-1]:.0f} ms"
            )


def _rows(fault: Fault, gaps: Gaps) -> list[Row]:
    name = f"{fault.name}, {len(gaps.delivered)} trials"
    rows = []
    distributions = {
        "longest time without a message": gaps.delivered,
        "the same with nothing happening": gaps.calm,
        "longest time without a byte": gaps.arrived,
        "sampler asleep": gaps.slept,
        "healed plane carries its share after": gaps.healed,
    }
    for what, values in distributions.items():
        for part, label in ((0.5, "p50"), (0.9, "p90"), (1.0, "max")):
            measured = ranked(values, part)
            rows.append(Row(name=f"{name}: {what}", key=f"{label}_ms", measured=measured))
    above = sum(gap > fault.limit_ms for gap in gaps.delivered)
    over = f"{name}: without a message for more than {fault.limit_ms:g} ms"
    rows.append(Row(name=over, key="count", measured=above, at_most=1))
    rows.append(
        Row(
            name=f"{name}: healed plane back",
            key="median_ms",
            measured=median(gaps.healed),
            at_most=BACK_WITHIN * 1e3,
        )
    )
    late = sum(healed > BACK_WITHIN * 1e3 for healed in gaps.healed)
    over = f"{name}: healed plane back after more than {BACK_WITHIN * 1e3:g} ms"
    rows.append(Row(name=over, key="count", measured=late, at_most=1))
    return rows
