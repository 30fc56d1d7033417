# SPDX-License-Identifier: Apache-2.0
"""The explorer: short runs of it, what it once found, and that it would find more."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tools.explore.check import live
from tools.explore.scenario import Scenario, draw
from tools.explore.shrink import Part, shrink


@pytest.mark.parametrize("first", [0, pytest.param(100_000, marks=pytest.mark.slow)])
def test_nothing_is_violated_in_fifty_lives(first: int) -> None:
    for seed in range(first, first + 50):
        assert live(draw(seed), twice=seed % 8 == 0).violations == (), f"--seed {seed}"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(18, id="a host without a port never gave up"),
        pytest.param(1113, id="the same before a plane was ever up"),
        pytest.param(245, id="a failed queue pair let its peer send again for ever"),
        pytest.param(1353, id="the same, the refusal kept back by probes"),
        pytest.param(300531, id="answers kept to paths that had died"),
        pytest.param(404, id="retries were over in a fabric that loses nothing"),
        pytest.param(90, id="the only way in use was dead, its spares were never tried"),
    ],
)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert live(draw(seed), twice=True).violations == ()


def test_a_seed_stands_for_one_scenario() -> None:
    ours, other = draw(7), draw(7)
    assert (ours.flows == other.flows).all()
    assert (ours.troubles, ours.settings) == (other.troubles, other.settings)
    assert (ours.topology.peer == other.topology.peer).all()
    assert live(ours).log_hash == live(other).log_hash


def test_a_flow_that_is_given_up_where_none_may_be_is_a_violation() -> None:
    given_up = dataclasses.replace(draw(18), mortal=False)
    assert any("given up: PEER_SILENT" in each for each in live(given_up).violations)


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    """It takes a grey link and two flows from host 0."""
    scenario = draw(18)

    def fails(part: Scenario) -> bool:
        is_grey = any(trouble.name == "grey" for trouble in part.troubles)
        return is_grey and (part.flows["source"] == 0).sum() >= 2

    part = shrink(scenario, fails)
    assert [scenario.troubles[number].name for number in part.troubles] == ["grey"]
    assert scenario.flows["source"][list(part.flows)].tolist() == [0, 0]
    assert part.most == 0


def test_a_part_keeps_who_waits_for_whom() -> None:
    scenario = next(s for s in map(draw, range(50)) if (s.flows["after"] < len(s.flows)).any())
    waiting = int(np.flatnonzero(scenario.flows["after"] < len(scenario.flows))[0])
    awaited = int(scenario.flows["after"][waiting])
    both = scenario.part(flows=[awaited, waiting], troubles=[], most=10)
    alone = scenario.part(flows=[waiting], troubles=[], most=10)
    assert both.flows["after"][1] == 0
    assert alone.flows["after"][0] == (1 << 32) - 1
    assert both.flows["bytes"].max() <= 10


def test_the_command_replays_a_part_and_says_what_it_did() -> None:
    scenario = draw(18)
    part = Part(flows=(1, 2), troubles=(0,), most=1000)
    words = shlex.split(part.arguments(scenario))
    command = [sys.executable, "-m", "tools.explore", "--seed", "18", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"packet-hops, log [0-9a-f]{16}$", done.stdout.rstrip())
    assert f"log {live(part.of(scenario)).log_hash:016x}" in done.stdout


def test_the_command_explores_for_the_time_that_it_is_given() -> None:
    command = [sys.executable, "-m", "tools.explore", "--seconds", "0.5", "--first", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.match(r"\d+ lives from seed 500 on, [\d,]+ packet-hops: all held", done.stdout)
