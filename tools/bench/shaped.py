# SPDX-License-Identifier: Apache-2.0
"""Goodput over planes of a given rate: the sum of them, less one, unequal ones, both policies.

Rates are those of tbf, headers included; goodput is payload, as the receiver counts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench.lab import Stream
from tools.bench.report import Options, Row, mean, median, say
from tools.bench.series import Log
from tools.rig import Rig

RATE = 200.0
"""Mb/s of a plane."""
UNEQUAL = (200.0, 200.0, 200.0, 50.0)
ONE_FAST = (400.0, 20.0, 20.0, 20.0)
LOST = 2
"""The plane that is taken away."""


def measure(options: Options) -> list[Row]:
    """Runs it."""
    trials, seconds = options.count(5, 1), options.seconds(2.5, 1)
    with Rig(planes=4) as rig:
        return [
            *_equal_planes(rig, "adaptive", trials, seconds),
            *_equal_planes(rig, "equal", trials, seconds),
            _adaptive(rig, UNEQUAL, trials, seconds, limit=0.9 * sum(UNEQUAL)),
            _adaptive(rig, ONE_FAST, trials, seconds, limit=0.95 * max(ONE_FAST)),
            *_equal_policy(rig, trials, seconds),
        ]


def shape(rig: Rig, rates: Sequence[float]) -> None:
    """Limits each plane, both ways."""
    for plane, rate in zip(rig.planes, rates, strict=True):
        plane.rate(rate)


def unevenness(log: Log) -> float:
    """How far the planes' rates are apart: the largest less the least, to their mean."""
    rates = log.plane_bps()
    return (max(rates) - min(rates)) / mean(rates)


def _name(rates: Sequence[float]) -> str:
    return "/".join(f"{rate:g}" for rate in rates) + " Mb/s"


def _equal_planes(rig: Rig, policy: str, trials: int, seconds: float) -> list[Row]:
    """All of them, then one lost; each trial is a connection."""
    shape(rig, [RATE] * 4)
    whole, apart, rest = [], [], []
    for trial in range(trials):
        with Stream(rig, config={"policy": policy}) as stream:
            log = stream.watch(seconds, after=1.0)
            whole.append(log.goodput_bps() / 1e6)
            apart.append(100 * unevenness(log))
            rig.plane(LOST).blackhole()
            rest.append(stream.watch(seconds, after=1.0).goodput_bps() / 1e6)
            rig.plane(LOST).heal()
        say(
            f"shaped, {policy}, trial {trial}: {whole[-1]:.0f} Mb/s, planes {apart[-1]:.1f} % "
            f"apart, less one {rest[-1]:.0f} Mb/s"
        )
    what = f"4 x {RATE:g} Mb/s, {policy}"
    one_less = f"{what}, one plane lost"
    sums = ((what, whole, 4 * RATE), (one_less, rest, 3 * RATE))
    rows = [Row(name=name, key="goodput_mbps", measured=median(got)) for name, got, _ in sums]
    rows += [
        Row(
            name=f"{name}: to the sum",
            key="goodput_ratio",
            measured=median(got) / total,
            at_least=0.95,
        )
        for name, got, total in sums
    ]
    rows.append(
        Row(name=f"{what}: planes apart", key="percent", measured=median(apart), at_most=2.0)
    )
    return rows


def _goodputs(
    rig: Rig, policy: str, rates: Sequence[float], trials: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Goodputs in Mb/s, and how far the planes were apart."""
    shape(rig, rates)
    got, apart = [], []
    for trial in range(trials):
        with Stream(rig, config={"policy": policy}) as stream:
            log = stream.watch(seconds, after=2.0)
        got.append(log.goodput_bps() / 1e6)
        apart.append(100 * unevenness(log))
        say(f"shaped, {policy}, {_name(rates)}, trial {trial}: {got[-1]:.0f} Mb/s")
    return got, apart


def _adaptive(
    rig: Rig, rates: Sequence[float], trials: int, seconds: float, *, limit: float
) -> Row:
    got, _ = _goodputs(rig, "adaptive", rates, trials, seconds)
    name = f"{_name(rates)}, adaptive"
    return Row(name=name, key="goodput_mbps", measured=median(got), at_least=limit)


def _equal_policy(rig: Rig, trials: int, seconds: float) -> list[Row]:
    got, apart = _goodputs(rig, "equal", UNEQUAL, trials, seconds)
    name = f"{_name(UNEQUAL)}, equal"
    slowest = 4 * min(UNEQUAL)
    return [
        Row(
            name=f"{name}: to 4 x the slowest",
            key="goodput_ratio",
            measured=median(got) / slowest,
            at_least=0.9,
            at_most=1.05,
        ),
        Row(name=f"{name}: planes apart", key="percent", measured=median(apart), at_most=2.0),
    ]
