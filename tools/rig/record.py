# SPDX-License-Identifier: Apache-2.0
"""What was seen of a scenario: series of goodput by flow and plane, events, and the verdicts."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.rig.scenario import Event, Expectation, Scenario

STEP = 0.1
"""Seconds of one point of a series."""

Points = list[tuple[float, float]]
"""(seconds of the timeline, bytes received so far)"""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An expectation, and the ratio that was measured."""

    expectation: Expectation
    ratio: float

    @property
    def kept(self) -> bool:
        """Whether the ratio is within its limits."""
        low, high = self.expectation.between
        return low <= self.ratio <= high

    def __str__(self) -> str:
        wanted = self.expectation
        flows = ", ".join(wanted.flows) or "all flows"
        what = f"worst {wanted.worst:g} s" if wanted.worst else "mean"
        base = "mean"
        if wanted.steps:
            flows, what, base = "training", f"{wanted.steps} step", "median step"
        return (
            f"{'kept' if self.kept else 'BROKEN'}: {flows}, {what} of "
            f"{wanted.during[0]:g}..{wanted.during[1]:g} s to the {base} of "
            f"{wanted.to[0]:g}..{wanted.to[1]:g} s: {self.ratio:.3f}, "
            f"wanted {wanted.between[0]:g}..{wanted.between[1]:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was seen.

    Attributes:
        scenario: What was run.
        flows: Of each flow the bytes received.
        planes: Of each flow and interface of its receiver the bytes received.
        states: Of each flow (seconds, EVs in use, EVs out).
        path_events: Of each flow (seconds, kind, interface, EV or reason).
        steps: Of the training loop's first rank (seconds of its end, seconds it took, loss).
        happened: When each event was done.
        counts: Of each flow the sender's statistics at the end.
        done: Of each flow that ended, when its last message was acknowledged, seconds.
        fabric: Of packets, how many were marked, trimmed, or lost.
        errors: What broke.
    """

    scenario: Scenario
    flows: dict[str, Points]
    planes: dict[str, dict[str, Points]]
    states: dict[str, list[tuple[float, int, int]]]
    path_events: dict[str, list[tuple[float, str, str, Any]]]
    steps: list[tuple[float, float, float]]
    happened: list[tuple[float, Event]]
    counts: dict[str, Any]
    done: dict[str, float]
    fabric: dict[str, int]
    errors: list[str]

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        notes: Sequence[dict[str, Any]],
        *,
        happened: list[tuple[float, Event]],
        zero: float,
        fabric: dict[str, int],
    ) -> Record:
        """That of the notes of every host's program (tools.rig.traffic)."""
        samples = {name: rows for note in notes for name, rows in note["samples"].items()}
        return cls(
            scenario=scenario,
            flows={name: [(t - zero, b) for t, b, _ in rows] for name, rows in samples.items()},
            planes={
                name: {
                    plane: [(t - zero, by_plane[plane]) for t, _, by_plane in rows]
                    for plane in rows[0][2]
                }
                for name, rows in samples.items()
            },
            states={
                name: [(t - zero, good, bad) for t, good, bad in rows]
                for note in notes
                for name, rows in note["states"].items()
            },
            path_events={
                name: [(t - zero, kind, plane, about) for t, kind, plane, about in rows]
                for note in notes
                for name, rows in note["events"].items()
            },
            steps=[
                (t - zero, seconds, loss)
                for t, seconds, loss in next((note["steps"] for note in notes if note["steps"]), [])
            ],
            happened=happened,
            counts={name: row for note in notes for name, row in note["counts"].items()},
            done={name: at - zero for note in notes for name, at in note["done"].items()},
            fabric=fabric,
            errors=[error for note in notes for error in note["errors"]],
        )

    def times(self) -> list[float]:
        """The ends of the series' intervals, seconds."""
        return [STEP * number for number in range(1, round(self.scenario.seconds / STEP) + 1)]

    def goodput(self, points: Points) -> list[float]:
        """Mb/s in each interval of `times`."""
        return [rate(points, at - STEP, at) / 1e6 for at in self.times()]

    def verdicts(self) -> list[Verdict]:
        """Of each expectation."""
        return [
            Verdict(expectation=each, ratio=self._ratio(each))
            for each in self.scenario.expectations
        ]

    def _ratio(self, wanted: Expectation) -> float:
        if wanted.steps:
            return self._ratio_of_steps(wanted)
        chosen = [self.flows.get(name, []) for name in wanted.flows or self.flows]

        def goodput(start: float, end: float) -> float:
            return sum(rate(points, start, end) for points in chosen)

        whole = goodput(*wanted.to)
        if not whole:
            return 0.0
        slices = _slices(*wanted.during, wanted.worst) if wanted.worst else [wanted.during]
        return min(goodput(*each) for each in slices) / whole

    def _ratio_of_steps(self, wanted: Expectation) -> float:
        """Of the steps' times; 0 if there was none. A step belongs to the time it ended in."""

        def times(start: float, end: float) -> list[float]:
            return [seconds for at, seconds, _ in self.steps if start < at <= end]

        during, usual = times(*wanted.during), times(*wanted.to)
        if not during or not usual:
            return 0.0
        chosen = max(during) if wanted.steps == "longest" else statistics.median(during)
        return chosen / statistics.median(usual)

    def as_json(self) -> dict[str, Any]:
        """Everything; rates in Mb/s, times in seconds of the timeline."""
        return {
            "scenario": self.scenario.name,
            "about": self.scenario.about,
            "times_s": [round(at, 3) for at in self.times()],
            "events": [
                {"at_s": event.at, "done_s": round(done, 4), "event": str(event)}
                for done, event in self.happened
            ],
            "flows": {
                name: {
                    "goodput_mbps": _rounded(self.goodput(points)),
                    "planes_mbps": {
                        plane: _rounded(self.goodput(each))
                        for plane, each in self.planes[name].items()
                    },
                    "evs": [
                        {"at_s": round(at, 3), "good": good, "bad": bad}
                        for at, good, bad in self.states.get(name, [])
                    ],
                    "path_events": [
                        {"at_s": round(at, 4), "event": kind, "plane": plane, "about": about}
                        for at, kind, plane, about in self.path_events.get(name, [])
                    ],
                    "counts": self.counts.get(name, {}),
                    "done_s": self.done.get(name),
                }
                for name, points in self.flows.items()
            },
            "steps": [
                {"at_s": round(at, 4), "took_s": round(seconds, 5), "loss": round(loss, 5)}
                for at, seconds, loss in self.steps
            ],
            "fabric_packets": self.fabric,
            "verdicts": [
                {"expectation": str(each), "ratio": round(each.ratio, 4), "kept": each.kept}
                for each in self.verdicts()
            ],
            "errors": self.errors,
        }


def rate(points: Points, start: float, end: float) -> float:
    """Bits a second between two times, bytes between two samples being spread evenly."""
    return 8 * (_at(points, end) - _at(points, start)) / (end - start)


def _at(points: Points, when: float) -> float:
    after = bisect_left(points, when, key=lambda point: point[0])
    if after == 0 or after == len(points):
        return points[min(after, len(points) - 1)][1] if points else 0.0
    (t0, b0), (t1, b1) = points[after - 1], points[after]
    return b0 + (b1 - b0) * (when - t0) / (t1 - t0)


def _slices(start: float, end: float, length: float) -> Iterable[tuple[float, float]]:
    count = max(1, int((end - start) / length + 1e-9))
    return itertools.pairwise(start + length * number for number in range(count + 1))


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 3) for value in values]
