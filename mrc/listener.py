# SPDX-License-Identifier: Apache-2.0
"""Listener: takes connections in."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from mrc import establish, handshake
from mrc.config import Config
from mrc.connection import Connection
from mrc.control import DEFAULT_PORT, Control, bind, parse_target
from mrc.endpoint import Endpoint
from mrc.errors import ConnectionClosedOK, ConnectionLost
from mrc.handshake import Kind
from mrc.link import Link

__all__ = ["Listener", "listen"]


class Listener:
    """Waits for peers: an async context manager, and an async iterator of connections.

    Attributes:
        port: Of the control connections; the one that the system chose, if 0 was asked for.
    """

    def __init__(
        self, host: str | None, port: int, endpoint: Endpoint, *, backlog: int, owns: bool
    ) -> None:
        self.port = port
        self._host = host
        self._endpoint = endpoint
        self._owns = owns
        self._backlog = backlog
        self._servers: list[asyncio.Server] = []
        self._setups: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Queue[Link | None] = asyncio.Queue()
        self._open = False
        self._process = os.getpid()

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that its connections share."""
        return self._endpoint

    async def start(self) -> None:
        """Listens from now on. Once is enough; `async with` does it.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: Nothing can be a plane.
            OSError: The port is taken, or the address is not ours.
        """
        if self._open:
            return
        await self._endpoint.start()
        sockets: list[socket.socket] = []
        try:
            sockets = await bind(self._host, self.port, self._backlog)
            self.port = sockets[0].getsockname()[1]
            for sock in sockets:
                server = await asyncio.start_server(
                    self._on_client, sock=sock, backlog=self._backlog
                )
                self._servers.append(server)
        except BaseException:
            for sock in sockets:
                sock.close()
            if self._owns:
                self._endpoint.close_now()
            raise
        self._open = True
        self._endpoint.listeners.add(self)

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
            warnings.warn(f"listener {self!r} was not closed", ResourceWarning, stacklevel=1)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        control = Control(reader, writer)
        if len(self._setups) + self._ready.qsize() >= self._backlog or not self._open:
            body = {"code": "busy", "text": "too many connections wait to be accepted"}
            control.write(handshake.encode(Kind.REFUSE, body))
            control.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._setups.add(task)
        try:
            link = await establish.accept(self._endpoint, control)
        except BaseException:
            control.close()
            raise
        finally:
            self._setups.discard(task)
        if link is not None:
            if self._open:
                self._ready.put_nowait(link)
            else:
                link.end(ConnectionLost("aborted", "the listener was closed"))

    async def accept(self) -> Connection:
        """The next connection.

        Raises:
            ConnectionClosedOK: The listener is closed.
        """
        await self.start()
        while True:
            link = await self._ready.get()
            if link is None:
                self._ready.put_nowait(None)
                raise ConnectionClosedOK("the listener is closed")
            if link.error is None or link.messages.head is not None:
                return Connection(link)

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            try:
                yield await self.accept()
            except ConnectionClosedOK:
                return

    async def close(self) -> None:
        """Listens no more. Accepted connections live on.

        An endpoint that the listener made for itself goes with the last of them.
        """
        self.close_now()

    def close_now(self) -> None:
        """The same, without a loop."""
        if not self._open:
            return
        self._open = False
        self._endpoint.listeners.discard(self)
        for server in self._servers:
            server.close()
        for task in self._setups:
            task.cancel()
        while not self._ready.empty():
            link = self._ready.get_nowait()
            if link is not None:
                link.end(ConnectionLost("aborted", "the listener was closed"))
        self._ready.put_nowait(None)
        if self._owns:
            self._endpoint.close_when_unused()


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

    Args:
        host: Address or name for the control connections, or a whole `mrc://host:port`; None: all
            addresses of this machine.
        port: TCP port for them; 0: any that is free.
        planes: Interfaces to carry data, `[ID=]INTERFACE[/ADDRESS]`; None: all that can.
        config: Settings of the endpoint.
        endpoint: To share; then neither `planes` nor `config` may be given.
        backlog: Connections that may wait for `accept`; more are refused as busy.
    """
    if endpoint is not None and (planes is not None or config is not None):
        raise ValueError("planes and config are the endpoint's: give them to Endpoint()")
    if host is not None:
        host, port = parse_target(host, port)
    owns = endpoint is None
    return Listener(host, port, endpoint or Endpoint(planes, config), backlog=backlog, owns=owns)
