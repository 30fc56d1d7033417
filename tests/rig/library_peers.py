# SPDX-License-Identifier: Apache-2.0
"""The programs of test_library.py: `python library_peers.py LOOP SCENARIO TARGET [KEY=VALUE...]`.

A scenario is a coroutine `NAME_server` or `NAME_client`; what it returns is printed as one line of
JSON. A server prints "listening" once it is. KEY=VALUE are settings of `mrc.Config`, and `planes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import json
import mmap
import multiprocessing
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

import mrc
from mrc import verbs

SIZES = [0, 1, 1023, 1024, 1025, 2032, 2033, 4096, 65536, 1_000_001, 5 << 20, 33 << 20]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def options(words: list[str]) -> dict[str, Any]:
    """The keyword arguments of `connect` and `listen`."""
    values = dict(word.split("=", 1) for word in words)
    planes = values.pop("planes", None)
    config = mrc.Config(**{name: json.loads(value) for name, value in values.items()})
    return {"planes": planes.split(",") if planes else None, "config": config}


@contextlib.asynccontextmanager
async def listening(target: str, words: list[str]) -> Any:
    async with mrc.listen(None if target == "-" else target, **options(words)) as listener:
        say("listening")
        yield listener


def pattern(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


async def exchange(connection: mrc.Connection, seed: int) -> int:
    """Sends messages of all sizes, and receives the peer's at the same time; returns errors."""

    async def send() -> None:
        completions = [
            await connection.post_send(pattern(size, seed + index), imm=index)
            for index, size in enumerate(SIZES)
        ]
        for completion in completions:
            await completion

    async def receive() -> int:
        errors = 0
        for index, size in enumerate(SIZES):
            message = await connection.recv()
            expected = pattern(size, 1000 - seed + index)
            errors += message.data != expected or message.imm != index
        return errors

    _, errors = await asyncio.gather(send(), receive())
    return errors


async def sizes_server(target: str, words: list[str]) -> dict[str, Any]:
    async with listening(target, words) as listener:
        connection = await listener.accept()
        async with connection:
            errors = await exchange(connection, 0)
            async for _ in connection:
                errors += 1
        return {"errors": errors}


async def sizes_client(target: str, words: list[str]) -> dict[str, Any]:
    async with mrc.connect(target, **options(words)) as connection:
        errors = await exchange(connection, 1000)
        paths = [
            {"name": p.name, "state": p.state, "bytes_sent": p.bytes_sent}
            for p in connection.paths()
        ]
        return {"errors": errors, "paths": paths, "notices": connection.notices}


async def echo(connection: mrc.Connection) -> int:
    count = 0
    async with connection:
        async for message in connection:
            await connection.send(message.data, imm=message.imm)
            count += 1
    return count


async def echo_server(target: str, words: list[str]) -> dict[str, Any]:
    """Echoes on every connection until the first 64 are closed, or one is if `once`."""
    async with listening(target, words) as listener, asyncio.TaskGroup() as group:
        tasks = [group.create_task(echo(await listener.accept())) for _ in range(64)]
    return {"echoed": sum(task.result() for task in tasks)}


async def echo_client(target: str, words: list[str]) -> dict[str, Any]:
    settings = options(words)
    async with mrc.Endpoint(settings["planes"], settings["config"]) as endpoint:
        connections = await asyncio.gather(*(endpoint.connect(target) for _ in range(64)))

        async def ask(number: int, connection: mrc.Connection) -> int:
            rng = random.Random(number)
            errors = 0
            async with connection:
                for index in range(20):
                    data = rng.randbytes(rng.choice([0, 1, 100, 3000, 100_000]))
                    _, answer = await asyncio.gather(
                        connection.send(data, imm=index), connection.recv()
                    )
                    errors += answer.data != data or answer.imm != index
            return errors

        results = await asyncio.gather(*(ask(n, c) for n, c in enumerate(connections)))
        return {"errors": sum(results), "links": len(endpoint._hub.links)}


