# SPDX-License-Identifier: Apache-2.0
"""Connections over fake engines and a real control connection on loopback, on both loops."""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any

import fake_engine
import pytest
import uvloop
from fake_engine import FakeEngine, joined, within

import mrc
from mrc import _native
from mrc.handshake import Kind, encode

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def loop_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(loop_kind: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    fake_engine.install(monkeypatch)
    return asyncio.run if loop_kind == "asyncio" else uvloop.run


def engine(connection: mrc.Connection) -> Any:
    return connection._link.engine


def remote_of(connection: mrc.Connection) -> bytes:
    """The descriptor of memory that it lends."""
    return connection.register(bytearray(100)).descriptor


def tag_of(connection: mrc.Connection) -> int:
    """Of its one write that is under way."""
    (tag,) = connection._link._pins
    return tag


@pytest.mark.parametrize("size", [0, 1, 2032, 2033, 100_000, 9 << 20])
def test_a_message_of_any_size_goes_both_ways(run: Run, size: int) -> None:
    async def main() -> None:
        data = random.Random(size).randbytes(size)
        async with joined() as (one, two):
            for here, there in ((one, two), (two, one)):
                _, message = await within(asyncio.gather(here.send(data, imm=size), there.recv()))
                assert (bytes(message), len(message), message.imm) == (data, size, size)

    run(main())


def test_messages_end_at_a_clean_close(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            for index in range(20):
                await one.send(b"%d" % index)
            closing = asyncio.ensure_future(one.close())
            got = [bytes(message) async for message in two]
            assert got == [b"%d" % index for index in range(20)]
            await within(closing)
            assert one.closed
            for call in (two.recv(), two.send(b""), one.recv(), one.send(b"")):
                with pytest.raises(mrc.ConnectionClosedOK):
                    await call
            await two.close()
            await one.close()

    run(main())


def test_closing_and_aborting_again_changes_nothing(run: Run) -> None:
    """Case D72: in any order, from two tasks at once, and with calls after it."""

    async def main() -> None:
        async with joined() as (one, two):
            await within(asyncio.gather(one.close(), one.close(), two.close()))
            for connection in (one, two):
                connection.abort()
                await connection.close()
                connection.abort()
                assert connection.closed
                for call in (connection.recv(), connection.send(b""), connection.post_send(b"")):
                    with pytest.raises(mrc.ConnectionClosedOK):
                        await call
                with pytest.raises(mrc.ConnectionClosed):
                    connection.register(bytearray(1))
                with pytest.raises(mrc.ConnectionClosed):
                    connection.stats()

    run(main())


def test_close_delivers_what_was_posted(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            sizes = [0, 5000, 1, 3 << 20, 7]
            for size in sizes:
                await one.post_send(bytes(size))

            async def read() -> list[int]:
                return [len(message) async for message in two]

            _, got = await within(asyncio.gather(one.close(), read()))
            assert got == sizes

    run(main())


def test_close_gives_up_after_its_time(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(max_queue=1 << 16)) as (one, two):
            sending = asyncio.ensure_future(one.send(bytes(1 << 20)))
            await asyncio.sleep(0.05)
            with pytest.raises(mrc.ConnectionLost, match="unsent") as caught:
                await one.close(timeout=0.1)
            assert caught.value.reason == "aborted"
            with pytest.raises(mrc.ConnectionLost):
                await sending
            with pytest.raises(mrc.ConnectionLost, match="aborted"):
                await within(two.recv())

    run(main())


def test_abort_is_seen_at_once_by_both(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            receiving = [asyncio.ensure_future(side.recv()) for side in (one, two)]
            await asyncio.sleep(0)
            one.abort()
            one.abort()
            for receiver in receiving:
                with pytest.raises(mrc.ConnectionLost) as caught:
                    await within(receiver)
                assert caught.value.reason == "aborted"
            await one.close()

    run(main())


def test_the_context_closes_on_success_and_aborts_on_an_exception(run: Run) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            target = f"127.0.0.1:{listener.port}"
            async with mrc.connect(target) as one:
                first = await listener.accept()
                await one.send(b"x")
            assert [bytes(message) async for message in first] == [b"x"]
            accepted = asyncio.ensure_future(listener.accept())

            async def fail() -> None:
                async with mrc.connect(target):
                    await accepted
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            second = accepted.result()
            with pytest.raises(mrc.ConnectionLost):
                await within(second.recv())

    run(main())


def test_recv_under_random_time_limits_loses_no_message(run: Run) -> None:
    async def main() -> None:
        rng = random.Random(1)
        sizes = [rng.choice([0, 10, 3000]) for _ in range(300)]
        async with joined() as (one, two):

            async def send() -> None:
                for size in sizes:
                    await one.send(bytes(size))
                    await asyncio.sleep(rng.random() * 1e-3)

            sender = asyncio.ensure_future(send())
            got: list[int] = []
            buffer = bytearray(3000)
            while len(got) < len(sizes):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() * 1e-3):
                        if rng.random() < 0.5:
                            got.append(len(await two.recv()))
                        else:
                            got.append(await two.recv_into(buffer))
            await sender
            assert got == sizes

    run(main())


def test_a_cancelled_send_is_delivered_whole_or_not_at_all(run: Run) -> None:
    async def main() -> None:
        rng = random.Random(2)
        async with joined() as (one, two):
            received: list[bytes] = []

            async def read() -> None:
                async for message in two:
                    received.append(bytes(message))  # noqa: PERF401 - also what came before an end

            reader = asyncio.ensure_future(read())
            sent = []
            for index in range(100):
                data = bytes([index]) * rng.choice([10, 5000, 1 << 20])
                sent.append(data)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() * 3e-4):
                        await one.send(data)
            await one.send(b"end")
            await one.close()
            await within(reader)
            assert received[-1] == b"end"
            remaining = iter(sent)
            assert all(message in remaining for message in received[:-1])

    run(main())


def test_a_buffer_is_exported_until_its_message_has_arrived(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(max_queue=1 << 16)) as (one, two):
            data = bytearray(1 << 20)
            sending = asyncio.ensure_future(one.send(data))
            await asyncio.sleep(0.05)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            with pytest.raises(BufferError):
                data.extend(b"x")
            assert len(await within(two.recv())) == 1 << 20
            await one.send(b"")
            del sending
            gc.collect()
            data.extend(b"x")

    run(main())


def test_recv_into_takes_what_fits_and_leaves_what_does_not(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            buffer = bytearray(1 << 20)
            data = random.Random(3).randbytes(1 << 20)
            size, _ = await within(asyncio.gather(two.recv_into(buffer), one.send(data)))
            assert (size, bytes(buffer)) == (1 << 20, data)
            for length in (100, 100_000):
                sending = asyncio.ensure_future(one.send(data[:length]))
                with pytest.raises(mrc.MessageTooLarge):
                    await within(two.recv_into(bytearray(99)))
                target = array.array("H", bytes(length))
                assert await within(two.recv_into(target)) == length
                assert target.tobytes() == data[:length]
                await sending
            with pytest.raises(BufferError):
                await two.recv_into(bytes(10))

    run(main())


def test_a_receiver_that_does_not_read_stops_its_sender(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(max_queue=1 << 16)) as (one, two):
            done = 0

            async def send() -> None:
                nonlocal done
                for _ in range(200):
                    await one.send(bytes(10_000))
                    done += 1

            sender = asyncio.ensure_future(send())
            await asyncio.sleep(0.2)
            assert done <= (1 << 16) // 10_000
            for _ in range(200):
                await within(two.recv())
            await within(sender)

    run(main())


def test_post_send_waits_while_too_much_is_under_way(run: Run) -> None:
    async def main() -> None:
        config = mrc.Config(max_queue=1 << 16, max_inflight=300_000)
        async with joined(config) as (one, two):
            posted = [await one.post_send(bytes(100_000)) for _ in range(3)]
            waiting = asyncio.ensure_future(one.post_send(bytes(100_000)))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert not posted[0].done()
            await within(two.recv())
            await within(posted[0])
            await posted[0]
            last = await within(waiting)
            for _ in range(3):
                await within(two.recv())
            await within(last)

    run(main())


def test_a_completion_survives_who_awaits_it(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(max_queue=1 << 16)) as (one, two):
            completion = await one.post_send(bytes(1 << 20))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_wait(completion), 0.02)
            assert not completion.cancel()
            await within(two.recv())
            await within(completion)

    run(main())


async def _wait(completion: mrc.Completion) -> None:
    await completion


def test_only_one_recv_at_a_time(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            first = asyncio.ensure_future(two.recv())
            await asyncio.sleep(0)
            with pytest.raises(mrc.ConcurrencyError):
                await two.recv()
            with pytest.raises(mrc.ConcurrencyError):
                await two.recv_into(bytearray(1))
            await one.send(b"x")
            assert bytes(await within(first)) == b"x"

    run(main())


def test_one_sided_writes_land_and_tell(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            memory = bytearray(10_000)
            with two.register(memory) as region:
                await two.send(region.descriptor)
                remote = one.remote((await within(one.recv())).data)
                assert len(remote) == 10_000
                assert len(remote[100:][:50]) == 50
                await within(one.write(b"abc", remote[5:8], imm=9))
                message = await within(two.recv())
                assert (len(message), message.imm, bytes(memory[5:8])) == (0, 9, b"abc")
                await within(one.write(bytes(10_000), remote))
                assert memory == bytes(10_000)
                with pytest.raises(ValueError, match="do not fit"):
                    await one.write(b"abc", remote[:2])
                with pytest.raises(TypeError):
                    remote[5]  # type: ignore[index]

    run(main())


def test_a_write_to_a_revoked_region_is_refused(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            memory = bytearray(100)
            region = two.register(memory)
            remote = one.remote(region.descriptor)
            region.close()
            region.close()
            memory.extend(b"x")
            with pytest.raises(mrc.RemoteAccessError):
                await within(one.write(b"abc", remote))
            with pytest.raises(mrc.ConnectionLost) as caught:
                await within(one.recv())
            assert caught.value.reason == "remote access refused"

    run(main())


def test_wrong_arguments_are_refused(run: Run) -> None:
    async def main() -> None:
        async with joined() as (one, _):
            with pytest.raises(ValueError, match="imm"):
                await one.send(b"", imm=1 << 32)
            with pytest.raises(ValueError, match="contiguous"):
                await one.send(memoryview(bytes(10))[::2])
            with pytest.raises(TypeError):
                await one.send("text")
            with pytest.raises(BufferError):
                one.register(b"read-only")
            with pytest.raises(mrc.ProtocolError):
                one.remote(b"nothing")

    run(main())


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (_native.RETRY_EXCEEDED, "retries exceeded"),
        (_native.PEER_SILENT, "peer silent"),
        (_native.PEER_RESTARTED, "peer restarted"),
        (_native.PEER_CLOSED, "aborted"),
        (-18, "protocol error"),
    ],
)
def test_a_broken_queue_pair_says_why(run: Run, status: int, reason: str) -> None:
    async def main() -> None:
        async with joined() as (one, two):
            engine(one).cut = True
            sending = asyncio.ensure_future(one.send(b"x"))
            await asyncio.sleep(0)
            engine(one).break_qp(one._link.qp, status)
            with pytest.raises(mrc.ConnectionLost) as caught:
                await within(sending)
            assert caught.value.reason == reason
            assert caught.value.reason in mrc.ConnectionLost.REASONS
            told = f"queue pair {one._link.qp:#08x}, planes p0 up, p1 up"
            assert told in str(caught.value)
            assert one._link.peer_name in str(caught.value)
            two.abort()

    run(main())


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (_native.RETRY_EXCEEDED, "retries exceeded"),
        (_native.PEER_SILENT, "peer silent"),
        (-19, "protocol error"),
    ],
)
def test_the_peer_of_a_broken_queue_pair_hears_the_same_reason(
    run: Run, status: int, reason: str
) -> None:
    """Case A23: both sides."""

    async def main() -> None:
        async with joined() as (one, two):
            engine(one).break_qp(one._link.qp, status)
            for connection in (one, two):
                with pytest.raises(mrc.ConnectionLost) as caught:
                    await within(connection.recv())
                assert caught.value.reason == reason

    run(main())


def test_a_refused_write_is_told_as_that_even_when_the_peer_says_so_first(run: Run) -> None:
    """The refusal comes by the planes, the end of the peer by the control connection."""

    async def main() -> None:
        async with joined() as (one, two):
            engine(one).cut = True
            writing = asyncio.ensure_future(one.write(b"abc", one.remote(remote_of(two))))
            await asyncio.sleep(0)
            engine(two).break_qp(two._link.qp, _native.REMOTE_ACCESS)
            await asyncio.sleep(0.1)
            assert not writing.done()
            engine(one).tell("write", one._link.qp, tag_of(one), _native.REMOTE_ACCESS)
            engine(one).break_qp(one._link.qp, _native.REMOTE_ACCESS)
            with pytest.raises(mrc.RemoteAccessError):
                await within(writing)

    run(main())


def test_a_send_ends_as_lost_when_a_write_beside_it_was_refused(run: Run) -> None:
    """The core ends all that is under way with the status of the refusal."""

    async def main() -> None:
        async with joined() as (one, two):
            engine(one).cut = True
            sends = [asyncio.ensure_future(one.send(bytes(size))) for size in (10, 1 << 20)]
            await asyncio.sleep(0)
            for tag in list(one._link._pins):
                engine(one).tell("write", one._link.qp, tag, _native.REMOTE_ACCESS)
            engine(one).break_qp(one._link.qp, _native.REMOTE_ACCESS)
            for sending in sends:
                with pytest.raises(mrc.ConnectionLost, match="remote access refused"):
                    await within(sending)
            two.abort()

    run(main())


def test_a_peer_that_refused_and_says_no_more_is_an_end_in_time(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(crash_after=0.1)) as (one, two):
            engine(two).break_qp(two._link.qp, _native.REMOTE_ACCESS)
            with pytest.raises(mrc.ConnectionLost) as caught:
                await within(one.recv())
            assert caught.value.reason == "remote access refused"

    run(main())


def crash(connection: mrc.Connection) -> None:
    """What the peer of a process that was killed sees of it."""
    link = connection._link
    assert link.control is not None
    link.control.close()
    engine(connection).cut = True
    engine(connection).qps[link.qp].broken = True


def test_a_crash_is_told_from_a_restart(run: Run) -> None:
    async def main() -> None:
        config = mrc.Config(crash_after=0.1)
        async with mrc.listen("127.0.0.1", 0, config=config) as listener:
            one = await mrc.connect(f"127.0.0.1:{listener.port}", config=config)
            two = await listener.accept()
            engine(two).cut = True
            crash(one)
            with pytest.raises(mrc.ConnectionLost) as caught:
                await within(two.recv())
            assert caught.value.reason == "peer crashed"
            one.abort()

            one = await mrc.connect(f"127.0.0.1:{listener.port}", config=config)
            two = await listener.accept()
            engine(one).cut = True
            one._link.peer_incarnation += 1  # who listens there now is another
            crash(two)
            with pytest.raises(mrc.ConnectionLost) as caught:
                await within(one.recv())
            assert caught.value.reason == "peer restarted"
            two.abort()

    run(main())


def test_the_end_of_the_control_connection_alone_ends_nothing(run: Run) -> None:
    async def main() -> None:
        async with joined(mrc.Config(crash_after=0.1)) as (one, two):
            assert one._link.control is not None
            one._link.control.close()
            await asyncio.sleep(0.3)
            await one.send(b"still here")
            assert bytes(await within(two.recv())) == b"still here"

    run(main())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b""])
