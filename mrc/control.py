# SPDX-License-Identifier: Apache-2.0
"""The control connection: TCP that carries the set-up exchange, and later the word that ends it.

`dial` tries every address of the peer by every plane, a new one each 100 ms while none answers
(as RFC 8305 does). What a frame holds is the business of handshake.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import re
import socket
from collections.abc import Sequence
from typing import Any, Final

from mrc import handshake
from mrc.errors import ConfigError, ConnectRefused, ConnectTimeout, HandshakeError, ProtocolError
from mrc.handshake import Kind
from mrc.planes import Interface

__all__ = ["DEFAULT_PORT", "Control", "bind", "dial", "parse_target", "parse_targets"]

DEFAULT_PORT: Final = 4791
STAGGER: Final = 0.1
"""Seconds before the next address is tried beside those that have not answered."""
RETRY: Final = 0.5
"""Seconds without an answer after which an address is tried from another port too [choice]."""
ATTEMPTS: Final = 16
"""Ports that one address is tried from [choice]."""

_HOST: Final = re.compile(r"[^\s/?#@\[\]]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def parse_target(target: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Reads `host`, `host:port`, `[v6]:port`, a bare IPv6 address, or the same behind `mrc://`.

    Raises:
        ConfigError: It is none.
        TypeError: It is no string.
    """
    if not isinstance(target, str):
        raise TypeError(f"a host is named by a string, not by {target!r}")
    if not target:
        raise ConfigError("the host is '': name one, as b.example or [fd00::1]:4791")
    text = target.removeprefix("mrc://").removesuffix("/")
    host, port = text, str(default_port)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{target!r} is not [ADDRESS]:PORT")
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, port = text.split(":")
    elif ":" in text and not _is_ipv6(text):
        raise ConfigError(f"{target!r} is no IPv6 address{_bracket_hint(text)}")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{target!r} is not HOST, HOST:PORT or [ADDRESS]:PORT, ports 0..65535")
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).version == 6
    except ValueError:
        return False


def _bracket_hint(text: str) -> str:
    """What was probably meant by something with colons that is no address."""
    address, _, port = text.rpartition(":")
    return f"; with a port it is [{address}]:{port}" if _is_ipv6(address) else ""


def parse_targets(targets: str | Sequence[str]) -> list[tuple[str, int]]:
    """Reads one or several names of a peer to connect to.

    Raises:
        ConfigError: There is none, or one is no such name.
        TypeError: They are no strings.
    """
    names = [targets] if isinstance(targets, str) else list(targets)
    if not names:
        raise ConfigError("there is no host to connect to: name one, as b.example")
    parsed = [parse_target(name) for name in names]
    for name, (_, port) in zip(names, parsed, strict=True):
        if not port:
            raise ConfigError(f"{name!r}: nobody listens at port 0")
    return parsed