async def cancel_server(target: str, words: list[str]) -> dict[str, Any]:
    """Receives under random time limits; returns what each message was."""
    rng = random.Random(7)
    got: list[int] = []
    torn = 0
    async with listening(target, words) as listener, await listener.accept() as connection:
        while True:
            try:
                async with asyncio.timeout(rng.random() * 4e-3):
                    message = await connection.recv()
            except TimeoutError:
                continue
            except mrc.ConnectionClosedOK:
                break
            number = message.imm
            assert number is not None
            torn += message.data != bytes([number & 0xFF]) * len(message)
            got.append(number)
    return {"got": got, "torn": torn}


async def cancel_client(target: str, words: list[str]) -> dict[str, Any]:
    rng = random.Random(8)
    finished = []
    async with mrc.connect(target, **options(words)) as connection:
        for number in range(150):
            data = bytearray([number & 0xFF]) * rng.choice([1, 5000, 300_000, 8 << 20])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.choice([0, 1e-4, 1e-3, 5e-3, 1])):
                    await connection.send(data, imm=number)
                    finished.append(number)
    return {"finished": finished}


MESSAGES = 10_000


async def impatient_server(target: str, words: list[str]) -> dict[str, Any]:
    """Receives under random time limits of less than a millisecond."""
    rng = random.Random(13)
    late = wrong = number = 0
    buffer = bytearray(PART)
    async with listening(target, words) as listener, await listener.accept() as connection:
        while number < MESSAGES:
            try:
                async with asyncio.timeout(rng.random() * 1e-3):
                    if number % 3:
                        data = bytes(await connection.recv())
                    else:
                        data = bytes(buffer[: await connection.recv_into(buffer)])
            except TimeoutError:
                late += 1
            else:
                wrong += data != numbered(number)
                number += 1
    return {"wrong": wrong, "late": late}


def numbered(number: int) -> bytes:
    """A message that says which it is; one in 100 is a large one."""
    return b"%d " % number * (5000 if number % 100 == 0 else 1)


async def impatient_client(target: str, words: list[str]) -> dict[str, Any]:
    """Sends in spurts, with pauses that are longer than the receiver's patience."""
    async with mrc.connect(target, **options(words)) as connection:
        for number in range(MESSAGES):
            await connection.post_send(numbered(number))
            if number % 20 == 0:
                await asyncio.sleep(0.001)
    return {}


async def wait_server(target: str, words: list[str]) -> dict[str, Any]:
    """Accepts one connection, and tells how it ends."""
    async with listening(target, words) as listener:
        connection = await listener.accept()
        return await end_of(connection)


async def end_of(connection: mrc.Connection) -> dict[str, Any]:
    say("connected")
    count = 0
    start = time.monotonic()
    try:
        while True:
            await connection.recv()
            count += 1
            start = time.monotonic()
    except mrc.ConnectionClosedOK:
        reason = "closed"
    except mrc.ConnectionLost as error:
        reason = error.reason
    return {"reason": reason, "count": count, "seconds": time.monotonic() - start}


async def wait_client(target: str, words: list[str]) -> dict[str, Any]:
    """Connects, and tells how that or the connection ends."""
    try:
        connection = await mrc.connect(target, timeout=5, **options(words))
    except mrc.MRCError as error:
        return {"error": type(error).__name__, "text": str(error)}
    await connection.send(b"hello")
    return await end_of(connection)


async def talk_client(target: str, words: list[str]) -> dict[str, Any]:
    """Connects, sends without end, and tells how it ends."""
    connection = await mrc.connect(target, timeout=5, **options(words))
    say("connected")
    try:
        while True:
            await connection.send(bytes(100_000))
            await asyncio.sleep(0.01)
    except mrc.ConnectionLost as error:
        return {"reason": error.reason}