def test_another_protocol_on_the_port_is_a_clear_error(run: Run, answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(mrc.HandshakeError, match=f"{port}"):
                await mrc.connect(f"127.0.0.1:{port}")

    run(main())


def test_a_port_that_says_nothing_times_out(run: Run) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(mrc.ConnectTimeout, match="did not answer"):
                await mrc.connect(f"127.0.0.1:{port}", timeout=0.1)

    run(main())


def test_nobody_there_is_refused(run: Run) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            port = listener.port
        with pytest.raises(mrc.ConnectRefused):
            await mrc.connect(f"127.0.0.1:{port}")

    run(main())


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", b"MRC\n\x09\x01\0\0\0\0\0\0", b""])
def test_a_listener_survives_what_is_not_mrc(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(data)
            writer.write_eof()
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = await within(reader.read())
            assert (encode(Kind.REFUSE)[:6] in answer) == data.startswith(b"MRC")
            writer.close()
            one = await mrc.connect(f"127.0.0.1:{listener.port}")
            async with one, await listener.accept() as two:
                assert not two.closed

    run(main())


def test_planes_without_a_counterpart_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            mrc.listen("127.0.0.1", 0, planes=["a", "b", "c"]) as listener,
            mrc.connect(f"127.0.0.1:{listener.port}") as one,
        ):
            two = await listener.accept()
            assert [plane.name for plane in one.planes] == ["p0", "p1"]
            assert "2 planes here, 3 at the peer, 2 in common" in one.notices[0]
            assert "not used here: p2" in two.notices[0]
            assert [path.peer_name for path in one.paths()] == ["p0", "p1"]
            assert one.stats().mtu == 0

    run(main())


def test_no_plane_in_common_is_a_clear_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.establish.pair", lambda ours, theirs: [])

    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            with pytest.raises(mrc.HandshakeError, match="no plane in common"):
                await mrc.connect(f"127.0.0.1:{listener.port}")

    run(main())


def test_another_protocol_version_is_a_clear_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            monkeypatch.setattr("mrc.establish._check_version", _refuse_version)
            with pytest.raises(mrc.HandshakeError, match="version"):
                await mrc.connect(f"127.0.0.1:{listener.port}")

    run(main())


def _refuse_version(setup: Any) -> None:
    from mrc.establish import _Refused  # noqa: PLC0415

    raise _Refused("version", "no protocol version in common: 0b10 and 0b1")


def test_a_full_ring_only_delays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "ring", 3)

    async def main() -> None:
        async with joined() as (one, two):
            sends = [asyncio.ensure_future(one.send(b"%d" % index)) for index in range(50)]
            assert [bytes(await within(two.recv())) for _ in range(50)] == [
                b"%d" % index for index in range(50)
            ]
            await within(asyncio.gather(*sends))

    run(main())