class Control:
    """One control connection. Closing it without a word tells the peer that we crashed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.ended = False

    @property
    def peer(self) -> str:
        """The peer's address, for messages."""
        name = self._writer.get_extra_info("peername")
        if not name:
            return "one that has gone already"
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    @property
    def site(self) -> str:
        """The peer's address as far as one owner surely has it: of IPv6 the /64."""
        name = self._writer.get_extra_info("peername")
        if not name:
            return ""
        address = ipaddress.ip_address(name[0].partition("%")[0])
        if address.version == 4:
            return str(address)
        return str(ipaddress.ip_network((address, 64), strict=False))

    async def read(self) -> tuple[Kind, bytes]:
        """The next frame.

        Raises:
            ProtocolError: It is none.
            EOFError: The peer ended the connection, with or without a reset.
        """
        try:
            header = await self._reader.readexactly(handshake.HEADER_SIZE)
            kind, size = handshake.decode_header(header)
            return kind, await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            if error.partial and not error.partial.startswith(handshake.MAGIC):
                handshake.decode_header(error.partial)
            raise EOFError("the control connection ended") from None
        except ConnectionError:
            raise EOFError("the control connection was reset") from None

    def write(self, frame: bytes) -> None:
        """Sends a frame; nothing happens when the connection has ended."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    def refuse_busy(self) -> None:
        """Tells a connector that others come first, and ends it."""
        body = {"code": "busy", "text": "too many connections wait to be accepted"}
        self.write(handshake.encode(Kind.REFUSE, body))
        self.close()

    def close(self, word: Kind | None = None, reason: str = "aborted") -> None:
        """Ends it, after a last word; an ABORT says why."""
        if self.ended:
            return
        self.ended = True
        if word is not None:
            body = {"reason": reason} if word == Kind.ABORT else None
            self.write(handshake.encode(word, body))
        self._writer.close()


def _open_socket(family: int, device: Interface | None) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if device is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.name.encode())
    except OSError:
        sock.close()
        raise
    return sock


Candidate = tuple[int, tuple[Any, ...], Interface | None]


async def _resolve(targets: Sequence[tuple[str, int]]) -> list[tuple[int, tuple[Any, ...]]]:
    loop = asyncio.get_running_loop()
    found: dict[tuple[Any, ...], int] = {}
    problem = ""
    for host, port in targets:
        try:
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            problem = f"cannot resolve {host}: {error.strerror or error}"
            continue
        except ValueError:  # too long, or an empty part, or a NUL
            problem = f"cannot resolve {host}: it is no host name"
            continue
        found.update((info[4], info[0]) for info in infos)
    if not found:
        raise HandshakeError(problem)
    return [(family, address) for address, family in found.items()]


def _candidates(
    addresses: list[tuple[int, tuple[Any, ...]]], interfaces: Sequence[Interface]
) -> list[Candidate]:
    """Every address as the kernel routes it, then every address by every plane."""
    candidates: list[Candidate] = []
    for device, (family, address) in itertools.product((None, *interfaces), addresses):
        parsed = ipaddress.ip_address(address[0].partition("%")[0])
        scoped = family == socket.AF_INET6 and parsed.is_link_local
        if scoped and not address[3]:
            if device is None:
                continue  # of which link? the planes below know
            address = (*address[:3], device.index)  # noqa: PLW2901
        elif device is not None and (parsed.is_loopback or (scoped and address[3] != device.index)):
            continue
        candidates.append((family, address, device))
    return candidates


async def _attempt(candidate: Candidate) -> socket.socket:
    family, address, device = candidate
    sock = _open_socket(family, device)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _drop(tasks: set[asyncio.Task[socket.socket]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, socket.socket):
            result.close()


async def _insist(candidate: Candidate) -> socket.socket:
    """Connects, from one port after another while nothing is heard.

    A SYN that is repeated takes the way of the first one where switches hash ports: if a switch on
    it is silently dead, only another port gets round it.
    """
    tasks: set[asyncio.Task[socket.socket]] = set()
    try:
        while True:
            if len(tasks) < ATTEMPTS:
                tasks.add(asyncio.ensure_future(_attempt(candidate)))
            done, tasks = await asyncio.wait(
                tasks,
                timeout=RETRY if len(tasks) < ATTEMPTS else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                first = done.pop()
                tasks |= done
                return first.result()
    finally:
        await _drop(tasks)


async def _race(candidates: list[Candidate], problems: list[OSError]) -> socket.socket | None:
    """The first that connects; None: `problems` says why each did not."""
    waiting = iter(candidates)
    tasks: set[asyncio.Task[socket.socket]] = set()
    more = True
    try:
        while more or tasks:
            candidate = next(waiting, None)
            more = candidate is not None
            if candidate is not None:
                tasks.add(asyncio.ensure_future(_insist(candidate)))
            done, tasks = (
                await asyncio.wait(
                    tasks,
                    timeout=STAGGER if more else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if tasks
                else (set(), tasks)
            )
            for task in done:
                problem = task.exception()
                if problem is None:
                    done.discard(task)
                    tasks |= done
                    return task.result()
                if not isinstance(problem, OSError):
                    raise problem
                problems.append(problem)
        return None
    finally:
        await _drop(tasks)


def _where(
    targets: Sequence[tuple[str, int]], addresses: Sequence[tuple[int, tuple[Any, ...]]]
) -> str:
    """The targets, and what their names have resolved to: it may be another host than was meant."""
    named = ", ".join(f"{host} port {port}" for host, port in targets)
    hosts = {host for host, _ in targets}
    found = dict.fromkeys(address[0] for _, address in addresses if address[0] not in hosts)
    return f"{named} ({', '.join(found)})" if found else named


async def dial(targets: Sequence[tuple[str, int]], interfaces: Sequence[Interface]) -> Control:
    """Connects to whichever address of `targets` answers first, by whichever plane.

    Waits as long as the kernel does; put a time limit around it.

    Raises:
        ConnectRefused: Nobody listens there.
        ConnectTimeout: The kernel gave up.
        HandshakeError: No such host, or no way to it.
    """
    addresses = await _resolve(targets)
    where = _where(targets, addresses)
    candidates = _candidates(addresses, interfaces)
    problems: list[OSError] = []
    sock = await _race(candidates, problems)
    if sock is not None:
        reader, writer = await asyncio.open_connection(sock=sock)
        return Control(reader, writer)
    if any(isinstance(problem, ConnectionRefusedError) for problem in problems):
        raise ConnectRefused(f"nobody listens at {where}")
    if any(isinstance(problem, TimeoutError) for problem in problems):
        raise ConnectTimeout(f"no answer from {where}")
    told = "; ".join(sorted({problem.strerror or str(problem) for problem in problems}))
    raise HandshakeError(f"cannot reach {where}: {told or 'no plane leads there'}")


async def bind(host: str | None, port: int, backlog: int) -> list[socket.socket]:
    """Listening sockets: on all addresses of `host`, or (None) of this machine.

    Raises:
        OSError: The port is taken, or the address is not ours.
        HandshakeError: The name has no address.
    """
    if host is None:
        pairs = [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    else:
        pairs = [(f, a) for f, a in await _resolve([(host, port)])]  # type: ignore[misc]
    sockets: list[socket.socket] = []
    try:
        for family, address in pairs:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # a kernel without this IP version
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            shared = sockets[0].getsockname()[1] if port == 0 and len(sockets) > 1 else port
            sock.bind((address[0], shared, *address[2:]))
            sock.listen(backlog)
            sock.setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise HandshakeError("this machine has neither IPv6 nor IPv4")
    return sockets


async def expect(control: Control, *kinds: Kind) -> tuple[Kind, bytes]:
    """The next frame, which must be one of these kinds.

    Raises:
        ProtocolError: It is another, or none.
        EOFError: The peer ended the connection.
    """
    kind, body = await control.read()
    if kind not in kinds:
        raise ProtocolError(f"set-up: {kind.name} came where {kinds[0].name} belongs")
    return kind, body
