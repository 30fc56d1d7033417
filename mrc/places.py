# SPDX-License-Identifier: Apache-2.0
"""Who may be at a listener's door at the same time: bounded, and fair between sites."""

from __future__ import annotations

import asyncio
from collections import Counter

from mrc.control import Control

__all__ = ["Places"]


class Places:
    """A number of places for the tasks that serve control connections.

    Who takes many and finishes none must not lock others out: when all are taken, the site that
    has the most loses its oldest to one that has fewer, and the task of that one is cancelled.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[asyncio.Task[None], Control] = {}  # oldest first

    def take(self, task: asyncio.Task[None], control: Control, *, waiting: int = 0) -> bool:
        """Takes a place, if need be another one's; False: none is to be had.

        Args:
            task: Who serves it; it leaves by `leave`.
            control: The connection.
            waiting: Places that are taken besides.
        """
        if len(self._taken) + waiting >= self._count and not self._make_room(control.site):
            return False
        self._taken[task] = control
        return True

    def leave(self, task: asyncio.Task[None]) -> None:
        """Gives the place back, if there is one."""
        self._taken.pop(task, None)

    def cancel_all(self) -> None:
        """Ends everybody."""
        for task in self._taken:
            task.cancel()

    def _make_room(self, newcomer: str) -> bool:
        counts = Counter(control.site for control in self._taken.values())
        (site, count), *_ = counts.most_common(1) or [("", 0)]
        if count <= counts[newcomer] + 1:
            return False
        oldest = next(task for task, control in self._taken.items() if control.site == site)
        self._taken.pop(oldest).refuse_busy()
        oldest.cancel()
        return True
