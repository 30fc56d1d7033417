# SPDX-License-Identifier: Apache-2.0
"""Endpoint: one engine on an event loop, with its planes, peers and connections.

The engine's eventfd wakes the loop; events are handed to the links they belong to. Works on any
loop that has `add_reader`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mrc._native import Engine, EngineEvent, PeerPlane
from mrc.config import Config
from mrc.errors import AfterForkError, ConfigError, ConnectionLost, MRCError
from mrc.events import PlaneInfo
from mrc.planes import LocalPlane, RemotePlane, discover

if TYPE_CHECKING:
    from mrc.connection import Connecting
    from mrc.link import Link
    from mrc.listener import Listener

__all__ = ["Endpoint"]

_log = logging.getLogger("mrc")

_BATCHES: Final = 16
"""Polls of 64 events before other callbacks of the loop have their turn."""


class Endpoint:
    """An engine with its planes, shared by any number of connections and listeners.

    An async context manager; all its methods belong to the loop that started it.

    Attributes:
        config: Its settings.
        excluded: Interfaces that are no planes, and why.
    """

    def __init__(self, planes: Sequence[str] | None = None, config: Config | None = None) -> None:
        """Notes what `start` will do.

        Args:
            planes: Interfaces, each as `[ID=]INTERFACE[/ADDRESS]`; None: all that can be one.
            config: Settings; None: the defaults.
        """
        if isinstance(planes, str):
            raise TypeError("planes is a sequence of interface names, not one name")
        self.config = config or Config()
        self.excluded: dict[str, str] = {}
        self.local_planes: tuple[LocalPlane, ...] = ()
        self.links: dict[int, Link] = {}
        self.backlogged: set[Link] = set()
        self.listeners: set[Listener] = set()
        self._specs = planes
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._domains = itertools.count(1)
        self._peers: dict[int, int] = {}  # incarnation -> the engine's number
        self._process = os.getpid()
        self._closes_when_unused = False

    async def start(self) -> None:
        """Finds the planes and starts the engine. Once is enough.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: A named interface does not exist, or nothing can be a plane.
            OSError: The system refused something else.
        """
        if self._engine is not None:
            return
        found = await asyncio.to_thread(discover, self._specs, dad_timeout=self.config.dad_timeout)
        self.excluded = found.excluded
        if not found.planes:
            told = "; ".join(f"{name}: {why}" for name, why in found.excluded.items())
            raise ConfigError(f"no interface can be a plane ({told or 'there is none'})")
        self.local_planes = found.planes
        engine = Engine(self.config)
        try:
            for plane in found.planes:
                engine.add_plane(plane.number, plane.interface.name, plane.interface.address)
        except BaseException:
            engine.close()
            raise
        self._engine = engine
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(engine.fd, _on_readable, weakref.ref(self))

    async def __aenter__(self) -> Endpoint:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        engine = self._engine if hasattr(self, "_engine") else None
        if engine is not None and os.getpid() == self._process:
            self.close_now()
            warnings.warn(f"endpoint {self!r} was not closed", ResourceWarning, stacklevel=1)

    async def close(self) -> None:
        """Ends the engine. Listeners are closed, connections that are still open are aborted."""
        self.close_now()

    def close_now(self) -> None:
        """The same, without a loop."""
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

    def close_when_unused(self) -> None:
        """Closes it with the last of its connections: nobody else holds it."""
        self._closes_when_unused = True
        if not self.links:
            self.close_now()

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            AfterForkError: In a child of fork().
            MRCError: It is not started, or closed.
        """
        if self._engine is None:
            raise MRCError("the endpoint is not started, or is closed")
        if os.getpid() != self._process:
            raise AfterForkError("not usable after fork: open a new endpoint in the child")
        return self._engine

    # What the application asks for.

    def connect(self, target: str | Sequence[str], *, timeout: float = 10.0) -> Connecting:
        """As `mrc.connect`, on this endpoint."""
        from mrc.connection import connect  # noqa: PLC0415 - connections know endpoints

        return connect(target, timeout=timeout, endpoint=self)

    def listen(self, host: str | None = None, port: int = 4791, *, backlog: int = 64) -> Listener:
        """As `mrc.listen`, on this endpoint."""
        from mrc.listener import listen  # noqa: PLC0415 - listeners know endpoints

        return listen(host, port, endpoint=self, backlog=backlog)

    def planes(self) -> tuple[PlaneInfo, ...]:
        """Every plane as it is now."""
        return tuple(self._plane_info(plane) for plane in self.local_planes)

    def _plane_info(self, plane: LocalPlane) -> PlaneInfo:
        now = self.engine.plane(plane.number)
        return PlaneInfo(
            name=plane.interface.name,
            id=plane.id,
            address=str(now["address"] or ""),
            mtu=now["mtu"],
            up=bool(now["up"]),
            enabled=bool(now["enabled"]),
            bursts=bool(now["vnet_header"]) and self.config.burst > 1,
            receive_buffer=now["receive_buffer"],
            kernel_drops=now["kernel_drops"],
            send_errors=now["send_errors"],
        )

    def counters(self) -> dict[str, int]:
        """Totals since the start, and everything dropped or refused, by reason."""
        return self.engine.counters()

    def disable_plane(self, name: str) -> None:
        """Takes a plane out of use for data, on every connection.

        Raises:
            ValueError: There is no such plane.
        """
        self.engine.enable_plane(self._number(name), enabled=False)

    def enable_plane(self, name: str) -> None:
        """Gives it back.

        Raises:
            ValueError: There is no such plane.
        """
        self.engine.enable_plane(self._number(name), enabled=True)

    def _number(self, name: str) -> int:
        for plane in self.local_planes:
            if name in {plane.interface.name, plane.id}:
                return plane.number
        names = ", ".join(plane.interface.name for plane in self.local_planes)
        raise ValueError(f"there is no plane {name}; there are {names}")

    # What links ask for.

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

    def add_peer(self, incarnation: int, planes: Sequence[PeerPlane]) -> int:
        """Adds a peer, or finds the one that is there."""
        number = self.engine.add_peer(incarnation, planes)
        self._peers[incarnation] = number
        return number

    def add_link(self, link: Link) -> None:
        """From now on it gets its events."""
        self.links[link.qp] = link

    def forget(self, link: Link) -> None:
        """A link is over: drops what nobody else needs."""
        self.links.pop(link.qp, None)
        self.backlogged.discard(link)
        if self._closes_when_unused and not self.links:
            self.close_now()
        elif link.peer >= 0 and self._engine is not None:
            self._remove_peer_later(link.peer_incarnation)

    def _remove_peer_later(self, incarnation: int) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        # The core knows a peer until the last of its queue pairs has stopped to linger.
        self._loop.call_later(
            self.config.linger + 0.1, _remove_peer, weakref.ref(self), incarnation
        )

    def _remove_peer(self, incarnation: int) -> None:
        in_use = any(link.peer_incarnation == incarnation for link in self.links.values())
        number = self._peers.get(incarnation)
        if in_use or number is None or self._engine is None:
            return
        if self._engine.remove_peer(number):
            del self._peers[incarnation]
        else:
            self._remove_peer_later(incarnation)

    def meet(self, setup: Any) -> None:
        """A set-up came: whoever had this peer's addresses before may have been restarted."""
        addresses = {plane.address for plane in setup.planes}
        for link in list(self.links.values()):
            known = {plane.local.address for plane in link.planes}
            if link.peer_incarnation != setup.incarnation and known & addresses:
                link.suspect("peer restarted")

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
        if event.type == _PLANE:
            for link in list(self.links.values()):
                if link.peer == event.peer:
                    link.on_event(event)
        elif (link := self.links.get(event.qp)) is not None:  # type: ignore[assignment]
            link.on_event(event)


_PLANE: Final = 4


def _on_readable(reference: weakref.ref[Endpoint]) -> None:
    endpoint = reference()
    if endpoint is not None:
        endpoint.poll()


def _remove_peer(reference: weakref.ref[Endpoint], incarnation: int) -> None:
    endpoint = reference()
    if endpoint is not None:
        endpoint._remove_peer(incarnation)
