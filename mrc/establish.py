# SPDX-License-Identifier: Apache-2.0
"""Setting up a connection, as connector and as listener (handshake.py draws the exchange)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from mrc import handshake
from mrc._native import PeerPlane, TableFull
from mrc.control import Control, dial, expect
from mrc.errors import (
    ConnectionClosed,
    ConnectionLost,
    ConnectTimeout,
    HandshakeError,
    MRCError,
    ProtocolError,
)
from mrc.handshake import Introduction, Kind, Refusal, Setup
from mrc.link import Link, PairedPlane
from mrc.planes import RemotePlane, next_hop, pair
from mrc.prober import Prober
from mrc.steering import overhead

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["accept", "connect", "visit"]

_T = TypeVar("_T")

_log = logging.getLogger("mrc")

HELLO_TIMEOUT: Final = 10.0
"""Seconds that a listener gives a connector for the whole set-up."""

_ROOM_PATIENCE: Final = 1.0
"""Seconds beyond `Config.linger` after which a full table is no matter of waiting [choice]."""


class _Refused(Exception):
    """We refuse the peer; it is told why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code=code, text=text[:500])


async def _when_there_is_room(endpoint: Hub, make: Callable[[], _T]) -> _T:
    """Calls `make` until what lingers has left it room in the engine's tables.

    Raises:
        HandshakeError: What fills them does not linger.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + endpoint.config.linger + _ROOM_PATIENCE
    while True:
        try:
            return make()
        except TableFull as error:
            if loop.time() > deadline:
                raise HandshakeError(f"{error}: see Config.max_qps and max_peers") from None
        await asyncio.sleep(0.05)


def _list(planes: Iterable[RemotePlane]) -> str:
    return ", ".join(f"{plane.name} {plane.address}" for plane in planes) or "none"


def _check_version(setup: Introduction) -> None:
    if not setup.versions & handshake.VERSIONS:
        raise _Refused(
            "version",
            f"no protocol version in common: {setup.versions:#b} and {handshake.VERSIONS:#b}",
        )


def _introduction(
    endpoint: Hub, planes: tuple[RemotePlane, ...], pairs: Sequence[tuple[int, int]] = ()
) -> Introduction:
    return Introduction(
        versions=handshake.VERSIONS,
        incarnation=endpoint.engine.incarnation,
        planes=planes,
        pairs=tuple(pairs),
        routing=endpoint.config.routing,
    )


def _setup(
    endpoint: Hub,
    link: Link,
    planes: tuple[RemotePlane, ...],
    pairs: Sequence[tuple[int, int]] = (),
) -> Setup:
    return Setup(
        versions=handshake.VERSIONS,
        incarnation=endpoint.engine.incarnation,
        planes=planes,
        pairs=tuple(pairs),
        routing=endpoint.config.routing,
        attributes=link.attributes,
        lent=link.lent,
    )


def _mtu(endpoint: Hub, link_mtus: Sequence[int]) -> int:
    fitting = handshake.fit_mtu([mtu - overhead(endpoint.config) for mtu in link_mtus])
    return min(fitting, endpoint.config.mtu or fitting)


def _notices(
    endpoint: Hub,
    ours: Sequence[RemotePlane],
    other: Introduction,
    pairs: Sequence[tuple[RemotePlane, RemotePlane]],
) -> tuple[str, ...]:
    """What a person should know of how the two sides fit."""
    theirs = other.planes
    notices = []
    # A packet's uSIDs are gone when it arrives: only with the topology can its way be gone back.
    if other.routing != endpoint.config.routing:
        notices.append(
            f"paths are named by {endpoint.config.routing} here, by {other.routing} at the peer: "
            "answers take other paths than what they answer"
        )
    if not len(ours) == len(theirs) == len(pairs):
        used = {plane.number for plane, _ in pairs}
        left = ", ".join(plane.name for plane in ours if plane.number not in used) or "none"
        notices.append(
            f"{len(ours)} planes here, {len(theirs)} at the peer, {len(pairs)} in common; "
            f"not used here: {left}"
        )
    notices.extend(
        f"plane {plane.name}: MTU {plane.mtu} here, {other.mtu} at the peer"
        for plane, other in pairs
        if plane.mtu != other.mtu
    )
    return tuple(notices)


async def _pair_with_hops(
    endpoint: Hub, pairs: Iterable[tuple[RemotePlane, RemotePlane]]
) -> list[PairedPlane]:
    """Those pairs that there is a way for, with the next hop of each."""
    paired = []
    for ours, theirs in pairs:
        interface = endpoint.local_planes[ours.number].interface
        hop = await asyncio.to_thread(next_hop, interface, theirs.address)
        if hop is None:
            _log.warning("plane %s: no route to %s", ours.name, theirs.address)
            continue
        paired.append(
            PairedPlane(
                name=ours.name,
                local=PeerPlane(
                    number=ours.number,
                    remote=theirs.number,
                    address=theirs.address,
                    next_hop=hop,
                ),
                local_address=str(ours.address),
                remote_name=theirs.name,
            )
        )
    return paired


async def connect(
    endpoint: Hub,
    targets: list[tuple[str, int]],
    *,
    timeout: float,  # noqa: ASYNC109 - what was not reached in time is told
) -> Link:
    """Sets a connection up.

    Raises:
        ConnectTimeout: Nobody answered in time, or no plane carries data.
        ConnectRefused: Nobody listens.
        HandshakeError: They answered, but cannot be talked to, or have no plane in common.
    """
    async with _attempt(endpoint, targets, timeout) as attempt:
        mtu = _mtu(endpoint, [plane.mtu for plane in attempt.ours])
        link = await _when_there_is_room(endpoint, lambda: Link(endpoint, mtu=mtu))
        attempt.link = link
        link.targets = targets
        endpoint.add_link(link)
        await _greet(endpoint, link, attempt.control, attempt.ours)
        await link.plane_up()
        attempt.control.write(handshake.encode(Kind.READY))
        link.watch()
        return link


@dataclass
class _Attempt:
    """A set-up from the connector's side.

    Attributes:
        control: To the listener.
        ours: Our planes.
        link: What comes of it; None: it is a visit, or not there yet.
    """

    control: Control
    ours: tuple[RemotePlane, ...]
    link: Link | None = None


@contextlib.asynccontextmanager
async def _attempt(
    endpoint: Hub, targets: list[tuple[str, int]], patience: float
) -> AsyncIterator[_Attempt]:
    """Dials a listener; if the set-up then fails, ends what there is of it, and says where.

    Raises:
        ConnectTimeout: The time was up.
        ConnectRefused: Nobody listens.
        HandshakeError: What was answered makes no sense, or no plane has an address.
    """
    where = ", ".join(f"{host} port {port}" for host, port in targets)
    control: Control | None = None
    attempt: _Attempt | None = None
    try:
        async with asyncio.timeout(patience):
            control = await dial(targets, [plane.interface for plane in endpoint.local_planes])
            ours = await endpoint.describe()
            if not ours:
                raise HandshakeError("no plane has an IP address now")
            attempt = _Attempt(control, ours)
            yield attempt
    except BaseException as error:
        link = None if attempt is None else attempt.link
        if link is not None:
            link.end(ConnectionLost("aborted", "the set-up failed"))
        if control is not None:
            control.close()
        if isinstance(error, TimeoutError) and not isinstance(error, MRCError):
            raise ConnectTimeout(_timed_out(where, patience, control, link)) from None
        if isinstance(error, (ProtocolError, EOFError)):
            raise HandshakeError(f"{where}: {error}") from None
        raise


def _timed_out(where: str, timeout: float, control: Control | None, link: Link | None) -> str:
    if control is None:
        return f"no answer from {where} within {timeout} s"
    if link is None or not link.planes:
        return f"{where} accepts connections, but did not answer within {timeout} s"
    planes = ", ".join(
        f"{plane.name} ({plane.local_address} to {plane.local.address})" for plane in link.planes
    )
    return f"{where} answers, but within {timeout} s no probe came back by any plane: {planes}"


async def _expect_answer(control: Control, wanted: Kind) -> bytes:
    """The body of the listener's answer.

    Raises:
        HandshakeError: It refuses.
    """
    kind, body = await expect(control, wanted, Kind.REFUSE)
    if kind == Kind.REFUSE:
        refusal = handshake.decode_refusal(body)
        raise HandshakeError(f"{control.peer} refuses: {refusal.text}")
    return body


async def _agree(
    endpoint: Hub, control: Control, ours: tuple[RemotePlane, ...], answer: Introduction
) -> tuple[list[tuple[RemotePlane, RemotePlane]], list[PairedPlane]]:
    """The pairs that the listener made, and those of them that there is a way for.

    Raises:
        ProtocolError: They are of planes that nobody named.
        HandshakeError: There is no way for any.
    """
    numbers = {plane.number: plane for plane in ours}
    others = {plane.number: plane for plane in answer.planes}
    pairs = [(numbers.get(one), others.get(two)) for one, two in answer.pairs]
    known = [(one, two) for one, two in pairs if one is not None and two is not None]
    if len(known) < len(pairs) or not answer.versions & handshake.VERSIONS:
        raise ProtocolError("set-up: the answer names planes or versions that we did not")
    planes = await _pair_with_hops(endpoint, known)
    if not planes:
        raise HandshakeError(
            f"no plane in common with {control.peer}: "
            f"here {_list(ours)}; there {_list(answer.planes)}"
        )
    return known, planes


async def _greet(
    endpoint: Hub, link: Link, control: Control, ours: tuple[RemotePlane, ...]
) -> None:
    """HELLO and WELCOME, from the connector's side."""
    control.write(handshake.encode_setup(Kind.HELLO, _setup(endpoint, link, ours)))
    welcome = handshake.decode_setup(await _expect_answer(control, Kind.WELCOME))
    known, planes = await _agree(endpoint, control, ours, welcome)
    link.notices = _notices(endpoint, ours, welcome, known)
    for notice in link.notices:
        _log.warning("%s: %s", control.peer, notice)
    await _when_there_is_room(endpoint, lambda: link.begin(control, welcome, planes))