def test_a_full_table_only_delays_the_set_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "refusals", 3)

    async def main() -> None:
        async with joined() as (one, two):
            await one.send(b"x")
            assert bytes(await within(two.recv())) == b"x"

    run(main())


def test_sixty_four_connections_share_an_endpoint(run: Run) -> None:
    async def main() -> None:
        async with mrc.Endpoint() as here, mrc.listen("127.0.0.1", 0) as listener:
            target = f"127.0.0.1:{listener.port}"
            ones = await within(asyncio.gather(*(here.connect(target) for _ in range(64))))
            twos = [await within(listener.accept()) for _ in range(64)]

            async def echo(connection: mrc.Connection) -> None:
                async for message in connection:
                    await connection.send(message.data)

            echoes = [asyncio.ensure_future(echo(two)) for two in twos]

            async def ask(index: int, one: mrc.Connection) -> None:
                for size in (10, 10_000):
                    data = bytes([index]) * size
                    _, answer = await asyncio.gather(one.send(data), one.recv())
                    assert bytes(answer) == data
                await one.close()

            await within(asyncio.gather(*(ask(i, one) for i, one in enumerate(ones))))
            await within(asyncio.gather(*echoes))

    run(main())


def test_nothing_is_left_after_many_connects(run: Run) -> None:
    async def main() -> tuple[int, int]:
        async with mrc.listen("127.0.0.1", 0, config=mrc.Config(linger=0)) as listener:

            async def once() -> None:
                async with mrc.connect(f"127.0.0.1:{listener.port}") as one:
                    two = await listener.accept()
                    await one.send(bytes(10_000))
                assert len([message async for message in two]) == 1

            await within(once())
            descriptors = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                await within(once())
            await asyncio.sleep(0.3)
            assert not listener.endpoint._hub.links
            assert not listener.endpoint._hub._peers
            return descriptors, len(os.listdir("/proc/self/fd"))

    before, after = run(main())
    assert after <= before
    assert FakeEngine.everybody == {}


def test_a_forgotten_connection_warns_and_aborts(run: Run) -> None:
    async def main() -> None:
        async with mrc.listen("127.0.0.1", 0) as listener:
            one = await mrc.connect(f"127.0.0.1:{listener.port}")
            two = await listener.accept()
            with pytest.warns(ResourceWarning, match=r"made at .*test_connection\.py"):
                del one
            gc.collect()
            with pytest.raises(mrc.ConnectionLost):
                await within(two.recv())

    run(main())


def test_only_documented_exceptions_are_public() -> None:
    raised = {name for name in mrc.__all__ if name in dir(mrc.errors)}
    assert raised == set(mrc.errors.__all__)
