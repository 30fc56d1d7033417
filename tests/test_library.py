# SPDX-License-Identifier: Apache-2.0
"""What a program sees of the library before and beside its messages: arguments, words, ends.

Over fake engines and a real control connection on loopback.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import json
import linecache
import mmap
import random
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fake_engine
import pytest
import uvloop
from fake_engine import FakeEngine, joined, within

import mrc


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_engine.install(monkeypatch)


@pytest.mark.parametrize(
    ("target", "error", "told"),
    [
        ("", mrc.ConfigError, "the host is ''"),
        ([], mrc.ConfigError, "no host"),
        (["a", ""], mrc.ConfigError, "the host is ''"),
        ("mrc://", mrc.ConfigError, "mrc://"),
        ("a b", mrc.ConfigError, "a b"),
        ("mrc://a/path", mrc.ConfigError, "a/path"),
        ("http://a", mrc.ConfigError, "http"),
        ("a:99999", mrc.ConfigError, "99999"),
        ("a:0", mrc.ConfigError, "port 0"),
        ("[::1", mrc.ConfigError, r"\[::1"),
        (b"a", TypeError, "string"),
        (None, TypeError, "None"),
    ],
)
def test_a_target_that_is_none_is_refused_at_once(target: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        mrc.connect(target)


@pytest.mark.parametrize("name", ["nosuch.invalid", "a" * 70 + ".invalid", "a..b"])
def test_a_name_without_an_address_is_told(name: str) -> None:
    async def main() -> None:
        with pytest.raises(mrc.HandshakeError, match=f"cannot resolve {name}"):
            await mrc.connect(name)
        with pytest.raises(mrc.HandshakeError, match=f"cannot resolve {name}"):
            await mrc.listen(name).start()

    asyncio.run(main())
    assert FakeEngine.everybody == {}


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_a_time_limit_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(mrc.ConfigError, match="timeout"):
        mrc.connect("a", timeout=timeout)

    async def main() -> None:
        async with joined() as (one, _):
            with pytest.raises(mrc.ConfigError, match="timeout"):
                await one.close(timeout=timeout)
            assert not one.closed

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"port": 65536}, {"port": -1}, {"backlog": 0}, {"host": ""}])
def test_a_listener_refuses_what_it_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(mrc.ConfigError):
        mrc.listen(**wrong)


@pytest.mark.parametrize("make", [mrc.Endpoint, mrc.listen, lambda **kw: mrc.connect("a", **kw)])
def test_what_belongs_to_an_endpoint_is_checked_at_once(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="list of interfaces"):
        make(planes="eth0")
    with pytest.raises(TypeError, match=r"mrc\.Config"):
        make(config={})
    if make is not mrc.Endpoint:
        with pytest.raises(ValueError, match=r"give them to mrc\.Endpoint"):
            make(endpoint=mrc.Endpoint(), planes=["eth0"])
        with pytest.raises(TypeError, match=r"mrc\.Endpoint"):
            make(endpoint="eth0")


def test_objects_say_what_they_are_and_how_they_do() -> None:
    async def main() -> None:
        endpoint = mrc.Endpoint()
        assert repr(endpoint) == "<mrc.Endpoint, not running>"
        async with endpoint, endpoint.listen("127.0.0.1", 0) as listener:
            assert repr(listener) == f"<mrc.Listener on 127.0.0.1 port {listener.port}, open>"
            one = await mrc.connect(f"127.0.0.1:{listener.port}")
            two = await listener.accept()
            assert repr(endpoint) == "<mrc.Endpoint on p0, p1, 1 connections>"
            assert repr(one) == f"<mrc.Connection to 127.0.0.1:{listener.port}, open>"
            assert repr(one.planes[0]).startswith("<mrc.PairedPlane p0 fd00:1::")
            region = two.register(bytearray(10))
            assert repr(region) == "<mrc.MemoryRegion of 10 bytes, lent>"
            remote = one.remote(region.descriptor)
            assert repr(remote).startswith("<mrc.RemoteRegion of 10 bytes at 0x")
            assert f"{remote.key:x}" not in repr(remote)
            completion = await one.post_send(b"abc")
            assert repr(completion) == "<mrc.Completion of 3 bytes, under way>"
            await completion
            assert repr(completion) == "<mrc.Completion of 3 bytes, done>"
            region.close()
            assert repr(region) == "<mrc.MemoryRegion of 10 bytes, revoked>"
            completion = await one.post_send(b"abc")
            one.abort()
            assert repr(one).endswith("lost: aborted (by this side)>")
            assert "failed: aborted" in repr(completion)
        assert repr(listener).endswith("not listening>")

    asyncio.run(main())


def test_a_connection_that_the_peer_closed_says_so() -> None:
    async def main() -> None:
        async with joined() as (one, two):
            await one.send(b"last")
            await within(asyncio.gather(one.close(), one.close()))
            await asyncio.sleep(0.05)
            assert one.closed
            assert two.closed
            assert repr(one).endswith("closed>")
            assert repr(two).endswith("closed>")
            assert bytes(await two.recv()) == b"last"

    asyncio.run(main())


def test_a_part_of_a_remote_region_follows_the_rules_of_sequences() -> None:
    remote = mrc.RemoteRegion(key=1, va=1000, size=10)
    rng = random.Random(5)
    bounds = [None, *range(-12, 13)]
    for _ in range(200):
        part = slice(rng.choice(bounds), rng.choice(bounds))
        assert len(remote[part]) == len(range(10)[part])
        if remote[part]:
            assert remote[part].va - 1000 == range(10)[part][0]
    with pytest.raises(ValueError, match="step 2"):
        remote[::2]
    with pytest.raises(TypeError, match="start:stop"):
        remote[3]  # type: ignore[index]


class Unclosed:
    """What a program dropped, by what made it, and whether its peer hears of it."""

    @staticmethod
    async def endpoint() -> Any:
        endpoint = mrc.Endpoint()
        await endpoint.start()
        return endpoint

    @staticmethod
    async def listener() -> Any:
        listener = mrc.listen("127.0.0.1", 0)
        await listener.start()
        return listener


@pytest.mark.parametrize("make", [Unclosed.endpoint, Unclosed.listener])
def test_what_was_not_closed_is_told_with_the_line_that_made_it(
    make: Callable[[], Awaitable[Any]],
) -> None:
    """Case D76."""

    async def main() -> None:
        forgotten = await make()
        with pytest.warns(ResourceWarning, match=r"made at .*test_library\.py") as caught:
            del forgotten
        assert caught[0].filename == __file__
        line = linecache.getline(__file__, caught[0].lineno)
        assert line.strip().startswith(f"{make.__name__} = mrc.")
        assert FakeEngine.everybody == {}

    asyncio.run(main())


def test_an_end_that_was_told_keeps_nothing_of_who_heard_it() -> None:
    class Thing:
        pass

    async def main() -> None:
        async with joined() as (one, _):
            one.abort()

            async def ask() -> weakref.ref[Thing]:
                thing = Thing()
                with contextlib.suppress(mrc.ConnectionLost):
                    await one.recv()
                return weakref.ref(thing)

            reference = await ask()
            gc.collect()
            assert reference() is None

    asyncio.run(main())


def test_close_tells_of_messages_that_a_broken_connection_lost() -> None:
    async def main() -> None:
        async with joined(mrc.Config(max_queue=1 << 16)) as (one, two):
            await one.post_send(bytes(1 << 20))
            closing = asyncio.ensure_future(one.close())
            await asyncio.sleep(0.02)
            two.abort()
            with pytest.raises(mrc.ConnectionLost):
                await within(closing)
            await one.close()

    asyncio.run(main())


def test_an_endpoint_that_many_start_at_once_starts_once() -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            before = len(FakeEngine.everybody)
            endpoint = mrc.Endpoint()
            target = f"127.0.0.1:{listener.port}"
            ones = await within(asyncio.gather(*(endpoint.connect(target) for _ in range(8))))
            assert len(FakeEngine.everybody) == before + 1
            for one in ones:
                one.abort()
            await endpoint.close()

    asyncio.run(main())


def test_a_connection_that_gets_no_memory_keeps_no_queue_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with mrc.Endpoint() as here, mrc.listen("127.0.0.1", 0) as listener:
            engine: FakeEngine = here._hub.engine  # type: ignore[assignment]
            refusals = iter(range(3))

            def register(buffer: Any, domain: int) -> tuple[int, int]:
                if next(refusals, None) is not None:
                    raise mrc._native.TableFull("memory region: a table of the endpoint is full")
                return FakeEngine.register(engine, buffer, domain)

            monkeypatch.setattr(engine, "register", register)
            async with here.connect(f"127.0.0.1:{listener.port}"):
                assert next(refusals, None) is None
                assert len(engine.qps) == 1

    asyncio.run(main())


def test_large_messages_wait_for_a_memory_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table of the endpoint is full: of one connection's, or of what another holds."""
    monkeypatch.setattr(FakeEngine, "max_regions", 4)
    sizes = [100_000, 5 << 20] * 5

    async def main() -> None:
        async with mrc.Endpoint() as here, mrc.listen("127.0.0.1", 0) as listener:
            ones = [await here.connect(f"127.0.0.1:{listener.port}") for _ in range(2)]
            two, other = [await listener.accept() for _ in ones]
            posts = [await ones[0].post_send(bytes(size)) for size in sizes]
            buffer = bytearray(5 << 20)
            assert [await within(two.recv_into(buffer)) for _ in sizes] == sizes
            await within(asyncio.gather(*(_wait(post) for post in posts)))

            taken = [other.register(bytearray(1)) for _ in range(2)]
            post = await ones[0].post_send(bytes(100_000))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(two.recv_into(buffer), 0.05)
            taken[0].close()
            assert len(await within(two.recv())) == 100_000
            await within(_wait(post))
            post = await ones[0].post_send(bytes(100_000))
            taken.append(other.register(bytearray(1)))
            await asyncio.sleep(0.05)
            other.abort()
            assert len(await within(two.recv())) == 100_000
            for connection in (*ones, two):
                connection.abort()

    asyncio.run(main())


