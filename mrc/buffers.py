# SPDX-License-Identifier: Apache-2.0
"""Memory for messages that arrive: given out, and used again when its last view is gone.

The kernel hands out large blocks page by page, and each first touch costs the I/O thread a fault:
for 4 MiB about as long as their transfer. So a few blocks are kept.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, Final

from mrc._core import ffi

__all__ = ["allocate"]

SMALLEST: Final = 1 << 16
LARGEST: Final = 1 << 24
"""Blocks of these sizes, in bytes, are kept; smaller ones are cheap, larger ones rare."""

KEPT: Final = 1 << 26
"""Bytes that are kept at most, over all sizes."""

_new = ffi.new_allocator(should_clear_after_alloc=False)
_free: defaultdict[int, list[Any]] = defaultdict(list)


def _kept() -> int:
    return sum(size * len(blocks) for size, blocks in _free.items())


def _give_back(size: int, block: Any, _view: Any) -> None:
    if _kept() + size <= KEPT:
        _free[size].append(block)


def allocate(size: int) -> memoryview:
    """A writable buffer of `size` bytes whose content is undefined.

    Raises:
        MemoryError: There is not so much memory.
    """
    if not SMALLEST <= size <= LARGEST:
        return memoryview(ffi.buffer(_new("uint8_t[]", size)))
    rounded = 1 << (size - 1).bit_length()
    blocks = _free[rounded]
    block = blocks.pop() if blocks else _new("uint8_t[]", rounded)
    # The view's owner: when it goes the block comes back.
    owner = ffi.gc(block, partial(_give_back, rounded, block))
    return memoryview(ffi.buffer(owner, size))
