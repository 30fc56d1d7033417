# SPDX-License-Identifier: Apache-2.0
"""What a connection tells of its planes and paths, and lets be denied: over the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import fake_engine
import pytest
from fake_engine import joined, within

import mrc

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    fake_engine.install(monkeypatch)
    return asyncio.run


def engine(connection: mrc.Connection) -> Any:
    return connection._link.engine


def test_events_tell_of_planes(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, _):
            one.disable_plane("p1")
            one.enable_plane("p1")
            events = one.events()
            assert await within(anext(events)) == mrc.PlaneLost(
                time=1.0, plane="p1", reason="disabled"
            )
            assert await within(anext(events)) == mrc.PlaneRecovered(time=1.0, plane="p1")
            with pytest.raises(ValueError, match="no plane p9"):
                one.disable_plane("p9")
            one.abort()
            with pytest.raises(StopAsyncIteration):
                await within(anext(events))

    run(main())


def test_an_outage_is_told_once_whatever_reasons_it_has(run: Run) -> None:
    """The peer says that its port is down, and then our own loses the carrier."""

    async def main() -> None:
        async with joined() as (one, _):
            events = one.events()
            for _ in range(2):
                for state, reason in ((3, 2), (3, 1), (2, 0)):
                    engine(one).plane_event(0, 1, state=state, reason=reason)
                for kind in (mrc.PlaneLost, mrc.PlaneRecovered):
                    event = await within(anext(events))
                    assert isinstance(event, kind)
                    assert getattr(event, "reason", "peer") == "peer"

    run(main())


def test_events_tell_of_paths(run: Run) -> None:
    """Without a topology they have no hops."""

    async def main() -> None:
        async with joined() as (one, _):
            events = one.events()
            engine(one).ev_event(one._link.qp, 0x11001, state=2)
            engine(one).ev_event(one._link.qp, 0x11001, state=0)
            assert one.faults() == ()
            told: dict[str, Any] = {"time": 1.0, "plane": "p1", "ev": 0x11001, "hops": None}
            assert await within(anext(events)) == mrc.PathBad(**told)
            assert await within(anext(events)) == mrc.PathGood(**told)

    run(main())


def denied(connection: mrc.Connection) -> set[int]:
    return {each.ev for each in connection.evs() if each.state == "denied"}


def test_a_path_is_denied_to_one_connection_or_to_all_of_an_endpoint(run: Run) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener, mrc.Endpoint() as endpoint:
            where = f"127.0.0.1:{listener.port}"
            async with await endpoint.connect(where) as one, await endpoint.connect(where) as two:
                assert {each.state for each in one.evs()} == {"good"}
                assert {(each.plane, each.hops) for each in one.evs()} == {
                    ("p0", None),
                    ("p1", None),
                }
                one.deny(0x1001)  # EV[31:16] names no path
                endpoint.deny("0x1")
                assert denied(one) == {0x11001, 0x50001}
                assert denied(two) == {0x50001}
                async with await endpoint.connect(where) as three:
                    assert denied(three) == {0x50001}
                endpoint.allow(0x1001)  # it was not the endpoint that denied it
                endpoint.allow(1)
                assert denied(one) == {0x11001}
                one.allow("4097")
                assert denied(one) == denied(two) == set()

    run(main())


def test_what_is_no_path_cannot_be_denied(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, _):
            for wrong in ("t1a", "t0a-t1a@1", "", "0x", 1 << 32, -1):
                with pytest.raises(mrc.ConfigError):
                    one.deny(wrong)
            assert denied(one) == set()
            one.abort()
            with pytest.raises(mrc.ConnectionLost):
                one.deny(1)

    run(main())
