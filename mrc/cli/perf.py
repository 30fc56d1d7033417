# SPDX-License-Identifier: Apache-2.0
"""mrc-perf: measures goodput, message rate and round trips between two hosts.

    client                                          server
    hello {protocol, version, mode, size, bidirectional, window} ->
                                               <-   ready
    throughput: messages of `size`, `window` of them at once, from the client or from both sides
    latency: one message there, one back, in turn
    end                                        ->   behind the client's last message
                                               <-   report {messages, bytes, seconds, cpu_s}

Control messages are JSON objects with the immediate CONTROL, as in a file transfer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mrc.cli.common import (
    DEFAULT_PORT,
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    add_listen_argument,
    close_timeout,
    config_from,
    describe,
    planes_from,
    positive_seconds,
    printable,
    ratio,
    run,
    say,
    size_in_bytes,
)
from mrc.cli.progress import table
from mrc.cli.traffic import PlaneTraffic, Traffic, planes_json
from mrc.cli.transfer import CONTROL, check_protocol
from mrc.errors import ConnectionClosed, ProtocolError

if TYPE_CHECKING:
    from mrc.connection import Connection

__all__ = ["main"]

_COMMAND: Final = "mrc-perf"
_PROTOCOL: Final = "mrc-perf"
_VERSION: Final = 1
_IN_FLIGHT: Final = 32 << 20
"""Bytes that the default window makes."""
_MOST_WINDOW: Final = 4096
_MOST_SIZE: Final = 1 << 30
_HELLO_TIMEOUT: Final = 10.0

_A = TypeVar("_A")
_B = TypeVar("_B")

_PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured: the client's hello.

    Attributes:
        latency: Round trips, instead of throughput.
        size: Of a message, bytes.
        window: Messages on their way at once.
        bidirectional: Both sides send.
    """

    latency: bool
    size: int
    window: int
    bidirectional: bool

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MOST_SIZE or not 1 <= self.window <= _MOST_WINDOW:
            raise ProtocolError(
                f"size {self.size} is more than {_MOST_SIZE}, or window {self.window} not "
                f"1..{_MOST_WINDOW}"
            )


async def _say(connection: Connection, name: str, **values: Any) -> None:
    await connection.send(json.dumps({"type": name, **values}).encode(), imm=CONTROL)


def _decode(data: bytes) -> dict[str, Any]:
    """Reads a control message; a complaint of the peer is raised.

    Raises:
        CommandError: It is one.
        ProtocolError: It is no control message.
    """
    try:
        value = json.loads(data[: 64 << 10])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProtocolError("a control message is not a JSON object")
    if value.get("type") == "failure":
        text = printable(str(value.get("message")))[:1000]
        raise CommandError(ExitCode.LOST, f"the peer says: {text}")
    return value


def _plan(value: dict[str, Any]) -> Plan:
    """The plan of a hello.

    Raises:
        ProtocolError: It is none.
    """
    if value.get("type") != "hello":
        raise ProtocolError("the peer did not begin with hello")
    check_protocol(value, _PROTOCOL, _VERSION)
    flags, numbers = ("latency", "bidirectional"), ("size", "window")
    if not all(type(value.get(name)) is bool for name in flags):
        raise ProtocolError(f"{flags} of hello are not booleans")
    if not all(type(value.get(name)) is int for name in numbers):
        raise ProtocolError(f"{numbers} of hello are not numbers")
    return Plan(**{name: value[name] for name in (*flags, *numbers)})


async def _expect(connection: Connection, kind: str) -> dict[str, Any]:
    message = await connection.recv()
    value = _decode(bytes(message.data)) if message.imm == CONTROL else {}
    if value.get("type") != kind:
        raise ProtocolError(f"the peer did not send {kind}")
    return value


