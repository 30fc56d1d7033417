# SPDX-License-Identifier: Apache-2.0
"""What the core may cost, counted in instructions: a slower core shows on any machine, under load.

`python -m tools.cost` says where they go.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cost.budget import BUDGET, TRAFFIC
from tools.cost.count import build, count, is_available

if not is_available():
    pytest.skip("valgrind and gcc count the instructions", allow_module_level=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cost"))


def test_a_packet_costs_no_more_than_its_budget(program: Path) -> None:
    over = {
        (traffic, share): cost.each
        for traffic, budget in BUDGET.items()
        for share, most in budget.items()
        if (cost := count(program, TRAFFIC[traffic], share)).each > most
    }
    assert over == {}


def test_two_counts_are_equal(program: Path) -> None:
    first, second = (count(program, TRAFFIC["stream"], "acknowledged") for _ in range(2))
    assert first == second