async def events_client(target: str, words: list[str]) -> dict[str, Any]:
    """The first events of a connection, one a plane."""
    async with mrc.connect(target, **options(words)) as connection:
        async with asyncio.timeout(10):
            events = connection.events()
            first = [await anext(events) for _ in connection.paths()]
        return {"events": [[type(event).__name__, event.plane] for event in first]}


async def close_client(target: str, words: list[str]) -> dict[str, Any]:
    connection = await mrc.connect(target, **options(words))
    for _ in range(10):
        await connection.post_send(bytes(100_000))
    await asyncio.gather(connection.close(), connection.close())
    connection.abort()
    return {"closed": connection.closed}


async def abort_client(target: str, words: list[str]) -> dict[str, Any]:
    connection = await mrc.connect(target, **options(words))
    await connection.send(b"hello")
    connection.abort()
    return {"closed": connection.closed}


async def sink_server(target: str, words: list[str]) -> dict[str, Any]:
    """Reads nothing for a while, then everything."""
    digest = hashlib.sha256()
    async with listening(target, words) as listener, await listener.accept() as connection:
        await asyncio.sleep(1.0)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async for message in connection:
            digest.update(message.data)
    return {"digest": digest.hexdigest(), "rss_kib": held}


async def sink_client(target: str, words: list[str]) -> dict[str, Any]:
    digest = hashlib.sha256()
    sent_early = 0
    rng = random.Random(9)
    start = time.monotonic()
    async with mrc.connect(target, **options(words)) as connection:
        for _ in range(2000):
            data = rng.randbytes(65536)
            digest.update(data)
            await connection.send(data)
            if time.monotonic() - start < 0.8:
                sent_early += len(data)
    return {"digest": digest.hexdigest(), "sent_early": sent_early}


async def write_server(target: str, words: list[str]) -> dict[str, Any]:
    """Lends memory, then revokes it."""
    memory = bytearray(3 << 20)
    async with listening(target, words) as listener:
        connection = await listener.accept()
        with connection.register(memory) as region:
            await connection.send(region.descriptor)
            message = await connection.recv()
            digest = hashlib.sha256(memory).hexdigest()
        await connection.send(b"revoked")
        end = await end_of(connection)
        return {"imm": message.imm, "size": len(message), "digest": digest, **end}


async def write_client(target: str, words: list[str]) -> dict[str, Any]:
    data = pattern(3 << 20, 5)
    connection = await mrc.connect(target, **options(words))
    remote = connection.remote((await connection.recv()).data)
    half = len(remote) // 2
    await connection.write(data[:half], remote[:half])
    await connection.write(data[half:], remote[half:], imm=77)
    await connection.recv()
    try:
        await connection.write(data[:10], remote)
    except mrc.RemoteAccessError:
        error = "RemoteAccessError"
    else:
        error = ""
    connection.abort()
    return {"digest": hashlib.sha256(data).hexdigest(), "error": error}


async def empty_server(target: str, words: list[str]) -> dict[str, Any]:
    async with listening(target, words) as listener, await listener.accept() as connection:
        with (
            connection.register(bytearray(0)) as nothing,
            connection.register(bytearray(b"untouched")) as region,
        ):
            await connection.send(nothing.descriptor)
            await connection.send(region.descriptor)
            got = [[len(message), message.imm] async for message in connection]
        return {"got": got}


async def empty_client(target: str, words: list[str]) -> dict[str, Any]:
    """Sends and writes nothing in every way there is."""
    async with mrc.connect(target, **options(words)) as connection:
        nothing = connection.remote((await connection.recv()).data)
        remote = connection.remote((await connection.recv()).data)
        await connection.send(b"")
        await connection.send(b"", imm=7)
        await connection.write(b"", nothing)
        await connection.write(b"", remote[0:0])
        await connection.write(b"", remote[9:9], imm=8)
        await connection.write(b"", nothing, imm=9)
        await connection.send(bytearray(), imm=0)
        return {"sizes": [len(nothing), len(remote)]}


