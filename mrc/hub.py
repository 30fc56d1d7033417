# SPDX-License-Identifier: Apache-2.0
"""What an endpoint is inside: an engine on an event loop, with its planes, peers and links.

The engine's eventfd wakes the loop; events are handed to the links they belong to. Works on any
loop that has `add_reader`. The `Endpoint` that the application holds is only a handle, so that
forgetting one can be noticed; links and set-ups know the hub as their endpoint.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mrc import _native
from mrc._native import Engine, EngineEvent, PeerPlane
from mrc.config import Config
from mrc.denial import Denial, denial
from mrc.errors import (
    AfterForkError,
    ConcurrencyError,
    ConfigError,
    ConnectionLost,
    MRCError,
)
from mrc.planes import Address, LocalPlane, RemotePlane, discover
from mrc.steering import Steering
from mrc.topology import Path

if TYPE_CHECKING:
    from mrc.link import Link
    from mrc.listener import Listener

__all__ = ["Hub"]

_log = logging.getLogger("mrc")

_BATCHES: Final = 16
"""Polls of 64 events before other callbacks of the loop have their turn."""


@dataclass(kw_only=True)
class _Peer:
    """A peer of the engine.

    Attributes:
        incarnation: What it says it is.
        key: What the engine knows it by.
        sites: Where its control connections come from.
        addresses: Of its planes, by our number.
    """

    incarnation: int
    key: int
    sites: set[str]
    addresses: dict[int, Address]

    def is_same(self, incarnation: int, site: str, addresses: dict[int, Address]) -> bool:
        """Whether this set-up is surely its own, or changes nothing."""
        is_told = addresses.items() <= self.addresses.items()
        return self.incarnation == incarnation and (self.sites == {site} or is_told)


class Hub:
    """An engine with its planes, shared by any number of links.

    Attributes:
        config: Its settings.
        excluded: Interfaces that are no planes, and why.
        local_planes: The planes, by number.
        links: Who gets the events of each queue pair.
        backlogged: Links that have more to submit than the ring had room for.
        starved: Links with messages for which the table of memory regions has no room.
        listeners: Who is to be closed with it.
        probes: Who gets the end of each EV probe, by its tag.
        denied: What carries no data of any link.
        closes_when_unused: Nobody but the links holds it: it ends with the last of them.
    """

    def __init__(self, planes: Sequence[str] | None, config: Config | None) -> None:
        self.config = config or Config()
        self.excluded: dict[str, str] = {}
        self.local_planes: tuple[LocalPlane, ...] = ()
        self.links: dict[int, Link] = {}
        self.backlogged: set[Link] = set()
        self.starved: set[Link] = set()
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self.denied: frozenset[Denial] = frozenset()
        self.closes_when_unused = False
        self._specs = planes
        self._engine: Engine | None = None
        self._steering: Steering | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._domains = itertools.count(1)
        self._peers: dict[int, _Peer] = {}  # by the engine's number
        self._guests: Counter[int] = Counter()
        self.probes: dict[int, asyncio.Future[EngineEvent]] = {}
        self._process = os.getpid()

    async def start(self) -> None:
        """Finds the planes and starts the engine. Once is enough; see `Endpoint.start`."""
        self.check_process()
        async with self._starting:
            if self._engine is None:
                await self._start()
            elif self._loop is not asyncio.get_running_loop():
                raise ConcurrencyError("the endpoint belongs to another event loop: make one each")

    async def _start(self) -> None:
        found = await asyncio.to_thread(discover, self._specs, dad_timeout=self.config.dad_timeout)
        self.excluded = found.excluded
        if not found.planes:
            told = "; ".join(f"{name}: {why}" for name, why in found.excluded.items())
            raise ConfigError(f"no interface can be a plane ({told or 'none was named'})")
        steering = await asyncio.to_thread(Steering.of, self.config, found.planes)
        engine = Engine(self.config)
        try:
            for plane in found.planes:
                engine.add_plane(plane.number, plane.interface.name, plane.interface.address)
        except BaseException:
            engine.close()
            raise
        self.local_planes = found.planes
        self._steering = steering
        self._engine = engine
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(engine.fd, self.poll)
        self._tell_of_small_buffers(engine)

    def _tell_of_small_buffers(self, engine: Engine) -> None:
        for kind, wanted, limit in (
            ("receive", self.config.receive_buffer, "rmem_max"),
            ("send", self.config.send_buffer, "wmem_max"),
        ):
            got = min(engine.plane(plane.number)[f"{kind}_buffer"] for plane in self.local_planes)
            if got < wanted:
                _log.warning(
                    "the kernel grants %s buffers of %d bytes, not %d, which costs rate: "
                    "sysctl -w net.core.%s=%d, or give this process CAP_NET_ADMIN",
                    *(kind, got, wanted, limit, wanted),
                )

    def close(self) -> None:
        """Ends the engine, and with it listeners and links. Needs no loop; once is enough."""
        engine, self._engine = self._engine, None
        if engine is None or os.getpid() != self._process:
            return
        for listener in list(self.listeners):
            listener.close_now()
        for link in list(self.links.values()):
            link.end(ConnectionLost("aborted", "the endpoint was closed"))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(engine.fd)
        engine.close()
        self._peers.clear()
        self._guests.clear()
        for ended in self.probes.values():
            ended.cancel()
        self.probes.clear()
        self._starting = asyncio.Lock()  # the next loop's

    def close_when_unused(self) -> None:
        """Closes it with the last of its links: nobody else holds it."""
        self.closes_when_unused = True
        if not self.links:
            self.close()

    @property
    def open(self) -> bool:
        """It was started, by this process, and not closed."""
        return self._engine is not None and os.getpid() == self._process

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            AfterForkError: In a child of fork().
            MRCError: It is not started, or closed.
        """
        self.check_process()
        if self._engine is None:
            raise MRCError("the endpoint is not started, or is closed")
        return self._engine

    def check_process(self) -> None:
        """Raises in a child of fork(), if it was started before."""
        if self._engine is not None and os.getpid() != self._process:
            raise AfterForkError("not usable after fork: open a new endpoint in the child")

    @property
    def steering(self) -> Steering | None:
        """Our ways through the topology; None: packets go out plain."""
        return self._steering

    def path_of(self, addresses: Iterable[Address], ev: int) -> Path | None:
        """The path to the peer that has these addresses, by its EV; None: no topology says."""
        return None if self._steering is None else self._steering.path(addresses, ev)

    # The operator's DENIED.

    def denial(self, what: int | str) -> Denial:
        """Reads what an operator names.

        Raises:
            ConfigError: It is neither an entropy value nor a link or switch of the topology.
        """
        return denial(what, None if self._steering is None else self._steering.topology)

    def deny(self, what: int | str, *, denied: bool) -> None:
        """Denies it to every link, also of later ones, or gives it back.

        Raises:
            ConfigError: As `denial`.
        """
        meant = self.denial(what)
        self.denied = self.denied | {meant} if denied else self.denied - {meant}
        for link in self.links.values():
            link.enforce()

    # What links, set-ups and probers ask for.

    def next_domain(self) -> int:
        """A protection domain that no other connection has."""
        return next(self._domains)

    def plane_name(self, number: int) -> str:
        """Name of a plane's interface."""
        return self.local_planes[number].interface.name

    async def describe(self) -> tuple[RemotePlane, ...]:
        """Our planes as to be told to a peer; those without an address now are left out."""
        planes = []
        for plane in self.local_planes:
            now = self.engine.plane(plane.number)
            interface = plane.interface
            if now["address"] is not None and now["address"] != interface.address:
                interface = (await self._refresh(plane)).interface
            if interface.address is None or now["address"] is None:
                continue
            planes.append(
                RemotePlane(
                    number=plane.number,
                    id=plane.id,
                    name=interface.name,
                    address=interface.address,
                    prefix=interface.prefix,
                    mtu=now["mtu"] or interface.mtu,
                )
            )
        return tuple(planes)

    async def _refresh(self, plane: LocalPlane) -> LocalPlane:
        """Looks a plane's interface up again, for its address has changed."""
        found = await asyncio.to_thread(discover, [plane.interface.name], dad_timeout=0.0)
        if not found.planes:
            return plane
        fresh = LocalPlane(number=plane.number, id=plane.id, interface=found.planes[0].interface)
        planes = list(self.local_planes)
        planes[plane.number] = fresh
        self.local_planes = tuple(planes)
        return fresh

    def add_peer(self, incarnation: int, planes: Sequence[PeerPlane], site: str) -> int:
        """Adds a peer, or finds the one that is there.

        An incarnation is no secret: who says it from another site and names other addresses is
        taken for somebody else, or he could draw to himself what is meant for its owner.

        Args:
            incarnation: What it says it is.
            planes: Those of its planes that are paired with ours.
            site: Where its control connection comes from.

        Raises:
            HandshakeError: It is no host of the topology.
        """
        path = None
        if self._steering is not None:
            path = self._steering.template([plane.address for plane in planes])
        addresses = {plane.number: plane.address for plane in planes}
        keys = {peer.key for peer in self._peers.values()}
        key = secrets.randbits(64) if incarnation in keys else incarnation
        for peer in self._peers.values():
            if peer.is_same(incarnation, site, addresses):
                key = peer.key
        number = self.engine.add_peer(key, planes, path, srh=self.config.srh)
        fresh = _Peer(incarnation=incarnation, key=key, sites=set(), addresses={})
        known = self._peers.setdefault(number, fresh)
        known.sites.add(site)
        known.addresses.update(addresses)
        return number

    def add_link(self, link: Link) -> None:
        """From now on it gets its events."""
        self.links[link.qp] = link

    def forget(self, link: Link) -> None:
        """A link is over: drops what nobody else needs."""
        self.links.pop(link.qp, None)
        self.backlogged.discard(link)
        self.starved.discard(link)
        self.region_is_free()
        if self.closes_when_unused and not self.links:
            self.close()
        elif link.peer >= 0 and self._engine is not None:
            self._remove_peer_later(link.peer)

    def region_is_free(self) -> None:
        """The table of memory regions has room again: who waits for that may try."""
        if self.starved and self._loop is not None and not self._loop.is_closed():
            for link in self.starved:
                self._loop.call_soon(link.grant)
            self.starved.clear()

    def _remove_peer_later(self, number: int) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        # The core knows a peer until the last of its queue pairs has stopped to linger.
        self._loop.call_later(self.config.linger + 0.1, self._remove_peer, number)

    def add_guest(self, incarnation: int, planes: Sequence[PeerPlane], site: str) -> int:
        """As `add_peer`, of one that stays without a link until `leave`."""
        number = self.add_peer(incarnation, planes, site)
        self._guests[number] += 1
        return number

    def follow(self, hops: Mapping[int, Address]) -> int:
        """Follows next hops, by plane, as those of a guest to which nothing is sent.

        Returns:
            Its number, for probes by these hops; until `leave`.
        """
        number = self.engine.follow(hops)
        self._peers[number] = _Peer(incarnation=0, key=0, sites=set(), addresses={})
        self._guests[number] += 1
        return number

    def leave(self, number: int) -> None:
        """A guest is none any more."""
        self._guests[number] -= 1
        if not self._guests[number] and self.open:
            self._remove_peer_later(number)

    def _remove_peer(self, number: int) -> None:
        in_use = self._guests[number] or any(link.peer == number for link in self.links.values())
        if in_use or number not in self._peers or not self.open:
            return
        if self.engine.remove_peer(number):
            del self._peers[number]
        else:
            self._remove_peer_later(number)

    def meet(self, setup: Any) -> None:
        """A set-up came: whoever had this peer's addresses before may have been restarted."""
        addresses = {plane.address for plane in setup.planes}
        for link in list(self.links.values()):
            known = {plane.local.address for plane in link.planes}
            if link.peer_incarnation != setup.incarnation and known & addresses:
                link.suspect("peer restarted")

    # What the engine tells.

    def poll(self) -> None:
        """Hands out what the engine has."""
        engine = self._engine
        if engine is None or engine.closed:
            return
        for _ in range(_BATCHES):
            count = engine.poll(self._on_write, self._on_receive, self._on_event)
            if count < 64 or engine.closed:
                break
        # After the tasks that these events have woken: what they post leaves with the answers.
        asyncio.get_running_loop().call_soon(engine.flush)
        if self.backlogged and not engine.closed:
            self.backlogged = {link for link in self.backlogged if not link.flush_backlog()}

    def _on_write(self, qp: int, tag: int, status: int) -> None:
        link = self.links.get(qp)
        if link is not None:
            link.on_write(tag, status)

    def _on_receive(self, qp: int, immediate: int) -> None:
        link = self.links.get(qp)
        if link is not None:
            link.on_receive(immediate)

    def _on_event(self, event: EngineEvent) -> None:
        if event.type == _native.EVENT_PLANE:
            for link in list(self.links.values()):
                if link.peer == event.peer:
                    link.on_event(event)
        elif event.type == _native.EVENT_PROBE:
            ended = self.probes.pop(event.tag)
            if not ended.done():
                ended.set_result(event)
        elif event.qp in self.links:
            self.links[event.qp].on_event(event)
