# SPDX-License-Identifier: Apache-2.0
"""Listener: takes connections in."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final

from mrc import establish, unclosed
from mrc.config import Config
from mrc.connection import Connection
from mrc.control import DEFAULT_PORT, Control, bind, parse_target
from mrc.endpoint import Endpoint, endpoint_for
from mrc.errors import ConfigError, ConnectionClosedOK, ConnectionLost
from mrc.handshake import Kind
from mrc.link import Link
from mrc.places import Places

__all__ = ["Listener", "listen"]

CALLERS: Final = 4
"""Control connections for each place of the backlog, said HELLO or not."""

VISITORS: Final = 16
"""Those that only probe paths: they may stay, and must leave room for connections."""


class Listener:
    """Waits for peers: an async context manager, and an async iterator of connections.

    Made by `listen`. All its methods belong to the loop that started it.

    Attributes:
        port: TCP port of the control connections; once it is started the one that the system
            chose, if 0 was asked for.
    """

    def __init__(
        self, host: str | None, port: int, endpoint: Endpoint, *, backlog: int, owns: bool
    ) -> None:
        self.port = port
        self._host = host
        self._endpoint = endpoint
        self._owns = owns
        self._backlog = backlog
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        # A connector may try several addresses at once, and say HELLO on one of them.
        self._callers = Places(CALLERS * backlog)
        self._setups = Places(backlog)
        self._visitors = Places(VISITORS)
        self._ready: asyncio.Queue[Link | None] = asyncio.Queue()
        self._open = self._closed = False
        self._starting = asyncio.Lock()
        self._made = unclosed.here()
        self._process = os.getpid()

    def __repr__(self) -> str:
        where = f"{self._host or 'all addresses'} port {self.port}"
        return f"<mrc.Listener on {where}, {'open' if self._open else 'not listening'}>"

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that its connections share."""
        return self._endpoint

    async def start(self) -> None:
        """Listens from now on. Once is enough; `async with` does it. Cancelling leaves nothing.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: An interface of `planes` does not exist, or nothing can be a plane.
            HandshakeError: The name of the host has no address.
            ConcurrencyError: The endpoint belongs to another event loop.
            ConnectionClosedOK: The listener was closed.
            AfterForkError: In a child of fork(), if the endpoint was started before.
            OSError: The port is taken, or the address is not ours.
        """
        self._endpoint._hub.check_process()
        async with self._starting:
            if self._open:
                return
            if self._closed:
                raise ConnectionClosedOK("the listener is closed")
            try:
                await self._start()
            except BaseException:
                self._stop()
                if self._owns:
                    self._endpoint._hub.close()
                raise
            self._open = True
            self._process = os.getpid()
            self._endpoint._hub.listeners.add(self)

    async def _start(self) -> None:
        await self._endpoint.start()
        self._sockets = await bind(self._host, self.port, self._backlog)
        self.port = self._sockets[0].getsockname()[1]
        # Weakly, or a listener that is forgotten would be kept by its own servers.
        on_client = partial(_on_client, weakref.ref(self))
        for sock in self._sockets:
            server = await asyncio.start_server(on_client, sock=sock, backlog=self._backlog)
            self._servers.append(server)

    def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()
        self._sockets.clear()

    async def __aenter__(self) -> Listener:
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
        if getattr(self, "_open", False) and os.getpid() == self._process:
            unclosed.warn(self, self._made)
            self.close_now()

    async def _on_client(self, control: Control) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._open or not self._callers.take(task, control):
            control.refuse_busy()
            return

        def admit(kind: Kind) -> bool:
            if kind == Kind.VISIT:
                return self._visitors.take(task, control)
            return self._setups.take(task, control, waiting=self._ready.qsize())

        try:
            link = await establish.accept(self._endpoint._hub, control, admit)
        except BaseException:
            control.close()
            raise
        finally:
            self._setups.leave(task)
            self._visitors.leave(task)
            self._callers.leave(task)
        if link is not None:
            if self._open:
                self._ready.put_nowait(link)
            else:
                link.end(ConnectionLost("aborted", "the listener was closed"))

    async def accept(self) -> Connection:
        """The next connection. Cancelling loses none.

        Any number of tasks may wait. Starts the listener if it is not, with the errors of that.

        Raises:
            AfterForkError: In a child of fork().
            ConnectionClosedOK: The listener is closed.
        """
        made = unclosed.here()
        await self.start()
        while True:
            link = await self._ready.get()
            if link is None:
                self._ready.put_nowait(None)
                raise ConnectionClosedOK("the listener is closed")
            if link.error is None or link.messages.head is not None:
                return Connection(link, self._endpoint, made)

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            try:
                yield await self.accept()
            except ConnectionClosedOK:
                return

    async def close(self) -> None:
        """Listens no more. Once is enough. Accepted connections live on.

        Those that wait for `accept` are aborted. An endpoint that the listener made for itself
        goes with the last of its connections.
        """
        self.close_now()

    def close_now(self) -> None:
        """The same, for who cannot await."""
        self._closed = True
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        self._endpoint._hub.listeners.discard(self)
        self._stop()
        self._callers.cancel_all()
        while not self._ready.empty():
            link = self._ready.get_nowait()
            if link is not None:
                link.end(ConnectionLost("aborted", "the listener was closed"))
        self._ready.put_nowait(None)
        if self._owns:
            self._endpoint._hub.close_when_unused()


async def _on_client(
    reference: weakref.ref[Listener], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    control, listener = Control(reader, writer), reference()
    if listener is None:
        control.close()
    else:
        await listener._on_client(control)


def listen(
    host: str | None = None,
    port: int = DEFAULT_PORT,
    *,
    planes: Sequence[str] | None = None,
    config: Config | None = None,
    endpoint: Endpoint | None = None,
    backlog: int = 64,
) -> Listener:
    """Listens for connections: `async with mrc.listen() as listener`.

        async with mrc.listen() as listener:
            async for connection in listener:
                ...

    Args:
        host: Address or name for the control connections, or a whole `mrc://host:port`; None: all
            addresses of this machine.
        port: TCP port for them, 0..65535; 0: any that is free.
        planes: Interfaces to carry data, each as `[ID=]INTERFACE[/ADDRESS]`; None: all that can.
            ID is what both hosts call the plane, where subnets do not tell.
        config: Settings of the endpoint; None: the defaults.
        endpoint: To share; then neither `planes` nor `config` may be given.
        backlog: Connections that may wait for `accept`, 1 or more; others are refused as busy,
            which is a HandshakeError at their `connect`.

    Raises:
        ConfigError: At once: `host`, `port` or `backlog` is not what it should be.
        TypeError, ValueError: At once: an argument is of another type, or contradicts another.
        MRCError, OSError: When it is started: see `Listener.start`.
    """
    made = endpoint_for(planes, config, endpoint)
    _check_range("port", port, 0, 65535)
    _check_range("backlog", backlog, 1, 65535)
    if host is not None:
        host, port = parse_target(host, port)
    return Listener(host, port, made, backlog=backlog, owns=endpoint is None)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r} is not an integer of {low}..{high}")