HUGE = (1 << 32) + 5
WINDOW = 4099 * mmap.PAGESIZE
"""Bytes of memory behind a huge buffer. Its number of pages is prime: no power of two is a multiple
of it, so what lands 2**31 or 2**32 bytes away from its place is seen."""


def huge_buffer() -> Any:
    """HUGE bytes of address space that show one small file again and again."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = -(-HUGE // WINDOW) * WINDOW
    base = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    file = os.memfd_create("window")
    os.ftruncate(file, WINDOW)
    fixed = mmap.MAP_SHARED | 0x10  # MAP_FIXED
    for start in range(base, base + size, WINDOW):
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        assert libc.mmap(start, WINDOW, rights, fixed, file, 0) == start
    os.close(file)
    return memoryview((ctypes.c_char * size).from_address(base)).cast("B")[:HUGE]


async def huge_server(target: str, words: list[str]) -> dict[str, Any]:
    buffer = huge_buffer()
    async with listening(target, words) as listener, await listener.accept() as connection:
        size = await connection.recv_into(buffer)
        behind = bytes(await connection.recv())
        is_all = connection.stats().bytes_received >= HUGE
    is_right = bytes(buffer[:WINDOW]) == pattern(WINDOW, 14)
    return {"size": size, "right": is_all and is_right, "behind": behind.decode()}


async def huge_client(target: str, words: list[str]) -> dict[str, Any]:
    buffer = huge_buffer()
    buffer[:WINDOW] = pattern(WINDOW, 14)
    async with mrc.connect(target, **options(words)) as connection:
        await connection.send(buffer)
        await connection.send(b"behind")
    return {}


async def leave_client(target: str, words: list[str]) -> dict[str, Any]:
    """Ends the program with a connection that somebody still holds."""
    connection = globals()["held"] = await mrc.connect(target, **options(words))
    await connection.send(b"hello")
    return {"left": True}


ROUNDS = 150
OVERWRITES = 80
REVOCATIONS = 8


async def notify_server(target: str, words: list[str]) -> dict[str, Any]:
    """Looks at the memory as soon as an immediate says that it is written."""
    memory = bytearray(1 << 18)
    early = 0
    async with listening(target, words) as listener, await listener.accept() as connection:
        with connection.register(memory) as region:
            await connection.send(region.descriptor)
            for number in range(ROUNDS):
                message = await connection.recv()
                early += memory.count(number) != len(memory) or message.imm != number
                await connection.send(b"next")
    return {"early": early}


async def notify_client(target: str, words: list[str]) -> dict[str, Any]:
    async with mrc.connect(target, **options(words)) as connection:
        remote = connection.remote((await connection.recv()).data)
        for number in range(ROUNDS):
            await connection.write(bytes([number]) * len(remote), remote, imm=number)
            await connection.recv()
        shares = {path.name: path.bytes_sent for path in connection.paths()}
    return {"shares": shares}


PART = 1 << 17


async def overwrite_server(target: str, words: list[str]) -> dict[str, Any]:
    """Looks, behind each round's immediate, at what the writes before it have left."""
    memory = bytearray(3 * PART)
    torn = landed = 0
    async with listening(target, words) as listener, await listener.accept() as connection:
        with connection.register(memory) as region:
            await connection.send(region.descriptor)
            async for message in connection:
                value = message.imm
                counts = [memory.count(value, at, at + PART) for at in range(0, 3 * PART, PART)]
                torn += counts not in ([PART, 0, PART], [PART, PART, PART])
                torn += memory.count(0) != 3 * PART - sum(counts)
                landed += counts[1] > 0
                memory[:] = bytes(3 * PART)
                await connection.send(b"next")
    return {"torn": torn, "landed": landed}