async def _wait(completion: mrc.Completion) -> None:
    await completion


@pytest.mark.parametrize("full", ["here", "there"])
def test_a_table_that_stays_full_is_told_before_the_time_is_up(
    full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C63: of the connector, or of the listener, which says so."""

    def refuse(*_: Any, **__: Any) -> None:
        raise mrc._native.TableFull("queue pair: a table of the endpoint is full")

    async def main() -> None:
        config = mrc.Config(linger=0)
        async with (
            mrc.Endpoint(config=config) as here,
            mrc.listen("127.0.0.1", 0, config=config) as listener,
        ):
            endpoint = here if full == "here" else listener.endpoint
            monkeypatch.setattr(endpoint._hub.engine, "create_qp", refuse)
            monkeypatch.setattr("mrc.establish._ROOM_PATIENCE", 0.1)
            with pytest.raises(mrc.HandshakeError, match=r"is full: see Config\.max_qps"):
                await here.connect(f"127.0.0.1:{listener.port}")
            monkeypatch.undo()

    asyncio.run(main())


def test_an_endpoint_belongs_to_one_loop() -> None:
    endpoint = mrc.Endpoint()
    asyncio.run(endpoint.start())

    async def main() -> None:
        with pytest.raises(mrc.ConcurrencyError, match="another event loop"):
            await endpoint.start()
        await endpoint.close()
        async with endpoint:
            assert len(endpoint.planes()) == 2
            assert endpoint.excluded == json.loads(json.dumps(endpoint.excluded)) == {}

    asyncio.run(main())


def test_two_who_wait_for_events_are_refused() -> None:
    async def main() -> None:
        async with joined() as (one, _):
            first = asyncio.ensure_future(anext(one.events()))
            await asyncio.sleep(0)
            with pytest.raises(mrc.ConcurrencyError):
                await anext(one.events())
            one.abort()
            with pytest.raises(StopAsyncIteration):
                await within(first)

    asyncio.run(main())


def test_a_large_post_is_not_passed_by_small_ones_for_ever() -> None:
    async def main() -> None:
        config = mrc.Config(max_queue=1 << 16, max_inflight=200_000)
        async with joined(config) as (one, two):
            sizes = [150_000, 150_000, 10, 20]
            posts = [asyncio.ensure_future(one.post_send(bytes(size))) for size in sizes]
            await asyncio.sleep(0.02)
            assert [post.done() for post in posts] == [True, False, False, False]
            assert [len(await within(two.recv())) for _ in sizes] == sizes
            await within(asyncio.gather(*posts))

    asyncio.run(main())


BUFFERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"12345678",
    "bytearray": lambda: bytearray(b"12345678"),
    "memoryview": lambda: memoryview(b"x12345678x")[1:9],
    "array": lambda: array.array("I", b"12345678"),
    "mmap": lambda: mmap.mmap(-1, 8),
    "two dimensions": lambda: memoryview(b"12345678").cast("B", (2, 4)),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_any_contiguous_buffer_can_be_sent(make: Callable[[], Any]) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            await within(one.send(make()))
            assert bytes(await two.recv()) == memoryview(make()).tobytes()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (memoryview(bytes(10))[::2], ValueError, "contiguous"),
        ("text", TypeError, "bytes-like"),
        (7, TypeError, "bytes-like"),
        (None, TypeError, "bytes-like"),
    ],
)
def test_what_is_no_contiguous_buffer_is_refused(data: Any, error: Any, told: str) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            remote = one.remote(two.register(bytearray(20)).descriptor)
            for call in (one.send(data), one.post_send(data), one.write(data, remote)):
                with pytest.raises(error, match=told):
                    await call
            with pytest.raises(error, match=told):
                await one.recv_into(data)
            with pytest.raises(TypeError, match="imm"):
                await one.send(b"", imm="7")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="remote"):
                await one.write(b"", b"descriptor")  # type: ignore[arg-type]
            await one.send(b"still usable")
            assert bytes(await two.recv()) == b"still usable"

    asyncio.run(main())


def test_waiting_calls_can_be_cancelled_at_any_step() -> None:
    """Cases D69, D70: each is cancelled after 0, 1, 2 ... steps of the loop; nothing is left."""

    async def cancelled_after(steps: int, call: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(call)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return None
        return task.exception() or task.result()

    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            target = f"127.0.0.1:{listener.port}"
            for steps in range(0, 60, 3):
                made = await cancelled_after(steps, mrc.connect(target)._connect())
                if isinstance(made, mrc.Connection):
                    made.abort()
                accepted = await cancelled_after(steps, listener.accept())
                if isinstance(accepted, mrc.Connection):
                    accepted.abort()
            await asyncio.sleep(0.05)
            async with mrc.connect(target) as one:
                while True:  # what the cancelled ones left in the queue is over
                    two = await within(listener.accept())
                    if two.peer.rpartition(":")[2] and not two.closed:
                        break
                for steps in range(12):
                    await cancelled_after(steps, one.send(bytes([steps]) * 5000))
                    await cancelled_after(steps, two.recv())
                    await cancelled_after(steps, two.recv_into(bytearray(5000)))
                await one.send(b"end")
                while bytes(await within(two.recv())) != b"end":
                    pass
                await cancelled_after(1, two.close())
                assert two.closed
                one.abort()
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert FakeEngine.everybody == {}


def is_exported(buffer: bytearray) -> bool:
    """Whether somebody may still read it: then it cannot grow."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


def test_a_cancelled_write_lands_whole_or_not_at_all(seed: int) -> None:
    """Cases C55 and D70: its source is held as long as a packet of it may leave, and no longer."""
    rng = random.Random(seed)
    size = 200_000

    async def main() -> None:
        async with joined(mrc.Config(post_window=1 << 17)) as (one, two):
            wire: FakeEngine = one._link.engine  # type: ignore[assignment]
            memory = bytearray(3 * size)
            remote = one.remote(two.register(memory).descriptor)
            parts = [slice(at, at + size) for at in range(0, 3 * size, size)]
            wire.slow = True
            for value in range(1, 41):
                memory[:] = bytes(3 * size)
                sources = [bytearray([value]) * size for _ in parts]
                writes = [
                    asyncio.ensure_future(one.write(source, remote[part], imm=number))
                    for number, (source, part) in enumerate(zip(sources, parts, strict=True))
                ]
                for _ in range(rng.randrange(16)):
                    await asyncio.sleep(0)
                    wire.carry()
                victim = rng.randrange(3)
                landed = set(range(3))
                if writes[victim].cancel():
                    with contextlib.suppress(asyncio.CancelledError):
                        await writes[victim]
                    await asyncio.sleep(0)  # until then asyncio itself holds the exception
                    has_begun = memory[victim * size] or is_exported(sources[victim])
                    landed -= set() if has_begun else {victim}
                for number in sorted(landed):
                    while two._link.messages.head is None:
                        wire.carry()
                        await asyncio.sleep(0)
                    assert (await two.recv()).imm == number
                wire.carry(len(wire.under_way))
                await within(asyncio.gather(*writes, return_exceptions=True))
                assert not any(map(is_exported, sources))
                for number, part in enumerate(parts):
                    assert set(memory[part]) == {value if number in landed else 0}

    asyncio.run(main())


def test_a_withdrawn_message_gives_its_buffer_back() -> None:
    async def main() -> None:
        async with joined(mrc.Config(slots=2)) as (one, two):
            one._link.engine.slow = True  # type: ignore[attr-defined]
            for _ in range(2):
                await one.post_send(b"takes a slot")
            data = bytearray(100_000)
            waiting = await one.post_send(data)
            assert is_exported(data)
            assert waiting.cancel()
            assert not is_exported(data)
            assert not waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            two.abort()

    asyncio.run(main())


def test_a_close_waits_for_no_message_that_was_withdrawn() -> None:
    async def main() -> None:
        async with joined(mrc.Config(slots=2, max_queue=1 << 16)) as (one, two):
            posts: list[mrc.Completion] = []
            while all(post.done() for post in posts):  # until the peer's queue has no room
                posts.append(await one.post_send(bytes(2000)))
                for _ in range(20):
                    await asyncio.sleep(0)
            closing = asyncio.ensure_future(one.close())
            await asyncio.sleep(0)
            assert posts.pop().cancel()
            await asyncio.wait_for(closing, 5)  # of the 10 that it would wait for the message
            assert len([message async for message in two]) == len(posts)

    asyncio.run(main())


@pytest.mark.parametrize("forged", ["before", "behind", "key"])
def test_a_write_outside_the_region_writes_nothing(forged: str) -> None:
    async def main() -> None:
        async with joined(mrc.Config(crash_after=0.05)) as (one, two):
            memory = bytearray(b"untouched")
            remote = one.remote(two.register(memory).descriptor)
            start = {"before": remote.va - 1, "behind": remote.va + 1, "key": remote.va}[forged]
            key = remote.key ^ (forged == "key")
            wrong = mrc.RemoteRegion(key=key, va=start, size=len(memory))
            with pytest.raises(mrc.RemoteAccessError):
                await within(one.write(bytes(len(memory)), wrong, imm=1))
            with pytest.raises(mrc.ConnectionLost, match="remote access refused"):
                await within(one.send(b""))
            assert memory == b"untouched"
            with pytest.raises(mrc.ConnectionLost):
                await within(two.recv())

    asyncio.run(main())


def test_each_loop_of_a_process_has_its_own_connections() -> None:
    async def main() -> None:
        async with joined() as (one, two):
            for number in range(50):
                await within(asyncio.gather(one.send(b"%d" % number), two.recv()))
            await within(asyncio.gather(one.close(), two.close()))

    runs = [asyncio.run, uvloop.run]
    with ThreadPoolExecutor(len(runs)) as executor:
        for done in [executor.submit(_run, run, main) for run in runs]:
            done.result(timeout=30)
    assert FakeEngine.everybody == {}


def _run(run: Callable[[Any], Any], main: Callable[[], Any]) -> None:
    run(main())
