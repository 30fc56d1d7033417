# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a scenario that still fails: fewer flows, fewer troubles, fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tools.explore.scenario import Scenario

__all__ = ["Part", "shrink"]

_MOST: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is kept of a scenario: numbers of its flows and troubles, most bytes of a flow."""

    flows: tuple[int, ...]
    troubles: tuple[int, ...]
    most: int = _MOST

    @classmethod
    def whole(cls, scenario: Scenario) -> Part:
        """All of it."""
        return cls(
            flows=tuple(range(len(scenario.flows))),
            troubles=tuple(range(len(scenario.troubles))),
        )

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario that is left."""
        return scenario.part(flows=list(self.flows), troubles=list(self.troubles), most=self.most)

    def arguments(self, scenario: Scenario) -> str:
        """What replays it, behind `--seed n`."""
        words = []
        if len(self.flows) < len(scenario.flows):
            words.append(f"--flows {','.join(map(str, self.flows)) or 'none'}")
        if len(self.troubles) < len(scenario.troubles):
            words.append(f"--troubles {','.join(map(str, self.troubles)) or 'none'}")
        if self.most < _MOST:
            words.append(f"--most {self.most}")
        return " ".join(words)


def _fewer(
    items: tuple[int, ...], still_fails: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Leaves out ever smaller stretches for as long as it still fails (delta debugging)."""
    step = max(len(items) // 2, 1)
    while items:
        at = 0
        while at < len(items):
            rest = items[:at] + items[at + step :]
            if still_fails(rest):
                items = rest
            else:
                at += step
        if step == 1:
            break
        step //= 2
    return items


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Part:
    """A part that fails, of which nothing more can be left out alone.

    Args:
        scenario: One that fails.
        fails: Whether another one does.
    """
    part = Part.whole(scenario)
    troubles = _fewer(part.troubles, lambda kept: fails(replace(part, troubles=kept).of(scenario)))
    fewer = replace(part, troubles=troubles)
    flows = _fewer(fewer.flows, lambda kept: fails(replace(fewer, flows=kept).of(scenario)))
    least = replace(fewer, flows=flows)
    for most in (0, 1, 1000, 10_000, 50_000):
        smaller = replace(least, most=most)
        if fails(smaller.of(scenario)):
            return smaller
    return least