async def overwrite_client(target: str, words: list[str]) -> dict[str, Any]:
    """Three writes a round, the second cancelled at a random time; then their source is reused."""
    rng = random.Random(11)
    finished = 0
    source = bytearray(PART)
    async with mrc.connect(target, **options(words)) as connection:
        remote = connection.remote((await connection.recv()).data)
        for number in range(1, 1 + OVERWRITES):
            source[:] = bytes([number]) * PART
            first = asyncio.ensure_future(connection.write(source, remote))
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.random() * 0.01):
                    await connection.write(source, remote[PART:])
                    finished += 1
            await connection.write(source, remote[2 * PART :], imm=number)
            await first
            source.append(0)  # nothing holds it any more
            source[:] = bytes(PART)
            await connection.recv()
    return {"finished": finished}


async def revoke_server(target: str, words: list[str]) -> dict[str, Any]:
    """Revokes what its peers are writing to, and looks whether anything is written later."""
    rng = random.Random(12)
    before = after = 0
    reasons = set()
    async with listening(target, words) as listener:
        for _ in range(REVOCATIONS):
            connection = await listener.accept()
            memory = bytearray(4 * PART)
            with connection.register(memory) as region:
                await connection.send(region.descriptor)
                await connection.recv()
                await asyncio.sleep(rng.random() * 0.02)
            seen = bytes(memory)
            memory.append(0)  # nothing holds it any more
            reasons.add((await end_of(connection))["reason"])
            await asyncio.sleep(0.05)
            before += max(seen) > 0
            after += memory[:-1] != seen
    return {"written": before, "changed": after, "reasons": sorted(reasons)}


async def revoke_client(target: str, words: list[str]) -> dict[str, Any]:
    """Writes without end, several at once, until that is refused; tells how they ended."""
    first, reasons = set(), set()
    for _ in range(REVOCATIONS):
        connection = await mrc.connect(target, **options(words))
        remote = connection.remote((await connection.recv()).data)
        await connection.write(b"begun", remote, imm=0)
        value = 0
        errors: list[BaseException] = []
        while not errors:
            value = value % 255 + 1
            data = bytes([value]) * PART
            writes = [connection.write(data, remote[part * PART :]) for part in range(4)]
            results = await asyncio.gather(*writes, return_exceptions=True)
            errors = [result for result in results if result is not None]
        first.add(type(errors[0]).__name__)
        reasons |= {error.reason for error in errors if isinstance(error, mrc.ConnectionLost)}
    return {"first": sorted(first), "reasons": sorted(reasons)}


async def fork_server(target: str, words: list[str]) -> dict[str, Any]:
    """The messages of two connections."""
    async with listening(target, words) as listener:
        connections = [await listener.accept() for _ in range(2)]
        return {"got": [[bytes(m).decode() async for m in peer] for peer in connections]}


async def raised_by(awaitable: Awaitable[Any]) -> str:
    """The name of the exception; a hang is one too."""
    try:
        await asyncio.wait_for(awaitable, 5)
    except Exception as error:
        return type(error).__name__
    return ""


async def use_after_fork(connection: mrc.Connection, listener: mrc.Listener, target: str) -> int:
    """In the child: 42 if all that was inherited refuses to work, and what is made anew works."""
    endpoint = connection.endpoint
    remote = mrc.RemoteRegion(key=1, va=1, size=1)
    raised = [
        await raised_by(awaitable)
        for awaitable in (
            *(connection.send(b"child"), connection.post_send(b"child"), connection.recv()),
            *(connection.recv_into(bytearray(1)), connection.write(b"x", remote)),
            *(anext(connection.events()), listener.accept(), endpoint.start()),
            *(endpoint.connect(target)._connect(), endpoint.listen("::", 0).start()),
        )
    ]
    calls = (connection.stats, connection.paths, endpoint.planes, endpoint.counters)
    raised += [await raised_by(asyncio.to_thread(call)) for call in calls]
    await connection.close()
    connection.abort()
    await listener.close()
    await endpoint.close()
    async with mrc.connect(target) as own:
        await own.send(b"child")
    return 42 if set(raised) == {"AfterForkError"} else 1


