# SPDX-License-Identifier: Apache-2.0
"""Buffers of the application, and memory that a peer lends: what both layers share."""

from __future__ import annotations

import struct
from typing import Any, Final

from mrc.errors import ProtocolError

__all__ = ["RemoteRegion", "check_immediate", "describe", "flat", "writable"]

_DESCRIPTOR: Final = struct.Struct(">4sIQQ")  # magic, key, address, size
_MAGIC: Final = b"MRCr"


def flat(data: Any) -> memoryview:
    """One-dimensional bytes over any buffer.

    Raises:
        TypeError: It is no buffer.
        ValueError: It is not contiguous, or holds items that Python cannot see as bytes.
    """
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous: copy it, as by numpy.ascontiguousarray")
    if not view.nbytes:
        return memoryview(b"" if view.readonly else bytearray())
    try:
        return view.cast("B")
    except ValueError:  # complex numbers, records, the other byte order
        raise ValueError(
            f"items of format {view.format!r} cannot be taken as bytes: "
            "give a view of bytes, as by array.view(numpy.uint8)"
        ) from None


def writable(buffer: Any, what: str) -> memoryview:
    """The same over a buffer that can be written to.

    Raises:
        BufferError: It is read-only.
        TypeError, ValueError: As `flat`.
    """
    view = flat(buffer)
    if view.readonly:
        raise BufferError(f"{what} must be writable: give a bytearray, not bytes")
    return view


def check_immediate(imm: int | None) -> int | None:
    """The same, if it fits.

    Raises:
        TypeError: It is no integer.
        ValueError: It has more than 32 bits.
    """
    if imm is None:
        return None
    if not isinstance(imm, int):
        raise TypeError(f"imm = {imm!r} is not an integer")
    if not 0 <= imm < 1 << 32:
        raise ValueError(f"imm = {imm} is not in 0..2**32-1")
    return imm


class RemoteRegion:
    """Memory that a peer lends.

    `len(remote)` is its size in bytes, and `remote[a:b]` a part of it, by the rules of any Python
    sequence: negative indices count from the end, what lies outside is left out. So a part may be
    smaller than was asked for, or empty; a write that does not fit it is refused before it starts.

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

    def __repr__(self) -> str:
        # Not the key: who knows it may write there.
        return f"<mrc.RemoteRegion of {self._size} bytes at {self.va:#x}>"

    def __getitem__(self, part: slice) -> RemoteRegion:
        if not isinstance(part, slice):
            raise TypeError(f"a remote region is cut by [start:stop], not by [{part!r}]")
        start, stop, step = part.indices(self._size)
        if step != 1:
            raise ValueError(f"a part of a remote region is contiguous: step {step} is not 1")
        return RemoteRegion(key=self.key, va=self.va + start, size=max(0, stop - start))

    @classmethod
    def from_descriptor(cls, descriptor: Any) -> RemoteRegion:
        """The region that a peer's descriptor describes.

        Raises:
            ProtocolError: It is no descriptor.
            TypeError: It is not even bytes-like.
        """
        data = bytes(flat(descriptor))
        if len(data) != _DESCRIPTOR.size or data[:4] != _MAGIC:
            raise ProtocolError("not the descriptor of a memory region")
        _, key, va, size = _DESCRIPTOR.unpack(data)
        if va + size > 1 << 64:
            raise ProtocolError("the descriptor of a memory region that leaves the address space")
        return cls(key=key, va=va, size=size)


def describe(*, key: int, va: int, size: int) -> bytes:
    """The descriptor of a region of ours, for the peer."""
    return _DESCRIPTOR.pack(_MAGIC, key, va, size)
