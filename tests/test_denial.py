# SPDX-License-Identifier: Apache-2.0
"""What an operator names is what is denied: an EV, a switch, a link, in all planes or in one.

a, c ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
            └─ t1b ─┘
"""

from __future__ import annotations

import pytest
from topologies import TWO_BY_TWO

from mrc.denial import are_denied, denial
from mrc.errors import ConfigError
from mrc.topology import Path
from mrc.topology_file import parse

FABRIC = parse(TWO_BY_TWO)
STRUCTURED = parse('routing = "stev"\n' + TWO_BY_TWO)


EVS = (0x0000, 0x0001, 0x1000, 0x1001)
"""Plane 0 by t1a and by t1b, plane 1 by t1a and by t1b."""


def plain(ev: int) -> Path | None:
    """The path of an EV from a to b; None: it names none."""
    return FABRIC.path("a", "b", ev) if ev & 0xFFFF in EVS else None


@pytest.mark.parametrize(
    ("what", "meant"),
    [
        ("t1a", {0x0000, 0x1000}),
        ("t1b@1", {0x1001}),
        ("t0a", set(EVS)),
        ("t0b@0", {0x0000, 0x0001}),
        ("t0a-t1a", {0x0000, 0x1000}),
        ("t1a-t0b@1", {0x1000}),
        ("a-t0a@1", {0x1000, 0x1001}),
        ("t0b-b", set(EVS)),
        ("c-t0a", set()),
        ("0x1001", {0x1001}),
        ("4097", {0x1001}),
        (0xABCD1001, {0x1001}),
        ("0x2000", set()),
    ],
)
def test_what_is_named_is_denied(what: int | str, meant: set[int]) -> None:
    told = are_denied(EVS, [denial(what, FABRIC)], plain)
    assert {ev for ev, is_denied in told.items() if is_denied} == meant


def path_of(ev: int) -> Path | None:
    """As an endpoint with structured EVs names paths."""
    return STRUCTURED.path("a", "b", ev)


def test_a_structured_ev_means_all_that_name_its_path() -> None:
    evs = [0x0000, 0x0123, 0x0800, 0x0ABC, 0x1801]
    told = are_denied(evs, [denial("0x0FFF", STRUCTURED)], path_of)
    assert {ev for ev, is_denied in told.items() if is_denied} == {0x0800, 0x0ABC}


def test_denials_add_up() -> None:
    denials = [denial("t1a@0", FABRIC), denial(0x1001, FABRIC)]
    told = are_denied(EVS, denials, plain)
    assert told == {0x0000: True, 0x0001: False, 0x1000: False, 0x1001: True}


def test_names_may_have_dashes() -> None:
    fabric = parse(TWO_BY_TWO.replace("t0a", "rack-1-t0").replace("t1a", "spine-1"))
    assert denial("rack-1-t0-spine-1", fabric).nodes == ("rack-1-t0", "spine-1")
    assert denial("spine-1-rack-1-t0@0", fabric).nodes == ("rack-1-t0", "spine-1")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("t9", "no switch or link 't9'; a link is as t0a-t1a"),
        ("b", "no switch or link"),
        ("t1a-t1b", "no switch or link"),
        ("b-t0a", "no switch or link"),
        ("t1a@2", r"planes 0\.\.1"),
        ("t1a@", r"planes 0\.\.1"),
        ("t1a@p1", r"planes 0\.\.1"),
        ("", "no switch or link"),
        ("0x100000000", "more than 32 bits"),
    ],
)
def test_what_is_not_there_is_told(what: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        denial(what, FABRIC)


def test_only_entropy_values_can_be_named_without_a_topology() -> None:
    assert denial("0x10", None).ev == 16
    with pytest.raises(ConfigError, match="only of a topology"):
        denial("t1a", None)