class _Count:
    """Messages that came, and when the first and the last did."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.first = self.last = 0.0

    def add(self, size: int) -> None:
        self.last = time.monotonic()
        if not self.messages:
            self.first = self.last
        self.messages += 1
        self.bytes += size

    @property
    def seconds(self) -> float:
        return self.last - self.first


async def _pump(connection: Connection, plan: Plan, stop: asyncio.Event) -> tuple[int, float]:
    """Sends until told to stop; returns messages and seconds to the last acknowledgement."""
    data = bytes(plan.size)
    under_way: deque[Any] = deque()
    started = time.monotonic()
    messages = 0
    while not stop.is_set():
        if len(under_way) >= plan.window:
            await under_way.popleft()
        under_way.append(await connection.post_send(data))
        messages += 1
        if messages % plan.window == 0:
            await asyncio.sleep(0)  # so that `stop` and what arrives get their turn
    while under_way:
        await under_way.popleft()
    return messages, time.monotonic() - started


async def _together(first: Awaitable[_A], second: Awaitable[_B]) -> tuple[_A, _B]:
    """Both results; the first error ends the other."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(connection: Connection, count: _Count) -> dict[str, Any]:
    """Takes messages until a control message, which it returns."""
    while True:
        message = await connection.recv()
        if message.imm == CONTROL:
            return _decode(bytes(message.data))
        count.add(len(message))


# The server.


async def _answer(connection: Connection) -> None:
    """Serves one client.

    Raises:
        ProtocolError: It is none.
        ConnectionClosed: It went away.
    """
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT):
            plan = _plan(await _expect(connection, "hello"))
    except TimeoutError:
        raise ProtocolError(f"the peer said nothing for {_HELLO_TIMEOUT:.0f} s") from None
    await _say(connection, "ready")
    cpu = time.process_time()
    count = _Count()
    if plan.latency:
        last: dict[str, Any] = await _echo(connection, count)
    else:
        last = await _take_and_pump(connection, plan, count)
    if last.get("type") != "end":
        raise ProtocolError("the peer did not send end")
    await _say(
        connection,
        "report",
        messages=count.messages,
        bytes=count.bytes,
        seconds=count.seconds,
        cpu_s=time.process_time() - cpu,
    )


async def _take_and_pump(connection: Connection, plan: Plan, count: _Count) -> dict[str, Any]:
    """The server's part of throughput; returns the client's last control message."""
    stop = asyncio.Event()
    if not plan.bidirectional:
        return await _drain(connection, count)

    async def take() -> dict[str, Any]:
        last = await _drain(connection, count)
        stop.set()
        return last

    last, _ = await _together(take(), _pump(connection, plan, stop))
    return last


async def _echo(connection: Connection, count: _Count) -> dict[str, Any]:
    while True:
        message = await connection.recv()
        if message.imm == CONTROL:
            return _decode(bytes(message.data))
        count.add(len(message))
        await connection.post_send(message.data)


async def _answer_or_complain(connection: Connection) -> None:
    try:
        await _answer(connection)
    except ProtocolError as error:
        # As a file transfer says it (transfer.py), for it may be one that came here.
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(1):
                await _say(connection, "failure", kind="protocol", message=describe(error))
            await connection.close(timeout=close_timeout(failed=True))
        raise
    await connection.close()


async def _serve(arguments: argparse.Namespace, result: Result) -> None:
    import mrc  # noqa: PLC0415  (not for --help)

    result["clients"] = 0
    host, port = arguments.listen
    async with mrc.listen(
        host, port, planes=planes_from(arguments), config=config_from(arguments)
    ) as listener:
        named = ", ".join(plane.name for plane in listener.endpoint.planes())
        say(_COMMAND, f"planes: {named}; waiting on port {listener.port}")
        async for connection in listener:
            async with connection:
                try:
                    await _answer_or_complain(connection)
                except Exception as error:
                    if arguments.once:
                        raise
                    say(_COMMAND, f"{connection.peer}: {describe(error)}")
                result["clients"] += 1
            if arguments.once:
                return


# The client.


