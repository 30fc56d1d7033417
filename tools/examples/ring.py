# SPDX-License-Identifier: Apache-2.0
"""A ring all-reduce over the library: every host ends with the sum of what all hosts had.

    rank 0 ──> rank 1 ──> ... ──> rank n-1 ──┐        one connection to the next rank,
      ^──────────────────────────────────────┘        one from the previous

A vector is cut into as many chunks as there are ranks. In n-1 rounds each rank passes a chunk on
and adds the one that comes, after which it holds one chunk of the sum; in n-1 more the sums go
round.
So each host sends 2 (n-1)/n of the vector, whatever n is (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import mrc

Vector = NDArray[np.float32]

PATIENCE = 30.0
"""Seconds that the next rank has to begin listening in."""


class Ring:
    """One rank's place in a ring.

    Attributes:
        rank: From 0.
        size: How many ranks there are.
    """

    def __init__(
        self, rank: int, size: int, *, previous: mrc.Connection, following: mrc.Connection
    ) -> None:
        self.rank = rank
        self.size = size
        self._previous = previous
        self._following = following

    async def all_reduce(self, values: Vector) -> None:
        """Replaces a vector by the sum of all ranks' vectors, which is the same to the last bit.

        Args:
            values: As long on every rank; contiguous.

        Raises:
            mrc.ConnectionLost: A neighbour is gone; `values` holds something in between.
        """
        chunks = np.array_split(values, self.size)
        room = np.empty_like(chunks[0])  # the first is a longest one
        for turn in range(self.size - 1):
            mine = chunks[(self.rank - turn - 1) % self.size]
            came = room[: len(mine)]
            await self._pass_on(chunks[(self.rank - turn) % self.size], came)
            mine += came
        for turn in range(self.size - 1):
            whole = chunks[(self.rank - turn + 1) % self.size]
            await self._pass_on(whole, chunks[(self.rank - turn) % self.size])

    async def close(self) -> None:
        """Leaves the ring; what was sent has arrived."""
        await asyncio.gather(self._following.close(), self._previous.close())

    async def _pass_on(self, out: Vector, into: Vector) -> None:
        """Sends a chunk to the next rank while one of the previous rank comes."""
        await asyncio.gather(self._following.send(out), self._previous.recv_into(into))


async def join(
    endpoint: mrc.Endpoint, listener: mrc.Listener, ranks: Sequence[str], rank: int
) -> Ring:
    """Makes a ring of hosts, each of which calls this.

    Args:
        endpoint: Whose planes are used.
        listener: One of it, to which the previous rank connects.
        ranks: The hosts' targets, as of `mrc.connect`, in order.
        rank: Which one this is.

    Raises:
        mrc.MRCError: The next rank cannot be reached.
    """
    following, previous = await asyncio.gather(
        _connect(endpoint, ranks[(rank + 1) % len(ranks)]), listener.accept()
    )
    return Ring(rank, len(ranks), previous=previous, following=following)


async def _connect(endpoint: mrc.Endpoint, target: str) -> mrc.Connection:
    """Connects as soon as somebody listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await endpoint.connect(target)
        except mrc.ConnectRefused:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
