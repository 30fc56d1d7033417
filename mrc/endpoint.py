# SPDX-License-Identifier: Apache-2.0
"""Endpoint: planes and an engine that connections and listeners share; a handle of a `Hub`."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mrc import prober, unclosed
from mrc.config import Config
from mrc.control import DEFAULT_PORT, parse_targets
from mrc.errors import ConfigError
from mrc.events import PlaneInfo
from mrc.hub import Hub
from mrc.planes import LocalPlane
from mrc.prober import Prober, Tracer

if TYPE_CHECKING:
    from mrc.connection import Connecting
    from mrc.listener import Listener

__all__ = ["Endpoint", "endpoint_for"]


class Endpoint:
    """An engine with its planes, shared by any number of connections and listeners.

        async with mrc.Endpoint(["eth1", "eth2"]) as endpoint:
            one = await endpoint.connect("a.example")
            two = await endpoint.connect("b.example")

    An async context manager. All its methods belong to the loop that started it. `mrc.connect` and
    `mrc.listen` make one for themselves unless they are given one.
    """

    def __init__(self, planes: Sequence[str] | None = None, config: Config | None = None) -> None:
        """Notes what `start` will do.

        Args:
            planes: Interfaces to carry data, each as `[ID=]INTERFACE[/ADDRESS]`; None: all that
                can. ID is what both hosts call the plane, where subnets do not tell.
            config: Settings; None: the defaults.

        Raises:
            TypeError: An argument is something else.
        """
        if isinstance(planes, str | bytes):
            raise TypeError(f"planes is a list of interfaces, as [{planes!r}], not one name")
        if not isinstance(config, Config | None):
            raise TypeError(f"config is a mrc.Config, not {config!r}")
        self._hub = Hub(planes, config)
        self._made = unclosed.here()

    def __repr__(self) -> str:
        if not self._hub.open:
            return "<mrc.Endpoint, not running>"
        planes = ", ".join(plane.interface.name for plane in self._hub.local_planes)
        return f"<mrc.Endpoint on {planes}, {len(self._hub.links)} connections>"

    @property
    def config(self) -> Config:
        """Its settings."""
        return self._hub.config

    @property
    def excluded(self) -> dict[str, str]:
        """Interfaces that are no planes, and why: a copy; empty until it is started."""
        return dict(self._hub.excluded)

    async def start(self) -> None:
        """Finds the planes and starts the engine. Once is enough; `async with` does it.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: A named interface does not exist, or nothing can be a plane.
            ConcurrencyError: It was started on another event loop.
            AfterForkError: It was started by the parent of this child of fork().
            OSError: The system refused something else.
        """
        await self._hub.start()

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
        hub = getattr(self, "_hub", None)
        if hub is None or not hub.open:
            return
        if not hub.closes_when_unused:
            unclosed.warn(self, self._made)
        hub.close()

    async def close(self) -> None:
        """Ends the engine. Listeners are closed, connections that are still open are aborted.

        Once is enough. It can be started again.
        """
        self._hub.close()

    def connect(self, target: str | Sequence[str], *, timeout: float = 10.0) -> Connecting:
        """As `mrc.connect`, on this endpoint, which is started if it is not."""
        from mrc.connection import connect  # noqa: PLC0415 - connections know endpoints

        return connect(target, timeout=timeout, endpoint=self)

    def listen(
        self, host: str | None = None, port: int = DEFAULT_PORT, *, backlog: int = 64
    ) -> Listener:
        """As `mrc.listen`, on this endpoint, which is started if it is not."""
        from mrc.listener import listen  # noqa: PLC0415 - listeners know endpoints

        return listen(host, port, endpoint=self, backlog=backlog)

    async def visit(
        self,
        target: str | Sequence[str],
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - what was not reached in time is told
    ) -> Prober:
        """Makes us and a listener known to each other, so that its paths can be probed.

        No connection comes of it: the listener's program notices nothing. At most 16 visitors are
        taken at a time. The endpoint is started if it is not.

        Args:
            target: As of `mrc.connect`.
            timeout: Seconds that it may take.

        Raises:
            ConfigError: `target` is none.
            ConnectTimeout: Nobody answered in time.
            ConnectRefused: Nobody listens.
            HandshakeError: They answered, but cannot be talked to, or have no plane in common.
            MRCError, OSError: As `start`.
        """
        from mrc import establish  # noqa: PLC0415 - set-ups know hubs

        targets = parse_targets(target)
        await self.start()
        return await establish.visit(self._hub, targets, timeout=timeout)

    async def trace(self, host: str) -> Tracer:
        """Prepares round trips through the switches on the way to a host, which is not told.

        For endpoints with a topology. The endpoint is started if it is not.

        Args:
            host: Its name in the topology, or an address of it.

        Raises:
            ConfigError: Without a topology, or it has no such host.
            MRCError, OSError: As `start`.
        """
        await self.start()
        return await prober.trace(self._hub, host)

    def planes(self) -> tuple[PlaneInfo, ...]:
        """Every plane as it is now, in the order of their numbers.

        Raises:
            AfterForkError: In a child of fork().
            MRCError: It is not started, or closed; also by the methods below.
        """
        engine = self._hub.engine
        return tuple(
            _plane_info(plane, engine.plane(plane.number), bursts=self.config.burst > 1)
            for plane in self._hub.local_planes
        )

    def counters(self) -> dict[str, int]:
        """Totals since the start, and everything dropped or refused, by reason."""
        return self._hub.engine.counters()

    def disable_plane(self, name: str) -> None:
        """Takes a plane out of use for data, on every connection.

        Args:
            name: Of its interface, or the ID by which it was named.

        Raises:
            ConfigError: There is no such plane.
        """
        self._hub.engine.enable_plane(self._number(name), enabled=False)

    def enable_plane(self, name: str) -> None:
        """Gives it back.

        Raises:
            ConfigError: There is no such plane.
        """
        self._hub.engine.enable_plane(self._number(name), enabled=True)

    def deny(self, what: int | str) -> None:
        """Keeps data off some paths, on every connection of now and later (MRC 1.0: DENIED).

        Acknowledgements and probes go on to use them. Data that is left no path waits.

        Args:
            what: An entropy value, for the path that it names; or of the topology a switch
                ("t1a") or a link ("t0a-t1a"), in all planes or in one ("t1a@1").

        Raises:
            ConfigError: There is no such thing.
        """
        self._hub.deny(what, denied=True)

    def allow(self, what: int | str) -> None:
        """Takes a `deny` of the same back; of what is not denied, nothing.

        Raises:
            ConfigError: There is no such thing.
        """
        self._hub.deny(what, denied=False)

    def _number(self, name: str) -> int:
        planes = self._hub.local_planes
        for plane in planes:
            if name and name in {plane.interface.name, plane.id}:
                return plane.number
        names = ", ".join(plane.interface.name for plane in planes)
        raise ConfigError(f"there is no plane {name}; there are {names}")


def _plane_info(plane: LocalPlane, now: Mapping[str, Any], *, bursts: bool) -> PlaneInfo:
    return PlaneInfo(
        name=plane.interface.name,
        id=plane.id,
        address=str(now["address"] or ""),
        mtu=now["mtu"],
        up=bool(now["up"]),
        enabled=bool(now["enabled"]),
        bursts=bool(now["vnet_header"]) and bursts,
        receive_buffer=now["receive_buffer"],
        send_buffer=now["send_buffer"],
        kernel_drops=now["kernel_drops"],
        send_errors=now["send_errors"],
        send_error=errno.errorcode.get(now["send_errno"], ""),
    )


def endpoint_for(
    planes: Sequence[str] | None, config: Config | None, endpoint: Endpoint | None
) -> Endpoint:
    """The endpoint that `connect` or `listen` was given, or one of its own.

    Raises:
        TypeError: An argument is something else.
        ValueError: Both kinds were given.
    """
    if endpoint is None:
        return Endpoint(planes, config)
    if planes is not None or config is not None:
        raise ValueError("planes and config are the endpoint's: give them to mrc.Endpoint()")
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"endpoint is a mrc.Endpoint, not {endpoint!r}")
    return endpoint
