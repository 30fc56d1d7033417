# SPDX-License-Identifier: Apache-2.0
"""Hostile frames against live endpoints; with MRC_SANITIZE=1 the sanitizers look on."""

from __future__ import annotations

import pytest
from native.build import is_sanitized, load


def fuzz(seed: int, count: int) -> dict[str, int]:
    """Fuzzes with that many frames and returns the counts of `struct fuzz_endpoint`."""
    ffi, lib = load("fuzz_endpoint")
    result = ffi.new("struct fuzz_endpoint *")
    assert lib.fuzz_endpoint(seed, count, result) == 0
    what = "" if result.what == ffi.NULL else ffi.string(result.what).decode()
    assert (result.violations, what) == (0, "")
    names = ("frames", "accepted", "completed", "errors", "answers")
    return {name: getattr(result, name) for name in names}


def test_hostile_frames_break_nothing(seed: int) -> None:
    """C62: random bytes, replays, mutations, lies; canaries and pools are looked at after each."""
    counts = fuzz(seed, 100_000)
    assert counts["frames"] == 100_000


def test_hostile_frames_get_deep_and_the_endpoints_live_on() -> None:
    """Lives differ: the hostile end some early. A connection carries some twenty writes before a
    forged packet, sound in all but its meaning, tells one side what only another one can mend."""
    lives = [fuzz(seed, 10_000) for seed in range(1, 7)]
    accepted, completed, errors = (
        sum(counts[count] for counts in lives) for count in ("accepted", "completed", "errors")
    )
    assert accepted > 15_000
    assert errors > 30
    assert completed > 10 * errors


@pytest.mark.slow
def test_ten_million_hostile_frames_break_nothing(seed: int) -> None:
    """Two million, where the sanitizers make each five times as dear."""
    for part in range(4 if is_sanitized() else 20):
        fuzz(seed + part, 500_000)
