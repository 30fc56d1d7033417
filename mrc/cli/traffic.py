# SPDX-License-Identifier: Apache-2.0
"""What a connection carried and met on each plane, for progress, tables and JSON."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mrc.cli.common import ratio, say
from mrc.errors import ConnectionClosed
from mrc.events import Event, PathBad, PathGood, PathStats, PlaneLost

if TYPE_CHECKING:
    from mrc.connection import Connection

__all__ = ["PlaneTraffic", "Tell", "Traffic", "planes_json", "teller"]

Tell = Callable[[str], None]
"""Takes a line for people."""

_SAMPLE_EVERY: Final = 0.2
_PLANE_EVENTS_KEPT: Final = 1000
_PATH_EVENTS_KEPT: Final = 100
"""Of single paths, for each plane: under random loss they come and go all the time."""


@dataclass(frozen=True, kw_only=True)
class PlaneTraffic:
    """What one plane carried since the connection began.

    Attributes:
        name: Of our interface.
        state: `probing`, `up` or `out`.
        reason: Why it is out, or "".
        bytes_sent: Payload that the peer acknowledged.
        bytes_received: Payload of new packets.
        retransmitted: Packets sent again.
        lost: Packets judged lost.
        outages: How often it went out.
        rtt_us: Smoothed round trip, microseconds; 0 unknown.
    """

    name: str
    state: str
    reason: str
    bytes_sent: int
    bytes_received: int
    retransmitted: int
    lost: int
    outages: int
    rtt_us: float

    @property
    def bytes(self) -> int:
        """Payload, both ways."""
        return self.bytes_sent + self.bytes_received


def _since(path: PathStats, base: PathStats) -> PlaneTraffic:
    return PlaneTraffic(
        name=path.name,
        state=path.state,
        reason=path.reason,
        bytes_sent=path.bytes_acked - base.bytes_acked,
        bytes_received=path.bytes_received - base.bytes_received,
        retransmitted=path.packets_retransmitted - base.packets_retransmitted,
        lost=path.packets_lost - base.packets_lost,
        outages=path.outages - base.outages,
        rtt_us=path.rtt_us,
    )


def _event_json(event: Event, start: float) -> dict[str, Any]:
    """`PlaneLost(...)` becomes `{"event": "plane_lost", "time_s": ..., "plane": ..., ...}`."""
    name = type(event).__name__
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    rest = asdict(event)
    return {"event": words, "time_s": round(rest.pop("time") - start, 6), **rest}


def _event_text(event: Event) -> str:
    """For people: which plane or path, and what became of it."""
    if isinstance(event, PathBad | PathGood):
        hops = "" if event.hops is None else f" ({' '.join(event.hops)})"
        what = "is left: it loses" if isinstance(event, PathBad) else "is used again"
        return f"path {event.plane} {event.ev & 0xFFFF:#06x}{hops} {what}"
    if isinstance(event, PlaneLost):
        return f"plane {event.plane} is left: {event.reason}"
    return f"plane {event.plane} carries data"


def teller(arguments: argparse.Namespace) -> Tell | None:
    """Says events on standard error, with `--verbose`."""
    return partial(say, arguments.command) if arguments.verbose else None


def planes_json(planes: Iterable[PlaneTraffic], *, rtt: bool = False) -> dict[str, Any]:
    """The `planes` object of `--json`.

    Args:
        planes: Each of them.
        rtt: With round-trip times in place of losses, for measurements.
    """
    rows = list(planes)
    total = sum(row.bytes for row in rows)
    return {
        row.name: {
            "bytes": row.bytes,
            "share": ratio(row.bytes, total) or 0.0,
            "retransmitted": row.retransmitted,
            **({"rtt_us": round(row.rtt_us, 1)} if rtt else {"lost": row.lost}),
            "state": row.state,
        }
        for row in rows
    }


class Traffic:
    """Watches a connection while entered: `planes` and `events` outlive it.

    The events that it keeps are also told, one line each.

    What happened before is not of this transfer: counts and events begin with this object.
    """

    def __init__(self, connection: Connection, tell: Tell | None = None) -> None:
        self._connection = connection
        self._tell = tell
        self._base: dict[str, PathStats] = {}
        self._planes: tuple[PlaneTraffic, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._events: list[dict[str, Any]] = []
        self._seen: Counter[tuple[str, bool]] = Counter()
        self._started = time.monotonic()
        self.sample()

    async def __aenter__(self) -> Traffic:
        self._tasks = [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._keep_sampling()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sample()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def planes(self) -> tuple[PlaneTraffic, ...]:
        """The last known counts of every plane."""
        return self._planes

    def sample(self) -> None:
        """Takes the counts; leaves them as they were once the connection is over."""
        with contextlib.suppress(ConnectionClosed):
            self._planes = tuple(
                _since(path, self._base.setdefault(path.name, path))
                for path in self._connection.paths()
            )

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY)
            self.sample()

    async def _follow(self) -> None:
        async for event in self._connection.events():
            if event.time >= self._started:
                self._note(event)

    def _note(self, event: Event) -> None:
        """Keeps an event, unless there are enough of its kind."""
        of_path = hasattr(event, "ev")
        key = (event.plane, of_path)
        self._seen[key] += 1
        if self._seen[key] <= (_PATH_EVENTS_KEPT if of_path else _PLANE_EVENTS_KEPT):
            self._events.append(_event_json(event, self._started))
            if self._tell is not None:
                self._tell(_event_text(event) + self._suspects(event))

    def _suspects(self, event: Event) -> str:
        """For a path that was left: which link or switch explains all that are."""
        if not isinstance(event, PathBad) or event.hops is None:
            return ""
        with contextlib.suppress(ConnectionClosed):
            return "".join(f"; at fault: {fault}" for fault in self._connection.faults())
        return ""

    def events_json(self) -> dict[str, Any]:
        """`path_events`: the first 1000 of each plane, and 100 of its paths; how many came more."""
        return {
            "path_events": list(self._events),
            "path_events_omitted": self._seen.total() - len(self._events),
        }
