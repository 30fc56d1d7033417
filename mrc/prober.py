# SPDX-License-Identifier: Apache-2.0
"""EV probes: the round trip of one named path, or through switches alone, without a queue pair.

An EV probe takes the path that its entropy value names and is answered by any endpoint at its end
(MRC 1.0, Endpoint operations). A round trip goes out and back to ourselves by the uSIDs of its
carriers (RFC 9800): what leaves is the answer itself, so that no peer need be there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from mrc._native import EngineEvent, PeerPlane, TableFull
from mrc.control import Control
from mrc.errors import ConfigError
from mrc.handshake import Kind
from mrc.link import PairedPlane
from mrc.planes import Address, next_hop
from mrc.topology import Path, Topology
from mrc.walk import RoundTrip

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["Prober", "Tracer", "trace"]

_RETRY: Final = 0.005
"""Seconds until a probe that could not leave is tried again."""

_tags = itertools.count(1)


class _Guest:
    """Whose probes leave by the next hops of one peer of the engine; an async context manager.

    Any number of probes may be out at once, as far as the engine's table reaches (half of 512);
    more wait for it.
    """

    def __init__(self, hub: Hub, peer: int) -> None:
        self._hub = hub
        self._peer = peer
        self._open = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the peer. Once is enough."""
        if self._open:
            self._open = False
            self._hub.leave(self._peer)

    async def _probe(
        self,
        plane: int,
        ev: int,
        *,
        destination: Address | None = None,
        carriers: Sequence[Address] = (),
        patience: float,
        size: int = 0,
    ) -> float | None:
        """The round trip of one probe in seconds; None: lost, or the plane has no neighbour."""
        deadline = time.monotonic() + patience
        tag = next(_tags)
        send = partial(
            self._hub.engine.probe,
            *(self._peer, plane, ev, tag),
            destination=destination,
            carriers=carriers,
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


def _is_sent(send: Callable[[], bool]) -> bool:
    """False: the probe must wait for the next hop's address, or for room in the engine's table."""
    try:
        return send()
    except TableFull:
        return False


class Prober(_Guest):
    """A peer whose paths can be probed; an async context manager.

    Made by `Endpoint.visit`.

    Attributes:
        planes: Those in common with the peer.
        notices: What a person should know, as that answers take other paths than probes.
    """

    def __init__(
        self,
        hub: Hub,
        peer: int,
        planes: Sequence[PairedPlane],
        control: Control,
        notices: tuple[str, ...],
    ) -> None:
        super().__init__(hub, peer)
        self.planes = tuple(planes)
        self.notices = notices
        self._control = control

    def __repr__(self) -> str:
        planes = ", ".join(map(repr, self.planes))
        return f"<mrc.Prober of {planes}{'' if self._open else ', closed'}>"

    def close(self) -> None:
        """The peer may forget us. Once is enough."""
        if self._open:
            super().close()
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
        return self._hub.path_of([plane.local.address for plane in self.planes], ev)

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
        return await self._probe(
            plane.number, ev, destination=plane.address, patience=patience, size=size
        )

    def _plane(self, number: int) -> PeerPlane:
        for plane in self.planes:
            if plane.local.number == number:
                return plane.local
        raise ValueError(f"plane {number} is not in common with the peer")


class Tracer(_Guest):
    """The fabric on the way to a host, walked by round trips; an async context manager.

    Made by `Endpoint.trace`. Nothing is sent to the host, which need not be there.

    Attributes:
        topology: The fabric.
        paths: Every path to the host by the endpoint's planes.
        plane_names: Of their interfaces, by number.
    """

    def __init__(
        self,
        hub: Hub,
        peer: int,
        topology: Topology,
        paths: Sequence[Path],
        *,
        plane_names: Mapping[int, str],
        ways: Collection[int],
    ) -> None:
        super().__init__(hub, peer)
        self.topology = topology
        self.paths = tuple(paths)
        self.plane_names = dict(plane_names)
        self._ways = ways

    def __repr__(self) -> str:
        return f"<mrc.Tracer of {len(self.paths)} paths{'' if self._open else ', closed'}>"

    def path(self, ev: int) -> Path:
        """The path that an EV names.

        Raises:
            ConfigError: It names a plane that we do not have, or an uplink that is not there.
        """
        any_path = self.paths[0]
        path = self.topology.path(any_path.hops[0], any_path.hops[-1], ev)
        if path.plane not in self.plane_names:
            raise ConfigError(f"EV {ev:#x} names plane {path.plane}, which is none of ours")
        return path

    async def ask(self, trip: RoundTrip, *, patience: float = 1.0) -> float | None:
        """Goes round once, as `mrc.walk` makes trips for the paths.

        Args:
            trip: From this host.
            patience: Seconds until it counts as lost.

        Returns:
            The round trip in seconds; None: it did not come back, or the plane leads nowhere.
        """
        if trip.plane not in self._ways:
            return None
        ev = trip.plane << 12
        return await self._probe(trip.plane, ev, carriers=trip.carriers, patience=patience)


async def trace(hub: Hub, host: str) -> Tracer:
    """A tracer of the paths to a host of the topology.

    Raises:
        ConfigError: Without a topology, or it has no such host.
    """
    steering = hub.steering
    if steering is None:
        raise ConfigError("only a topology's paths can be walked: set routing and topology")
    topology = steering.topology
    paths = topology.paths(steering.here, topology.find_host(host).name)
    hops = {}
    for plane in hub.local_planes:
        address = topology.address(paths[0].hops[-1], plane.number)
        hop = await asyncio.to_thread(next_hop, plane.interface, address)
        if hop is not None:
            hops[plane.number] = hop
    names = {plane.number: plane.interface.name for plane in hub.local_planes}
    ours = [path for path in paths if path.plane in names]
    return Tracer(hub, hub.follow(hops), topology, ours, plane_names=names, ways=hops.keys())
