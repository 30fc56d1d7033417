# SPDX-License-Identifier: Apache-2.0
"""An engine without interfaces: writes of one fake reach the other at once, in this process.

For tests of what lies above the engine. It checks keys, ranges, domains and posted receives as the
core does, and can lose everything (`cut`) or carry writes one by one (`slow`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import os
import secrets
import select
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import mrc
from mrc import _native, hub, verbs
from mrc._native import Attributes, EngineEvent, PeerPlane, Pin
from mrc.errors import MRCError
from mrc.planes import Address, Discovery, Interface, LocalPlane


@dataclass
class FakeQp:
    domain: int
    receives: int = 0
    remote: tuple[FakeEngine, int] | None = None
    broken: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    evs: dict[int, int] = field(
        default_factory=lambda: dict.fromkeys((0x70000, 0x50001, 0x1000, 0x11001), 0)
    )
    """The state of each EV: two of either plane."""


class FakeEngine:
    """What endpoint.py and link.py use of `_native.Engine`."""

    everybody: dict[int, FakeEngine] = {}  # noqa: RUF012 - the network
    numbers = itertools.count(1000)
    refusals = 0
    """How many queue pairs are refused for want of room."""
    granted = 1 << 30
    """Bytes of socket buffer that the kernel grants."""
    max_regions = 1 << 30
    ring = 1 << 30
    """Submissions that are taken between two polls."""

    def __init__(self, config: object, *, threaded: bool = True) -> None:
        self.incarnation = secrets.randbits(64)
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.closed = self.forked = self.cut = self.slow = False
        self.under_way: deque[Callable[[], None]] = deque()
        self.events: deque[tuple[Any, ...]] = deque()
        self.regions: dict[int, tuple[int, int, Pin, memoryview]] = {}
        self.qps: dict[int, FakeQp] = {}
        self.peers: dict[int, FakeEngine] = {}
        self.planes: dict[int, tuple[str, Address | None]] = {}
        self.disabled: set[int] = set()
        self.room = self.ring
        FakeEngine.everybody[self.incarnation] = self

    @property
    def raw(self) -> object:
        if self.closed:
            raise MRCError("the endpoint is closed")
        return self

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.fd)
            FakeEngine.everybody.pop(self.incarnation, None)
            self.regions.clear()

    def tell(self, *event: Any) -> None:
        if not self.closed:
            self.events.append(event)
            os.eventfd_write(self.fd, 1)

    def add_plane(self, number: int, name: str, address: Address | None) -> None:
        self.planes[number] = (name, address)

    def enable_plane(self, number: int, *, enabled: bool) -> None:
        (self.disabled.discard if enabled else self.disabled.add)(number)
        for peer in self.peers:
            self.plane_event(peer, number, state=2 if enabled else 3, reason=0 if enabled else 6)

    def plane_event(self, peer: int, plane: int, *, state: int, reason: int) -> None:
        numbers = dict.fromkeys(("status", "qp", "ev", "tag", "rtt"), 0)
        event = EngineEvent(
            type=4, peer=peer, plane=plane, state=state, reason=reason, time=10**9, **numbers
        )
        self.tell("event", event)

    def plane(self, number: int) -> dict[str, Any]:
        name, address = self.planes[number]
        flags = {"up": 1, "enabled": int(number not in self.disabled), "vnet_header": 1}
        zeros = dict.fromkeys(("kernel_drops", "send_errors", "send_errno"), 0)
        buffers = dict.fromkeys(("receive_buffer", "send_buffer"), self.granted)
        return {"name": name, "address": address, "mtu": 4200, **flags, **zeros, **buffers}

    def add_peer(
        self, incarnation: int, planes: Sequence[PeerPlane], path: object, *, srh: bool
    ) -> int:
        self.peers[len(self.peers)] = FakeEngine.everybody[incarnation]
        return len(self.peers) - 1

    def check_peer(self, peer: int) -> None:
        assert peer in self.peers

    def remove_peer(self, peer: int) -> bool:
        return True

    def plane_stats(self, peer: int, plane: int) -> dict[str, int]:
        names = [name for name, _ in _native.ffi.typeof("mrc_plane_stats").fields]
        return {**dict.fromkeys(names, 0), "state": 2}

    def qp_stats(self, qp: int) -> dict[str, int]:
        names = [name for name, _ in _native.ffi.typeof("mrc_qp_stats").fields]
        return {**dict.fromkeys(names, 0), **self.qps[qp].counts}

    def evs(self, qp: int) -> list[dict[str, int]]:
        listed = self.qps[qp].evs.items()
        return [{"ev": ev, "plane": ev >> 12 & 15, "state": state} for ev, state in listed]

    def deny_ev(self, qp: int, ev: int, *, denied: bool) -> None:
        self.qps[qp].evs[ev] = 3 if denied else 0

    def ev_event(self, qp: int, ev: int, *, state: int) -> None:
        numbers = dict.fromkeys(("status", "reason", "peer", "tag", "rtt"), 0)
        plane = ev >> 12 & 15
        event = EngineEvent(type=5, qp=qp, plane=plane, ev=ev, state=state, time=10**9, **numbers)
        self.tell("event", event)

    def counters(self) -> dict[str, int]:
        return {"packets_sent": 0}

    def register(self, buffer: Any, domain: int) -> tuple[int, int]:
        if len(self.regions) >= self.max_regions:
            raise _native.TableFull("memory region: a table of the endpoint is full")
        pin = Pin(buffer, writable=True)
        key, va = secrets.randbits(32), secrets.randbits(40) << 12
        self.regions[key] = (va, domain, pin, memoryview(_native.ffi.buffer(pin.pointer)))
        return va, key

    def deregister(self, key: int) -> None:
        region = self.regions.pop(key, None)
        if region is not None:
            region[3].release()
            region[2].release()

    def create_qp(self, domain: int, **attributes: Any) -> Attributes:
        if FakeEngine.refusals:
            FakeEngine.refusals -= 1
            raise _native.TableFull("queue pair: a table of the endpoint is full")
        number = next(FakeEngine.numbers)
        self.qps[number] = FakeQp(domain)
        return Attributes(number=number, psn=1, dynamic_mpr=False, **attributes)

    def connect_qp(self, qp: int, peer: int, remote: Attributes) -> None:
        self.qps[qp].remote = (self.peers[peer], remote.number)

    def close_qp(self, qp: int) -> None:
        del self.qps[qp]

    def submit_receives(self, qp: int, count: int) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.qps[qp].receives += count
        return True

    def submit_write(
        self, qp: int, key: int, va: int, pin: Pin, tag: int, *, immediate: int | None = None
    ) -> bool:
        if not self.room:
            return False
        self.room -= 1
        if not self.cut and not self.qps[qp].broken:
            self.under_way.append(partial(self._execute, qp, key, va, pin, tag, immediate))
            if not self.slow:
                self.carry()
        return True

    def carry(self, count: int = 1) -> None:
        """Lets so many of the writes that are under way arrive, as their sources are now."""
        for _ in range(min(count, len(self.under_way))):
            self.under_way.popleft()()

    def _execute(  # noqa: PLR0917
        self, qp: int, key: int, va: int, pin: Pin, tag: int, immediate: int | None
    ) -> None:
        mine = self.qps.get(qp)
        if mine is None or mine.broken:
            return
        data = bytes(_native.ffi.buffer(pin.pointer))
        assert mine.remote is not None
        other, number = mine.remote
        theirs = other.qps.get(number)
        if theirs is None:
            return
        region = other.regions.get(key)
        if data and (
            region is None
            or region[1] != theirs.domain
            or not region[0] <= va <= va + len(data) <= region[0] + len(region[3])
        ):
            self.tell("write", qp, tag, _native.REMOTE_ACCESS)
            self.break_qp(qp, _native.REMOTE_ACCESS)
            return
        if data and region is not None:
            region[3][va - region[0] : va - region[0] + len(data)] = data
        if immediate is not None:
            assert theirs.receives > 0, "a write with immediate found no receive"
            theirs.receives -= 1
            other.tell("receive", number, immediate)
        mine.counts["writes_completed"] = mine.counts.get("writes_completed", 0) + 1
        self.tell("write", qp, tag, 0)

    def break_qp(self, qp: int, status: int) -> None:
        self.qps[qp].broken = True
        numbers = dict.fromkeys(("peer", "plane", "ev", "state", "reason", "tag", "time", "rtt"), 0)
        self.tell("event", EngineEvent(type=3, status=status, qp=qp, **numbers))

    def run(self, timeout: int) -> None:
        select.select([self.fd], [], [], None if timeout < 0 else timeout / 1e9)

    def flush(self) -> None:
        pass  # whatever is posted has arrived already

    def poll(
        self,
        on_write: Callable[..., None],
        on_receive: Callable[..., None],
        on_event: Callable[..., None],
    ) -> int:
        handlers = {"write": on_write, "receive": on_receive, "event": on_event}
        self.room = self.ring
        batch = [self.events.popleft() for _ in range(min(64, len(self.events)))]
        if len(batch) < 64:
            os.eventfd_read(self.fd) if batch else None
        for name, *arguments in batch:
            handlers[name](*arguments)
        return len(batch)


def install(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    """Endpoints made from now on have fake engines and `count` planes."""
    hosts = itertools.count(1)

    def discover(specs: object, *, dad_timeout: float) -> Discovery:
        host = next(hosts)
        planes = tuple(
            LocalPlane(
                number=number,
                id="",
                interface=Interface(
                    name=f"p{number}",
                    index=100 + number,
                    address=ipaddress.ip_address(f"fd00:{number + 1}::{host:x}"),
                    prefix=64,
                    mtu=4200,
                    up=True,
                ),
            )
            for number in range(len(specs) if isinstance(specs, list) else count)
        )
        return Discovery(planes=planes, excluded={})

    for module in (hub, verbs):
        monkeypatch.setattr(module, "Engine", FakeEngine)
        monkeypatch.setattr(module, "discover", discover)


@contextlib.asynccontextmanager
async def joined(
    config: mrc.Config | None = None,
) -> AsyncIterator[tuple[mrc.Connection, mrc.Connection]]:
    """A connector's and a listener's connection."""
    async with mrc.listen("127.0.0.1", 0, config=config) as listener:
        one = await mrc.connect(f"127.0.0.1:{listener.port}", config=config)
        two = await listener.accept()
        try:
            yield one, two
        finally:
            one.abort()
            two.abort()


async def within(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 20)
