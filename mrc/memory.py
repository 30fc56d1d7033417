# SPDX-License-Identifier: Apache-2.0
"""Buffers of the application, and memory that a peer lends: what both layers share."""

from __future__ import annotations

import struct
from typing import Any, Final

from mrc.errors import ProtocolError

__all__ = ["RemoteRegion", "check_immediate", "describe", "flat"]

_DESCRIPTOR: Final = struct.Struct(">4sIQQ")  # magic, key, address, size
_MAGIC: Final = b"MRCr"


def flat(data: Any) -> memoryview:
    """One-dimensional bytes over any buffer.

    Raises:
        TypeError: It is no buffer.
        ValueError: It is not contiguous.
    """
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous: copy it, as by numpy.ascontiguousarray")
    return view.cast("B") if view.nbytes else memoryview(b"")


def check_immediate(imm: int | None) -> int | None:
    """The same, if it fits.

    Raises:
        ValueError: It has more than 32 bits.
    """
    if imm is not None and not 0 <= imm < 1 << 32:
        raise ValueError(f"imm = {imm} is not a number of 32 bits")
    return imm


class RemoteRegion:
    """Memory that a peer lends: `len(remote)`, and `remote[a:b]` is a part of it.

    Attributes:
        key: The r_key that a write must carry.
        va: Address of its first byte, as a write must name it.
    """

    __slots__ = ("_size", "key", "va")

    def __init__(self, *, key: int, va: int, size: int) -> None:
        self.key = key
        self.va = va
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> RemoteRegion:
        if not isinstance(part, slice) or part.step not in {None, 1}:
            raise TypeError("a remote region is cut by [start:stop]")
        start, stop, _ = part.indices(self._size)
        return RemoteRegion(key=self.key, va=self.va + start, size=max(0, stop - start))

    @classmethod
    def from_descriptor(cls, descriptor: Any) -> RemoteRegion:
        """The region that a peer's descriptor describes.

        Raises:
            ProtocolError: It is no descriptor.
        """
        data = bytes(descriptor)
        if len(data) != _DESCRIPTOR.size or data[:4] != _MAGIC:
            raise ProtocolError("not the descriptor of a memory region")
        _, key, va, size = _DESCRIPTOR.unpack(data)
        return cls(key=key, va=va, size=size)


def describe(*, key: int, va: int, size: int) -> bytes:
    """The descriptor of a region of ours, for the peer."""
    return _DESCRIPTOR.pack(_MAGIC, key, va, size)
