# SPDX-License-Identifier: Apache-2.0
"""PSN arithmetic against plain integers, around the wrap and everywhere else."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from native.build import load

_, lib = load("wire")

WRAP = 1 << 24
HALF = WRAP // 2

psns = st.integers(0, WRAP - 1)


@given(psn=psns, count=st.integers(-(1 << 31), (1 << 31) - 1))
@example(psn=WRAP - 1, count=1)
@example(psn=0, count=-1)
def test_a_psn_moves_forth_and_back_over_the_wrap(psn: int, count: int) -> None:
    assert lib.psn_add(psn, count) == (psn + count) % WRAP


@given(psn=psns, distance=st.integers(-HALF, HALF - 1))
@example(psn=0, distance=-1)
@example(psn=WRAP - 1, distance=1)
@example(psn=5, distance=-HALF)
@example(psn=5, distance=HALF - 1)
def test_the_distance_of_two_psns_is_less_than_half_the_circle(psn: int, distance: int) -> None:
    other = (psn + distance) % WRAP
    assert lib.psn_diff(other, psn) == distance
    assert lib.psn_before(other, psn) == (distance < 0)


@given(first=psns, count=st.integers(0, WRAP), psn=psns)
@example(first=WRAP - 2, count=4, psn=1)
@example(first=WRAP - 2, count=4, psn=2)
@example(first=7, count=0, psn=7)
def test_a_range_of_psns_is_half_open_and_may_wrap(first: int, count: int, psn: int) -> None:
    assert lib.psn_in(psn, first, count) == ((psn - first) % WRAP < count)
