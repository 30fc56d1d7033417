# SPDX-License-Identifier: Apache-2.0
"""EV probes: the round trip of one named path, without a queue pair.

An EV probe takes the path that its entropy value names and is answered by any endpoint at its end
(MRC 1.0, Endpoint operations).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from mrc._native import EngineEvent, PeerPlane, TableFull
from mrc.control import Control
from mrc.errors import ConfigError
from mrc.handshake import Kind
from mrc.link import PairedPlane
from mrc.topology import Path

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["Prober"]

_RETRY: Final = 0.005
"""Seconds until a probe that could not leave is tried again."""

_tags = itertools.count(1)


class Prober:
    """A peer whose paths can be probed; an async context manager.

    Made by `Endpoint.visit`. Any number of probes may be out at once, as far
    as the engine's table reaches (half of 512); more wait for it.

    Attributes:
        planes: Those in common with the peer.
    """

    def __init__(
        self, hub: Hub, peer: int, planes: Sequence[PairedPlane], control: Control
    ) -> None:
        self.planes = tuple(planes)
        self._hub = hub
        self._peer = peer
        self._control = control
        self._open = True

    def __repr__(self) -> str:
        planes = ", ".join(map(repr, self.planes))
        return f"<mrc.Prober of {planes}{'' if self._open else ', closed'}>"

    async def __aenter__(self) -> Prober:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The peer may forget us. Once is enough."""
        if self._open:
            self._open = False
            self._hub.leave(self._peer)
            self._control.close(Kind.CLOSE)

    @property
    def evs(self) -> tuple[int, ...] | None:
        """One EV for every path by the planes in common; None: no topology names them."""
        steering = self._hub.steering
        if steering is None:
            return None
        peer = steering.name_of(plane.local.address for plane in self.planes)
        numbers = {plane.local.number for plane in self.planes}
        listed = steering.topology.paths(steering.here, peer)
        return tuple(steering.topology.ev(path) for path in listed if path.plane in numbers)

    def path(self, ev: int) -> Path | None:
        """The path that an EV names; None: no topology says, or it has no such path."""
        steering = self._hub.steering
        if steering is None:
            return None
        peer = steering.name_of(plane.local.address for plane in self.planes)
        try:
            return steering.topology.path(steering.here, peer, ev)
        except ConfigError:
            return None

    async def ask(self, ev: int, *, patience: float = 1.0, size: int = 0) -> float | None:
        """Probes the path that an EV names, in the plane EV[15:12].

        Args:
            ev: 32 bits.
            patience: Seconds until it counts as lost.
            size: Bytes of the IP packet; less than its headers: no padding.

        Returns:
            The round trip in seconds; None: no answer, or the plane has no neighbour.

        Raises:
            ValueError: The EV names a plane that is not in common with the peer.
        """
        plane = self._plane(ev >> 12 & 15)
        deadline = time.monotonic() + patience
        tag = next(_tags)
        send = partial(
            self._hub.engine.probe,
            *(self._peer, plane.number, ev, tag),
            destination=plane.address,
            timeout=math.ceil(patience * 1e9),
            size=size,
        )
        while not _is_sent(send):
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_RETRY)
        ended: asyncio.Future[EngineEvent] = asyncio.get_running_loop().create_future()
        self._hub.probes[tag] = ended
        event = await ended
        return event.rtt / 1e9 if event.status == 0 else None

    def _plane(self, number: int) -> PeerPlane:
        for plane in self.planes:
            if plane.local.number == number:
                return plane.local
        raise ValueError(f"plane {number} is not in common with the peer")


def _is_sent(send: Callable[[], bool]) -> bool:
    """False: the probe must wait for the next hop's address, or for room in the engine's table."""
    try:
        return send()
    except TableFull:
        return False