def in_child(way: str, use: Callable[[], int]) -> int:
    """The exit code of a child that was made this way, and did this and no more."""
    if way == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(use()))
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode
    child = os.fork()
    if child == 0:
        try:
            os._exit(use())
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def fork_client(target: str, words: list[str]) -> dict[str, Any]:
    """Forks with everything open: the child must fail at once, the parent must not notice."""
    way, *words = words
    async with (
        mrc.Endpoint() as endpoint,
        endpoint.listen("::", 0) as listener,
        endpoint.connect(target) as connection,
    ):
        code = in_child(way, lambda: asyncio.run(use_after_fork(connection, listener, target)))
        await connection.send(b"parent")
    return {"child": code}


CONNECTS = 200


async def connects_server(target: str, words: list[str]) -> dict[str, Any]:
    before = 0
    async with listening(target, words) as listener:
        for number in range(CONNECTS):
            async with await listener.accept() as connection:
                async for message in connection:
                    assert len(message) == number * 37
            if number == 20:
                before = len(os.listdir("/proc/self/fd"))
        await asyncio.sleep(0.1)
        after = len(os.listdir("/proc/self/fd"))
        links = len(listener.endpoint._hub.links)
    return {"descriptors_before": before, "descriptors_after": after, "links": links}


async def connects_client(target: str, words: list[str]) -> dict[str, Any]:
    settings = options(words)
    async with mrc.Endpoint(settings["planes"], settings["config"]) as endpoint:
        for number in range(CONNECTS):
            async with endpoint.connect(target) as connection:
                await connection.send(bytes(number * 37))
    return {"connects": CONNECTS}


ECHOES = 500


def use_verbs_after_fork(context: verbs.Context, qp: verbs.QP) -> int:
    """In the child: 42 if everything refuses to work."""
    remote = verbs.RemoteRegion(key=1, va=1, size=1)
    refused = 0
    calls: list[Callable[[], Any]] = [
        *(context.poll, context.create_qp, lambda: context.register(bytearray(1))),
        *(qp.post_receive, lambda: qp.post_write(b"x", remote), qp.stats),
    ]
    for call in calls:
        try:
            call()
        except mrc.AfterForkError:
            refused += 1
    context.close()
    return 42 if refused == len(calls) else 1


def echo_by_verbs(sock: socket.socket, *, first: bool) -> dict[str, Any]:
    """Bounces one byte to and fro by writes with immediate."""
    with sock, verbs.Context() as context:
        qp = context.create_qp()
        qp.connect(verbs.exchange(sock, qp.attributes))
        memory = bytearray(64)
        region = context.register(memory)
        remote = verbs.RemoteRegion.from_descriptor(verbs.exchange(sock, region.descriptor))
        qp.post_receive(32)
        verbs.exchange(sock, b"ready")
        assert in_child("fork", lambda: use_verbs_after_fork(context, qp)) == 42
        received = written = 0
        if first:
            qp.post_write(b"x", remote[:1], imm=0)
        while received < ECHOES or written < ECHOES:
            for event in context.poll(5.0):
                assert event.status == 0
                written += event.kind == "write"
                if event.kind != "receive":
                    continue
                assert (event.imm, memory[0]) == (received, ord("x"))
                received += 1
                qp.post_receive(1)
                if not first or received < ECHOES:
                    qp.post_write(b"x", remote[:1], imm=received - (not first))
        verbs.exchange(sock, b"done")
    return {"echoed": received}


async def verbs_server(target: str, words: list[str]) -> dict[str, Any]:
    with socket.create_server(("::", 4791), family=socket.AF_INET6) as server:
        say("listening")
        return echo_by_verbs(server.accept()[0], first=False)


async def verbs_client(target: str, words: list[str]) -> dict[str, Any]:
    sock = socket.create_connection((target.strip("[]"), 4791), timeout=10)
    return echo_by_verbs(sock, first=True)


def main() -> None:
    loop, scenario, target, *words = sys.argv[1:]
    run = uvloop.run if loop == "uvloop" else asyncio.run
    say(json.dumps(run(globals()[scenario](target, words))))


if __name__ == "__main__":
    main()