async def visit(
    endpoint: Hub,
    targets: list[tuple[str, int]],
    *,
    timeout: float,  # noqa: ASYNC109 - what was not reached in time is told
) -> Prober:
    """Makes us and a listener known to each other, without a connection.

    Raises:
        ConnectTimeout: Nobody answered in time.
        ConnectRefused: Nobody listens.
        HandshakeError: They answered, but cannot be talked to, or have no plane in common.
    """
    async with _attempt(endpoint, targets, timeout) as attempt:
        control, ours = attempt.control, attempt.ours
        us = _introduction(endpoint, ours)
        control.write(handshake.encode_setup(Kind.VISIT, us))
        answer = handshake.decode_introduction(await _expect_answer(control, Kind.VISITED))
        known, planes = await _agree(endpoint, control, ours, answer)
        peer = await _meet(endpoint, control, answer, planes)
        notices = _notices(endpoint, ours, answer, known)
        return Prober(endpoint, peer, planes, control, notices)


async def _meet(
    endpoint: Hub, control: Control, other: Introduction, planes: Sequence[PairedPlane]
) -> int:
    """Adds a peer that stays until `Hub.leave`; returns its number."""
    locals_ = [plane.local for plane in planes]
    return await _when_there_is_room(
        endpoint, lambda: endpoint.add_guest(other.incarnation, locals_, control.site)
    )


