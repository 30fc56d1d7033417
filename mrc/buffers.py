# SPDX-License-Identifier: Apache-2.0
"""Memory for messages that arrive: given out, and used again when its last view is gone.

The kernel hands out large blocks page by page, and each first touch costs the I/O thread a fault:
for 4 MiB about as long as their transfer. So a few blocks are kept.

A peer that says it has filled a buffer may not have, and an application may send back what it
got: so whatever is in a buffer must be that peer's. New blocks are zeros, and one that is used
again stays with its connection.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, ClassVar, Final

from mrc._core import ffi

__all__ = ["Blocks"]

SMALLEST: Final = 1 << 16
LARGEST: Final = 1 << 24
"""Blocks of these sizes, in bytes, are kept; smaller ones are cheap, larger ones rare."""

KEPT: Final = 1 << 26
"""Bytes that are kept at most, over all sizes and connections."""


class Blocks:
    """The blocks of one connection.

    Attributes:
        kept: Bytes that all of them keep.
    """

    kept: ClassVar[int] = 0

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Any]] = defaultdict(list)
        self._closed = False

    def allocate(self, size: int) -> memoryview:
        """A writable buffer of `size` bytes: zeros, or what this connection had there before.

        Raises:
            MemoryError: There is not so much memory.
        """
        if not SMALLEST <= size <= LARGEST:
            return memoryview(ffi.buffer(ffi.new("uint8_t[]", size)))
        rounded = 1 << (size - 1).bit_length()
        blocks = self._free[rounded]
        if blocks:
            block = blocks.pop()
            Blocks.kept -= rounded
        else:
            block = ffi.new("uint8_t[]", rounded)
        # The view's owner: when it goes the block comes back.
        owner = ffi.gc(block, partial(self._give_back, rounded, block))
        return memoryview(ffi.buffer(owner, size))

    def _give_back(self, size: int, block: Any, _view: Any) -> None:
        if not self._closed and Blocks.kept + size <= KEPT:
            self._free[size].append(block)
            Blocks.kept += size

    def close(self) -> None:
        """Keeps nothing any more; what was given out lives on."""
        self._closed = True
        Blocks.kept -= sum(size * len(blocks) for size, blocks in self._free.items())
        self._free.clear()
