# SPDX-License-Identifier: Apache-2.0
"""mrc-perf: measures goodput, message rate and round trips between two hosts.

    client                                          server
    hello {protocol, version, latency, size, window, bidirectional, duration_s} ->
                                               <-   ready
    throughput: messages of `size`, `window` of them at once, from the client or from both sides
    latency: one message there, one back, in turn
    end                                        ->   behind the client's last message
                                               <-   report {messages, bytes, seconds, cpu_s}

Control messages are JSON objects with the immediate CONTROL, as in a file transfer.

The client ends near the duration, whatever the size: messages that have not begun are withdrawn,
and a connection on which those under way need much longer is aborted. The server, which knows the
duration, takes that as the end; its report is missing then.
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

from mrc.cli.choice import explain_planes
from mrc.cli.common import (
    CommandError,
    ExitCode,
    Parser,
    Result,
    add_common_arguments,
    add_deny_argument,
    add_listen_argument,
    close_timeout,
    connecting,
    describe,
    inform,
    listening,
    positive_seconds,
    printable,
    ratio,
    refuse_clashes,
    run,
    say,
    size_in_bytes,
    target,
    write_out,
)
from mrc.cli.intervals import Intervals, quantiles
from mrc.cli.progress import quantity, table
from mrc.cli.traffic import PlaneTraffic, Traffic, planes_json, teller
from mrc.cli.transfer import CONTROL, check_protocol
from mrc.control import DEFAULT_PORT
from mrc.errors import ConnectionClosed, ConnectionLost, ProtocolError

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
_MOST_DURATION: Final = 86400.0
_SERVER: Final = "server"
_HELLO_TIMEOUT: Final = 10.0
_DEFAULT_DURATION: Final = 10.0

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
        duration_s: How long, seconds.
    """

    latency: bool
    size: int
    window: int
    bidirectional: bool
    duration_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MOST_SIZE:
            raise ProtocolError(f"size {self.size} is not 0..{_MOST_SIZE} bytes")
        if not 1 <= self.window <= _MOST_WINDOW:
            raise ProtocolError(f"window {self.window} is not 1..{_MOST_WINDOW} messages")
        if not 0 < self.duration_s <= _MOST_DURATION:
            raise ProtocolError(f"a duration of {self.duration_s} s")


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
    if type(value.get("duration_s")) not in {int, float}:
        raise ProtocolError("duration_s of hello is no number")
    return Plan(**{name: value[name] for name in (*flags, *numbers, "duration_s")})


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


class _Sent:
    """Messages that the peer acknowledged, and how long that took."""

    def __init__(self) -> None:
        self.messages = 0
        self._started = self._last = time.monotonic()

    def add(self) -> None:
        self.messages += 1
        self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._last - self._started


async def _post(connection: Connection, plan: Plan, under_way: deque[Any], sent: _Sent) -> None:
    """Sends for ever, a window at once."""
    data = bytes(plan.size)
    posted = 0
    while True:
        if len(under_way) >= plan.window:
            await under_way[0]
            under_way.popleft()
            sent.add()
        under_way.append(await connection.post_send(data))
        posted += 1
        if posted % plan.window == 0:
            await asyncio.sleep(0)  # so that `stop` and what arrives get their turn