async def _be_visited(
    endpoint: Hub, control: Control, body: bytes, patience: asyncio.Timeout
) -> None:
    """Knows a visitor for as long as its control connection lasts."""
    visitor = handshake.decode_introduction(body)
    _check_version(visitor)
    ours = await endpoint.describe()
    pairs, planes = await _match(endpoint, ours, visitor)
    peer = await _meet(endpoint, control, visitor, planes)
    try:
        numbers = [(two.number, one.number) for one, two in pairs]
        control.write(handshake.encode_setup(Kind.VISITED, _introduction(endpoint, ours, numbers)))
        patience.reschedule(None)
        with contextlib.suppress(EOFError):
            await expect(control, Kind.CLOSE)
    finally:
        endpoint.leave(peer)
        control.close()


async def accept(endpoint: Hub, control: Control, admit: Callable[[Kind], bool]) -> Link | None:
    """Answers one connector; None: it is no connection (any more), which was logged if it failed.

    Args:
        endpoint: What it is set up for.
        control: Its control connection.
        admit: Asked once it has said HELLO or VISIT; False: others come first.
    """
    link: Link | None = None
    try:
        async with asyncio.timeout(HELLO_TIMEOUT) as patience:
            kind, body = await expect(control, Kind.HELLO, Kind.IDENTIFY, Kind.VISIT)
            if kind == Kind.IDENTIFY:
                identity = {"incarnation": endpoint.engine.incarnation}
                control.write(handshake.encode(Kind.IDENTITY, identity))
                control.close()
                return None
            if not admit(kind):
                raise _Refused("busy", "too many connections wait to be accepted")
            if kind == Kind.VISIT:
                await _be_visited(endpoint, control, body, patience)
                return None
            hello = handshake.decode_setup(body)
            _check_version(hello)
            endpoint.meet(hello)
            link = await _welcome(endpoint, control, hello)
            await expect(control, Kind.READY)
            link.watch()
            return link
    except _Refused as error:
        _log.warning("%s refused: %s", control.peer, error)
        _refuse(control, error.refusal)
    except (ProtocolError, EOFError, TimeoutError, ConnectionClosed) as error:
        _log.warning("%s: set-up failed: %s", control.peer, str(error) or "timed out")
        if isinstance(error, handshake.VersionMismatch):
            _refuse(control, Refusal(code="version", text=str(error)))
    except (MRCError, OSError) as error:
        _log.error("%s: set-up failed: %s", control.peer, error)
        _refuse(control, Refusal(code="error", text=str(error)[:500]))
    except asyncio.CancelledError:
        if link is not None:
            link.end(ConnectionLost("aborted", "the listener was closed"))
        raise
    if link is not None:
        link.end(ConnectionLost("aborted", "the set-up failed"))
    control.close()
    return None


