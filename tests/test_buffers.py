# SPDX-License-Identifier: Apache-2.0
"""Blocks are used again, and only when nobody sees them any more."""

from __future__ import annotations

import ctypes
import gc

import pytest

from mrc import buffers

MIB = 1 << 20


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 100_000, 4 * MIB, 16 * MIB, 17 * MIB])
def test_a_buffer_has_the_size_that_was_asked_for_and_can_be_written(size: int) -> None:
    view = buffers.allocate(size)
    assert len(view) == size
    assert not view.readonly
    view[:] = b"\xa5" * size


def test_a_block_is_used_again_when_its_last_view_is_gone() -> None:
    first = buffers.allocate(3 * MIB)
    where = address(first)
    del first
    gc.collect()
    again = buffers.allocate(4 * MIB)
    assert address(again) == where


def test_a_block_that_somebody_still_sees_is_not_used_again() -> None:
    first = buffers.allocate(4 * MIB)
    part = first[MIB : MIB + 4]
    part[:] = b"kept"
    where = address(first)
    del first
    gc.collect()
    others = [buffers.allocate(4 * MIB) for _ in range(4)]
    assert where not in map(address, others)
    for other in others:
        other[:] = bytes(len(other))
    assert bytes(part) == b"kept"


def test_no_more_is_kept_than_the_limit() -> None:
    views = [buffers.allocate(buffers.LARGEST) for _ in range(8)]
    del views
    gc.collect()
    kept = sum(size * len(blocks) for size, blocks in buffers._free.items())
    assert 0 < kept <= buffers.KEPT
