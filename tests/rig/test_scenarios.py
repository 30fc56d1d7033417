# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the rig on real packets: each judges the shape itself, as ratios within its run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.rig.__main__ import main

pytestmark = pytest.mark.rig


def run(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The record of a run that kept its expectations; most of up to three runs must.

    Whoever else uses the machine can take a second from a run, and that is a ratio broken.
    """
    broken = []
    for _ in range(3):
        code = main(["run", name, "--short", "--json"])
        record: dict[str, Any] = json.loads(capsys.readouterr().out)
        if code == 0:
            kept = record
        else:
            broken.append((record["verdicts"], record["errors"]))
        if code == 0 and not broken:
            break
    assert len(broken) < 2, broken
    return kept


def test_links_of_a_host_taken_down_one_by_one_cost_equal_steps_that_come_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = run("paper-f9a", capsys)
    assert len(record["verdicts"]) == 4
    for flow in record["flows"].values():
        lost = [each["plane"] for each in flow["path_events"] if each["event"] == "PlaneLost"]
        assert {"p0", "p1", "p2"} <= set(lost)
        assert len(flow["goodput_mbps"]) == len(record["times_s"])


@pytest.mark.parametrize("number", ["f6", "f9b", "f10", "f11", "f12"])
def test_what_the_paper_shows_of_lost_links_switches_and_packets(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flapping links, a dead T0 and a dead T1, a path that loses a fifth of its packets."""
    run(f"paper-{number}", capsys)


@pytest.mark.parametrize("name", ["training-flaps", "training-reboot"])
def test_a_training_loop_keeps_its_pace_while_links_flap_and_a_t1_reboots(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(name, capsys)
    losses = [step["loss"] for step in record["steps"]]
    assert len(losses) > 40
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