def _refuse(control: Control, refusal: Refusal) -> None:
    body = {"code": refusal.code, "text": refusal.text}
    control.write(handshake.encode(Kind.REFUSE, body))


async def _match(
    endpoint: Hub, ours: tuple[RemotePlane, ...], other: Introduction
) -> tuple[list[tuple[RemotePlane, RemotePlane]], list[PairedPlane]]:
    """Pairs our planes and a connector's, those that there is a way for."""
    pairs = pair(ours, other.planes)
    planes = await _pair_with_hops(endpoint, pairs)
    if not planes:
        raise _Refused(
            "planes", f"no plane in common: there {_list(ours)}; here {_list(other.planes)}"
        )
    used = {plane.local.number for plane in planes}
    return [(one, two) for one, two in pairs if one.number in used], planes


async def _welcome(endpoint: Hub, control: Control, hello: Setup) -> Link:
    ours = await endpoint.describe()
    pairs, planes = await _match(endpoint, ours, hello)
    mtus = [min(one.mtu, two.mtu) for one, two in pairs]
    link = await _when_there_is_room(endpoint, lambda: Link(endpoint, mtu=_mtu(endpoint, mtus)))
    endpoint.add_link(link)
    try:
        await _when_there_is_room(endpoint, lambda: link.begin(control, hello, planes))
        link.notices = _notices(endpoint, ours, hello, pairs)
        for notice in link.notices:
            _log.warning("%s: %s", control.peer, notice)
        numbers = [(two.number, one.number) for one, two in pairs]
        answer = _setup(endpoint, link, ours, numbers)
        control.write(handshake.encode_setup(Kind.WELCOME, answer))
    except BaseException:
        link.end(ConnectionLost("aborted", "the set-up failed"))
        raise
    return link
