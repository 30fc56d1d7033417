# SPDX-License-Identifier: Apache-2.0
"""Threads for what blocks: reading, writing and hashing beside the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Hasher", "Worker"]

_T = TypeVar("_T")


class Worker:
    """One thread that runs calls in order.

    It is a daemon, other than a thread of an executor: one that is stuck in a read of standard
    input or a write to a full pipe must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Runs a call behind those submitted before; the future has its outcome."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._calls.put((lambda: function(*arguments), future))
        return future

    def close(self) -> None:
        """Ends the thread behind what was submitted; waits for nothing."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            value, error = None, None
            try:
                value = call()
            except Exception as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits
            del item, call, future, value, error  # they hold buffers


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class Hasher:
    """SHA-256 of a stream, in a thread of its own."""

    def __init__(self) -> None:
        self._worker = Worker("mrc-hash")
        self._hash = hashlib.sha256()

    def restart(self, state: Any = None) -> None:
        """Begins anew, or goes on from a hash object; nothing may be under way."""
        self._hash = hashlib.sha256() if state is None else state

    def update(self, data: Any) -> asyncio.Future[None]:
        """Adds data, which must not change until the future is done."""
        return self._worker.submit(self._hash.update, data)

    async def hexdigest(self) -> str:
        """The checksum of all that was added."""
        return await self._worker.submit(self._hash.hexdigest)

    def close(self) -> None:
        """Ends the thread."""
        self._worker.close()
