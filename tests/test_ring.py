# SPDX-License-Identifier: Apache-2.0
"""The ring between one producer and one consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native.build import load

ffi, lib = load("ring")

LAST = 2**32 - 1


@contextmanager
def ring(size: int, *, first: int = 0) -> Iterator[Any]:
    box = lib.ring_box_new(size, first)
    assert box != ffi.NULL
    try:
        yield box
    finally:
        lib.ring_box_free(box)


def take(box: Any) -> int | None:
    value = ffi.new("uint64_t *")
    return int(value[0]) if lib.ring_box_take(box, value) else None


@given(
    size=st.sampled_from([1, 2, 4, 64]),
    first=st.sampled_from([0, 1, LAST - 2, LAST]),
    puts=st.lists(st.booleans(), max_size=300),
)
def test_it_is_a_bounded_queue_also_where_its_indices_wrap(
    size: int, first: int, puts: list[bool]
) -> None:
    model: deque[int] = deque()
    with ring(size, first=first) as box:
        for number, is_put in enumerate(puts):
            if is_put:
                assert lib.ring_box_put(box, number) == (len(model) < size)
                if len(model) < size:
                    model.append(number)
            else:
                assert take(box) == (model.popleft() if model else None)
            assert lib.ring_box_count(box) == len(model)


@pytest.mark.parametrize("size", [1, 2, 256])
def test_between_two_threads_nothing_is_lost_doubled_or_out_of_order(size: int) -> None:
    with ring(size, first=LAST - 1000) as box:
        assert lib.ring_box_race(box, 100_000) == 0
        assert lib.ring_box_count(box) == 0
