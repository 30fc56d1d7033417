# SPDX-License-Identifier: Apache-2.0
"""EV probes: the round trip of one named path, or through switches alone, without a queue pair.

An EV probe takes the path that its entropy value names and is answered by any endpoint at its end
(MRC 1.0, Endpoint operations). A round trip goes out and back to ourselves by the uSIDs of one
carrier (RFC 9800): what leaves is the answer itself, so that no peer need be there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from mrc._native import EngineEvent, PeerPlane, TableFull
from mrc.control import Control
from mrc.errors import ConfigError, HandshakeError
from mrc.handshake import Kind
from mrc.link import PairedPlane
from mrc.planes import Address, next_hop
from mrc.topology import Path

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["Prober", "survey"]

_RETRY: Final = 0.005
"""Seconds until a probe that could not leave is tried again."""

_tags = itertools.count(1)


class Prober:
    """A peer whose paths can be probed; an async context manager.

    Made by `Endpoint.visit` and `Endpoint.survey`. Any number of probes may be out at once, as far
    as the engine's table reaches (half of 512); more wait for it.

    Attributes:
        planes: Those in common with the peer.
    """

    def __init__(
        self, hub: Hub, peer: int, planes: Sequence[PairedPlane], control: Control | None
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
            if self._control is not None:
                self._control.close(Kind.CLOSE)

    @property
    def paths(self) -> tuple[Path, ...] | None:
        """Every path to the peer by the planes in common; None: no topology names them."""
        steering = self._hub.steering
        if steering is None:
            return None
        peer = steering.name_of(plane.local.address for plane in self.planes)
        numbers = {plane.local.number for plane in self.planes}
        listed = steering.topology.paths(steering.here, peer)
        return tuple(path for path in listed if path.plane in numbers)

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
        return await self._probe(plane, ev, destination=plane.address, patience=patience, size=size)

    async def go_round(
        self, plane: int, carrier: Address, *, patience: float = 1.0
    ) -> float | None:
        """Sends a packet to ourselves, by way of a carrier's uSIDs, which must lead back to us.

        Args:
            plane: Number of the plane that it leaves and comes back by.
            carrier: As `Topology.round_trips` gives them.
            patience: Seconds until it counts as lost.

        Returns:
            The round trip in seconds; None: it did not come back.

        Raises:
            ValueError: The plane is not in common with the peer.
        """
        return await self._probe(
            self._plane(plane), plane << 12, carrier=carrier, patience=patience
        )

    def _plane(self, number: int) -> PeerPlane:
        for plane in self.planes:
            if plane.local.number == number:
                return plane.local
        raise ValueError(f"plane {number} is not in common with the peer")

    async def _probe(
        self,
        plane: PeerPlane,
        ev: int,
        *,
        destination: Address | None = None,
        carrier: Address | None = None,
        patience: float,
        size: int = 0,
    ) -> float | None:
        deadline = time.monotonic() + patience
        tag = next(_tags)
        send = partial(
            self._hub.engine.probe,
            *(self._peer, plane.number, ev, tag),
            destination=destination,
            carrier=carrier,
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


async def survey(hub: Hub, host: str) -> Prober:
    """A prober of the fabric towards a host of the topology, to which nothing is said.

    Raises:
        ConfigError: Without a topology, or there is no such host in it.
        HandshakeError: No plane leads there.
    """
    steering = hub.steering
    if steering is None:
        raise ConfigError("a survey is of a topology: the endpoint needs routing='srv6'")
    host = steering.topology.find_host(host).name
    planes = []
    for plane in hub.local_planes:
        address = steering.topology.address(host, plane.number)
        hop = await asyncio.to_thread(next_hop, plane.interface, address)
        if hop is None:
            continue
        local = PeerPlane(number=plane.number, remote=plane.number, address=address, next_hop=hop)
        planes.append(
            PairedPlane(
                name=plane.interface.name,
                local=local,
                local_address=str(plane.interface.address),
                remote_name="",
            )
        )
    if not planes:
        raise HandshakeError(f"no plane leads to {host}")
    locals_ = [plane.local for plane in planes]
    # An incarnation that nobody has: what is known of the host by a set-up stays another peer.
    return Prober(hub, hub.add_guest(secrets.randbits(64), locals_, ""), planes, None)