async def _throughput(
    connection: Connection, plan: Plan, duration: float, result: Result
) -> dict[str, Any]:
    """Fills the result with goodput; returns the server's report."""
    stop, count = asyncio.Event(), _Count()
    timer = asyncio.get_running_loop().call_later(duration, stop.set)

    async def outgoing() -> tuple[int, float]:
        sent = await _pump(connection, plan, stop)
        await _say(connection, "end")
        return sent

    try:
        (messages, seconds), report = await _together(outgoing(), _drain(connection, count))
    finally:
        timer.cancel()
    result["messages"], result["seconds"] = messages, round(seconds, 6)
    result["goodput_gbps"] = ratio(messages * plan.size * 8e-9, seconds)
    result["messages_per_s"] = ratio(messages, seconds, digits=1)
    if plan.bidirectional:
        result["goodput_reverse_gbps"] = ratio(count.bytes * 8e-9, count.seconds)
        result["messages_reverse_per_s"] = ratio(count.messages, count.seconds, digits=1)
    result["bytes"] = messages * plan.size + count.bytes
    return report


async def _latency(
    connection: Connection, plan: Plan, duration: float, result: Result
) -> dict[str, Any]:
    """Fills the result with round trips; returns the server's report."""
    data = bytes(plan.size)
    trips: list[float] = []
    started = time.perf_counter()
    now = started
    while now < started + duration:
        await connection.post_send(data)
        message = await connection.recv()
        if message.imm == CONTROL:
            raise ProtocolError(f"the peer sent {_decode(bytes(message.data)).get('type')}")
        before, now = now, time.perf_counter()
        trips.append(now - before)
    await _say(connection, "end")
    seconds = now - started
    result["messages"], result["seconds"] = len(trips), round(seconds, 6)
    result["goodput_gbps"] = ratio(len(trips) * plan.size * 8e-9, seconds)
    result["messages_per_s"] = ratio(len(trips), seconds, digits=1)
    result["rtt_us"] = percentiles(trips)
    result["bytes"] = 2 * len(trips) * plan.size
    return await _drain(connection, _Count())


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """The round trips that 50, 99 and 99.9 % are not above, in microseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(part * len(ordered)))] * 1e6, 1) if ordered else None
        for name, part in _PERCENTILES.items()
    }


def _cpu_per_gb(report: dict[str, Any], local: float, moved: int) -> dict[str, float | None]:
    """CPU seconds of either process for 10^9 bytes of messages, both ways together."""
    peer = report.get("cpu_s")
    known = isinstance(peer, int | float) and not isinstance(peer, bool)
    return {
        "local": ratio(local * 1e9, moved),
        "peer": ratio(float(peer or 0) * 1e9, moved) if known else None,
    }


async def _measure(arguments: argparse.Namespace, result: Result) -> None:
    import mrc  # noqa: PLC0415  (not for --help)

    plan = _plan_of(arguments)
    result.update(
        mode="latency" if plan.latency else "throughput",
        size_bytes=plan.size,
        window_messages=plan.window,
        bidirectional=plan.bidirectional,
        goodput_gbps=None,
        messages_per_s=None,
        rtt_us=percentiles(()),
        cpu_s_per_gb={"local": None, "peer": None},
        planes={},
        path_events=[],
    )
    async with mrc.connect(
        arguments.target, planes=planes_from(arguments), config=config_from(arguments)
    ) as connection:
        names = ", ".join(path.name for path in connection.paths())
        say(_COMMAND, f"planes: {names}")
        hello = {"protocol": _PROTOCOL, "version": _VERSION, **asdict(plan)}
        await _say(connection, "hello", **hello)
        await _expect(connection, "ready")
        run_it = _latency if plan.latency else _throughput
        traffic = Traffic(connection)
        cpu = time.process_time()
        try:
            async with traffic:
                report = await run_it(connection, plan, arguments.duration, result)
        finally:
            result["planes"] = planes_json(traffic.planes, rtt=True)
            result["path_events"] = list(traffic.events)
        if report.get("type") != "report":
            raise ProtocolError("the peer did not send report")
        used = time.process_time() - cpu
        result["cpu_s_per_gb"] = _cpu_per_gb(report, used, result["bytes"])
    if not arguments.json:
        print(_text(result, traffic.planes))


def _text(result: Result, planes: Sequence[PlaneTraffic]) -> str:
    """The result for people."""
    lines = [
        f"{result['mode']}, messages of {result['size_bytes']} bytes, {result['seconds']:.1f} s:"
        f" {result['goodput_gbps']} Gb/s, {result['messages_per_s']} messages/s"
    ]
    if result["bidirectional"]:
        lines.append(f"reverse: {result['goodput_reverse_gbps']} Gb/s")
    if result["mode"] == "latency":
        lines.append("round trip: " + ", ".join(f"{k} {v} us" for k, v in result["rtt_us"].items()))
    cpu = result["cpu_s_per_gb"]
    lines.append(f"CPU: {cpu['local']} s/GB here, {cpu['peer']} s/GB at the peer")
    head = ("plane", "bytes", "share", "retransmitted", "rtt us")
    shares = planes_json(planes)
    rows = [
        (
            row.name,
            f"{row.bytes:,}",
            f"{100 * shares[row.name]['share']:.1f} %",
            str(row.retransmitted),
            f"{row.rtt_us:.1f}",
        )
        for row in planes
    ]
    return "\n".join([*lines, table([head, *rows])])


# Both.


def _plan_of(arguments: argparse.Namespace) -> Plan:
    """What the arguments ask for.

    Raises:
        CommandError: They do not go together, or are out of range.
    """
    size = arguments.size
    if size is None:
        size = 1 if arguments.latency else 4 << 20
    window = arguments.window
    if window is None:
        window = 1 if arguments.latency else max(2, min(256, _IN_FLIGHT // max(1, size)))
    try:
        return Plan(
            latency=arguments.latency,
            size=size,
            window=window,
            bidirectional=arguments.bidirectional,
        )
    except ProtocolError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from None


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what does not go together.

    Raises:
        CommandError: It does not.
    """
    server = arguments.target == "server"
    clashes = {
        "--latency and --bidirectional": arguments.latency and arguments.bidirectional,
        "--latency and --window": arguments.latency and arguments.window is not None,
        "HOST and --once": not server and arguments.once,
        "HOST and --listen": not server and arguments.listen != (None, DEFAULT_PORT),
        "server and --size": server and arguments.size is not None,
        "server and --window": server and arguments.window is not None,
        "server and --latency": server and arguments.latency,
        "server and --bidirectional": server and arguments.bidirectional,
    }
    for what, applies in clashes.items():
        if applies:
            raise CommandError(ExitCode.USAGE, f"{what} do not go together")


async def _perf(arguments: argparse.Namespace, result: Result) -> None:
    _check(arguments)
    work = _serve if arguments.target == "server" else _measure
    await work(arguments, result)


def parser() -> Parser:
    """The arguments of mrc-perf."""
    made = Parser(_COMMAND, "Measures between two hosts; `mrc-perf server` runs on the other one.")
    made.add_argument("target", metavar="server|HOST[:PORT]", help="be the server, or where it is")
    made.add_argument(
        "--size", type=size_in_bytes, metavar="N[K|M|G]", help="of a message (4M; latency: 1)"
    )
    made.add_argument(
        "--duration",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="of the measurement (default 10)",
    )
    made.add_argument(
        "--window",
        type=int,
        metavar="N",
        help=f"messages on their way at once (default: {_IN_FLIGHT >> 20} MiB of them, 2..256)",
    )
    made.add_argument("--bidirectional", action="store_true", help="both sides send")
    made.add_argument("--latency", action="store_true", help="round trips of single messages")
    add_listen_argument(made)
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs mrc-perf; returns its exit code."""
    return run(parser(), _perf, argv)