async def _pump(connection: Connection, plan: Plan, stop: asyncio.Event, sent: _Sent) -> None:
    """Sends until told to stop, then waits for the messages that have begun."""
    under_way: deque[Any] = deque()
    posting = asyncio.ensure_future(_post(connection, plan, under_way, sent))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({posting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if posting.done():
            await posting  # which has an error
    finally:
        for task in (posting, stopping):
            task.cancel()
        await asyncio.gather(posting, stopping, return_exceptions=True)
    while under_way and under_way[-1].cancel():
        under_way.pop()
    for completion in under_way:
        await completion
        sent.add()


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


async def _answer(connection: Connection, count: _Count) -> None:
    """Serves one client; counts what it sends.

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
    started, cpu = time.monotonic(), time.process_time()
    serve = _echo if plan.latency else _take_and_pump
    try:
        last = await serve(connection, plan, count)
    except ConnectionLost as error:
        if error.reason == "aborted" and time.monotonic() - started >= plan.duration_s:
            return  # the client's time was up within a message
        raise
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

    last, _ = await _together(take(), _pump(connection, plan, stop, _Sent()))
    return last


async def _echo(connection: Connection, _: Plan, count: _Count) -> dict[str, Any]:
    """The server's part of round trips; returns the client's last control message."""
    while True:
        message = await connection.recv()
        if message.imm == CONTROL:
            return _decode(bytes(message.data))
        count.add(len(message))
        await connection.post_send(message.data)


async def _answer_or_complain(connection: Connection, count: _Count) -> None:
    try:
        await _answer(connection, count)
    except ProtocolError as error:
        # As a file transfer says it (transfer.py), for it may be one that came here.
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(1):
                await _say(connection, "failure", kind="protocol", message=describe(error))
            await connection.close(timeout=close_timeout(failed=True))
        raise
    await connection.close()


async def _serve(arguments: argparse.Namespace, result: Result) -> None:
    result["clients"] = 0
    async with listening(arguments) as listener:
        named = ", ".join(plane.name for plane in listener.endpoint.planes())
        inform(arguments, f"planes: {named}; waiting on port {listener.port}")
        async for connection in listener:
            count = _Count()
            async with connection:
                try:
                    await _answer_or_complain(connection, count)
                except Exception as error:
                    if arguments.once:
                        raise
                    say(_COMMAND, f"{connection.peer}: {describe(error)}")
                else:
                    what = f"{count.messages:,} messages, {quantity(count.bytes)}"
                    inform(arguments, f"{connection.peer}: received {what}")
                result["clients"] += 1
            if arguments.once:
                return


# The client.


def _limit(plan: Plan) -> float:
    """When a measurement is cut off, seconds: the duration, and a moment for what is under way."""
    return 1.1 * plan.duration_s + 0.5


def _rates(
    messages: int, moved: int, seconds: float, intervals: Intervals, *, reverse: bool = False
) -> Result:
    """What one direction came to, as it stands in the JSON."""
    way = "_reverse" if reverse else ""
    return {
        f"messages{way}": messages,
        f"bytes{way}": moved,
        f"goodput{way}_gbps": ratio(moved * 8e-9, seconds),
        f"messages{way}_per_s": ratio(messages, seconds, digits=1),
        f"goodput{way}_interval_gbps": intervals.gbps(moved, received=reverse),
    }


async def _throughput(
    connection: Connection, plan: Plan, traffic: Traffic, result: Result
) -> dict[str, Any]:
    """Fills the result with goodput, also when it fails; returns the server's report.

    It is {} if the measurement was cut off.
    """
    stop, sent, count = asyncio.Event(), _Sent(), _Count()
    intervals = Intervals(traffic, plan.duration_s)
    started = time.monotonic()
    timer = asyncio.get_running_loop().call_later(plan.duration_s, stop.set)

    async def outgoing() -> None:
        async with intervals.running():
            await _pump(connection, plan, stop, sent)
        await _say(connection, "end")

    report: dict[str, Any] = {}
    ended = False
    try:
        async with asyncio.timeout(_limit(plan)):
            _, report = await _together(outgoing(), _drain(connection, count))
        ended = True
    except TimeoutError:
        traffic.sample()
        connection.abort()
        result["cut_off"] = True
    finally:
        timer.cancel()
        forward, reverse = sent.messages * plan.size, count.bytes
        times = (sent.seconds, count.seconds)
        if not ended:  # within messages: what the planes carried of them counts
            forward = sum(plane.bytes_sent for plane in traffic.planes)
            reverse = sum(plane.bytes_received for plane in traffic.planes)
            times = (time.monotonic() - started,) * 2
        result.update(seconds=round(times[0], 6), interval_s=intervals.every)
        result.update(_rates(sent.messages, forward, times[0], intervals))
        if plan.bidirectional:
            result.update(_rates(count.messages, reverse, times[1], intervals, reverse=True))
    return report


async def _latency(
    connection: Connection, plan: Plan, traffic: Traffic, result: Result
) -> dict[str, Any]:
    """Fills the result with round trips; returns the server's report, {} if it was cut off."""
    trips: list[float] = []
    report: dict[str, Any] = {}
    try:
        async with asyncio.timeout(_limit(plan)):
            await _make_trips(connection, plan, trips)
            await _say(connection, "end")
            report = await _drain(connection, _Count())
    except TimeoutError:
        traffic.sample()
        connection.abort()
        result["cut_off"] = True
    seconds, moved = sum(trips), len(trips) * plan.size
    result.update(
        messages=len(trips),
        bytes=moved,
        seconds=round(seconds, 6),
        goodput_gbps=ratio(moved * 8e-9, seconds),
        messages_per_s=ratio(len(trips), seconds, digits=1),
        rtt_us=percentiles(trips),
        messages_reverse=len(trips),
        bytes_reverse=moved,
    )
    return report


async def _make_trips(connection: Connection, plan: Plan, trips: list[float]) -> None:
    """Messages there and back until the time is over; adds the seconds that each took."""
    data = bytes(plan.size)
    now = time.perf_counter()
    end = now + plan.duration_s
    while now < end:
        await connection.post_send(data)
        message = await connection.recv()
        if message.imm == CONTROL:
            raise ProtocolError(f"the peer sent {_decode(bytes(message.data)).get('type')}")
        before, now = now, time.perf_counter()
        trips.append(now - before)


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """The round trips that 50, 99 and 99.9 % are not above, in microseconds."""
    return quantiles([round(trip * 1e6, 1) for trip in seconds], _PERCENTILES)


def _cpu_per_gb(report: dict[str, Any], local: float, moved: int) -> dict[str, float | None]:
    """CPU seconds of either process for 10^9 bytes of messages, both ways together."""
    peer = report.get("cpu_s")
    known = isinstance(peer, int | float) and not isinstance(peer, bool)
    return {
        "local": ratio(local * 1e9, moved),
        "peer": ratio(float(peer or 0) * 1e9, moved) if known else None,
    }


def _nothing_yet(plan: Plan) -> Result:
    """Every key of a result, so that one which is cut short has them too."""
    no_intervals = Intervals.nothing()
    return {
        "mode": "latency" if plan.latency else "throughput",
        "size_bytes": plan.size,
        "window_messages": plan.window,
        "bidirectional": plan.bidirectional,
        "duration_s": plan.duration_s,
        "cut_off": False,
        "seconds": 0.0,
        "messages": 0,
        "bytes": 0,
        "goodput_gbps": None,
        "messages_per_s": None,
        "interval_s": None,
        "goodput_interval_gbps": no_intervals,
        "messages_reverse": 0,
        "bytes_reverse": 0,
        "goodput_reverse_gbps": None,
        "messages_reverse_per_s": None,
        "goodput_reverse_interval_gbps": no_intervals,
        "rtt_us": percentiles(()),
        "cpu_s_per_gb": {"local": None, "peer": None},
        "planes": {},
        "path_events": [],
        "path_events_omitted": 0,
    }


async def _measure(arguments: argparse.Namespace, plan: Plan, result: Result) -> None:
    async with connecting(arguments) as connection:
        names = ", ".join(path.name for path in connection.paths())
        inform(arguments, f"planes: {names}")
        hello = {"protocol": _PROTOCOL, "version": _VERSION, **asdict(plan)}
        await _say(connection, "hello", **hello)
        await _expect(connection, "ready")
        run_it = _latency if plan.latency else _throughput
        traffic = Traffic(connection, teller(arguments))
        cpu = time.process_time()
        try:
            async with traffic:
                report = await run_it(connection, plan, traffic, result)
        finally:
            result.update(traffic.events_json(), planes=planes_json(traffic.planes, rtt=True))
        if report.get("type") != "report" and not result["cut_off"]:
            raise ProtocolError("the peer did not send report")
        used = time.process_time() - cpu
        moved = result["bytes"] + result["bytes_reverse"]
        result["cpu_s_per_gb"] = _cpu_per_gb(report, used, moved)
    if not arguments.json:
        write_out(_text(result, traffic.planes))


def _figure(value: float | None, unit: str, digits: int = 2) -> str:
    """A number for people; "-" where there is none."""
    return "-" if value is None else f"{value:,.{digits}f} {unit}"


def _direction(result: Result, reverse: str) -> str:
    """The throughput of one direction for people."""
    rate = _figure(result[f"goodput{reverse}_gbps"], "Gb/s")
    rate += f", {_figure(result[f'messages{reverse}_per_s'], 'messages/s', 0)}"
    intervals = result[f"goodput{reverse}_interval_gbps"]
    if intervals["min"] is None:
        return rate
    told = ", ".join(f"{name} {value:.2f}" for name, value in intervals.items())
    return f"{rate}; by intervals of {result['interval_s']:g} s: {told} Gb/s"


def _text(result: Result, planes: Sequence[PlaneTraffic]) -> str:
    """The result for people."""
    lines = [
        f"{result['mode']}, messages of {quantity(result['size_bytes'])}, "
        f"{result['seconds']:.1f} s: {_direction(result, '')}"
    ]
    if result["bidirectional"]:
        lines.append(f"reverse: {_direction(result, '_reverse')}")
    if result["mode"] == "latency":
        trips = (f"{name} {_figure(us, 'us', 1)}" for name, us in result["rtt_us"].items())
        lines.append("round trip: " + ", ".join(trips))
    if result["cut_off"]:
        counted = "not counted" if result["mode"] == "latency" else "counted as far as it came"
        lines.append(f"the time was up within a message, which is {counted}")
    cpu = result["cpu_s_per_gb"]
    known = {"here": cpu["local"], "at the peer": cpu["peer"]}
    told = [f"{_figure(value, 's/GB')} {where}" for where, value in known.items() if value]
    if told:
        lines.append("CPU: " + ", ".join(told))
    head = ("plane", "bytes", "share", "retransmitted", "rtt us")
    shares = planes_json(planes)
    rows = [
        (
            row.name,
            quantity(row.bytes),
            f"{100 * shares[row.name]['share']:.1f} %",
            f"{row.retransmitted:,}",
            f"{row.rtt_us:,.1f}",
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
            duration_s=_DEFAULT_DURATION if arguments.duration is None else arguments.duration,
        )
    except ProtocolError as error:
        raise CommandError(ExitCode.USAGE, f"--{error}") from None


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what does not go together.

    Raises:
        CommandError: It does not.
    """
    latency, server = arguments.latency, arguments.target == _SERVER
    of_the_client = {
        "--size": arguments.size is not None,
        "--duration": arguments.duration is not None,
        "--window": arguments.window is not None,
        "--latency": latency,
        "--bidirectional": arguments.bidirectional,
    }
    of_the_server = {
        "--once": arguments.once,
        "--listen": arguments.listen != (None, DEFAULT_PORT),
    }
    refuse_clashes(
        {
            "--latency and --bidirectional do not go together": latency and arguments.bidirectional,
            "--latency and --window do not go together": latency and arguments.window is not None,
            **{
                f"{flag} belongs to `mrc-perf HOST`: the server does what the client asks for": (
                    server and given
                )
                for flag, given in of_the_client.items()
            },
            **{
                f"{flag} belongs to `mrc-perf server`, not to the client": not server and given
                for flag, given in of_the_server.items()
            },
        }
    )


async def _perf(arguments: argparse.Namespace, result: Result) -> None:
    _check(arguments)
    server = arguments.target == _SERVER
    plan = None if server else _plan_of(arguments)
    if plan is not None:
        result.update(_nothing_yet(plan))
    await explain_planes(arguments, result)
    if arguments.dry_run:
        return
    if plan is None:
        await _serve(arguments, result)
    else:
        await _measure(arguments, plan, result)


def parser() -> Parser:
    """The arguments of mrc-perf."""
    made = Parser(_COMMAND, "Measures between two hosts; `mrc-perf server` runs on the other one.")
    made.add_argument(
        "target", type=target, metavar="server|HOST[:PORT]", help="be the server, or where it is"
    )
    made.add_argument(
        "--size", type=size_in_bytes, metavar="N[K|M|G]", help="of a message (4M; latency: 1)"
    )
    made.add_argument(
        "--duration",
        type=positive_seconds,
        metavar="SECONDS",
        help=f"of the measurement (default {_DEFAULT_DURATION:.0f})",
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
    add_deny_argument(made)
    add_common_arguments(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs mrc-perf; returns its exit code."""
    return run(parser(), _perf, argv)
