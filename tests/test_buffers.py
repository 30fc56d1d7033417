# SPDX-License-Identifier: Apache-2.0
"""Blocks are used again, and only when nobody sees them any more."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

from mrc.buffers import KEPT, LARGEST, Blocks

MIB = 1 << 20


@pytest.fixture
def blocks() -> Iterator[Blocks]:
    gc.collect()
    made = Blocks()
    yield made
    made.close()


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 100_000, 4 * MIB, 16 * MIB, 17 * MIB])
def test_a_buffer_has_the_size_that_was_asked_for_and_can_be_written(
    blocks: Blocks, size: int
) -> None:
    view = blocks.allocate(size)
    assert len(view) == size
    assert not view.readonly
    view[:] = b"\xa5" * size


def test_a_block_is_used_again_when_its_last_view_is_gone(blocks: Blocks) -> None:
    first = blocks.allocate(3 * MIB)
    where = address(first)
    del first
    gc.collect()
    again = blocks.allocate(4 * MIB)
    assert address(again) == where


def test_a_block_that_somebody_still_sees_is_not_used_again(blocks: Blocks) -> None:
    first = blocks.allocate(4 * MIB)
    part = first[MIB : MIB + 4]
    part[:] = b"kept"
    where = address(first)
    del first
    gc.collect()
    others = [blocks.allocate(4 * MIB) for _ in range(4)]
    assert where not in map(address, others)
    for other in others:
        other[:] = bytes(len(other))
    assert bytes(part) == b"kept"


def test_no_more_is_kept_than_the_limit(blocks: Blocks) -> None:
    views = [blocks.allocate(LARGEST) for _ in range(8)]
    del views
    gc.collect()
    assert 0 < Blocks.kept <= KEPT
    blocks.close()
    assert Blocks.kept == 0


@pytest.mark.parametrize("size", [3000, 65536, 4 * MIB, 17 * MIB])
def test_a_buffer_shows_nothing_of_another_connection(blocks: Blocks, size: int) -> None:
    """A peer that claims to have filled it would have the application send it back."""
    for _ in range(4):
        other = Blocks()
        secret = other.allocate(size)
        secret[:] = b"s" * size
        del secret
        gc.collect()
        other.close()
        assert bytes(blocks.allocate(size)) == bytes(size)
