# SPDX-License-Identifier: Apache-2.0
"""The commands without a network: arguments, JSON, exit codes, measurements, what people see."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cli_pipes import Pipe, pipes

from mrc.cli import common, perf, progress, recv, send, transfer
from mrc.cli.common import ExitCode
from mrc.cli.intervals import Intervals
from mrc.cli.progress import Counter
from mrc.cli.traffic import PlaneTraffic, Traffic, planes_json
from mrc.connection import Connection
from mrc.errors import (
    CapabilityError,
    ConfigError,
    ConnectionClosedOK,
    ConnectionLost,
    ConnectRefused,
    ConnectTimeout,
    HandshakeError,
    ProtocolError,
)
from mrc.events import PathBad, PlaneLost, PlaneRecovered

MAINS = {"mrc-send": send.main, "mrc-recv": recv.main, "mrc-perf": perf.main}


# mrc-perf.


@pytest.mark.parametrize("words", [[], ["--bidirectional"], ["--latency"]])
def test_both_sides_of_a_measurement_agree(words: list[str]) -> None:
    arguments = perf.parser().parse_args(["host", "--size", "1K", "--duration", "0.1", *words])
    plan = perf._plan_of(arguments)

    async def both() -> dict[str, Any]:
        ours, theirs = pipes()
        result: dict[str, Any] = {}
        work = perf._latency if plan.latency else perf._throughput

        async def client() -> dict[str, Any]:
            await perf._say(ours, "hello", protocol="mrc-perf", version=1, **asdict(plan))
            await perf._expect(ours, "ready")
            report = await work(ours, plan, Traffic(ours), result)
            assert report["messages"] == result["messages"] > 0
            return report

        report, _ = await asyncio.gather(client(), perf._answer(theirs, perf._Count()))
        result["cpu_s_per_gb"] = perf._cpu_per_gb(report, 0.5, result["bytes"])
        return perf._nothing_yet(plan) | result

    result = asyncio.run(both())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["goodput_gbps"] > 0
    assert bool(result["goodput_reverse_gbps"]) == plan.bidirectional
    assert result["cpu_s_per_gb"]["local"] > 0
    if plan.latency:
        trips = result["rtt_us"]
        assert 0 < trips["p50"] <= trips["p99"] <= trips["p999"]


class Stuck(Pipe):
    """Takes messages and never acknowledges one."""

    async def post_send(self, data: Any, *, imm: int | None = None) -> Any:
        class Begun:
            def __await__(self) -> Any:
                return asyncio.get_running_loop().create_future().__await__()

            def cancel(self) -> bool:
                return False

        return Begun()


@pytest.mark.parametrize("words", [[], ["--bidirectional"], ["--latency"]])
def test_a_measurement_that_cannot_end_in_time_is_cut_off_and_has_every_key(
    words: list[str],
) -> None:
    words = ["host", "--size", "1G", "--duration", "0.1", *words]
    plan = perf._plan_of(perf.parser().parse_args(words))
    connection = Stuck()
    connection.other = Pipe()

    async def measure() -> dict[str, Any]:
        result = perf._nothing_yet(plan)
        work = perf._latency if plan.latency else perf._throughput
        client = cast(Connection, connection)
        report = await asyncio.wait_for(work(client, plan, Traffic(client), result), 30)
        result["cpu_s_per_gb"] = perf._cpu_per_gb(report, 1.0, result["bytes"])
        return result

    result = asyncio.run(measure())
    assert result["cut_off"]
    assert connection.closed
    assert result.keys() == perf._nothing_yet(plan).keys()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    text = perf._text(result, ())
    assert "the time was up" in text
    assert "None" not in text
    assert "nan" not in text


def test_a_figure_that_is_missing_is_not_printed() -> None:
    plan = perf._plan_of(perf.parser().parse_args(["host"]))
    result = perf._nothing_yet(plan) | {"cpu_s_per_gb": {"local": 0.5, "peer": None}}
    assert "CPU: 0.50 s/GB here\n" in perf._text(result, ())


def test_percentiles_of_nothing_are_null_and_of_one_are_it() -> None:
    assert perf.percentiles([]) == {"p50": None, "p99": None, "p999": None}
    assert perf.percentiles([1e-3]) == {"p50": 1000.0, "p99": 1000.0, "p999": 1000.0}
    assert perf.percentiles([k / 1e6 for k in range(1000)])["p99"] == 990.0


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"type": "hello"},
        {"type": "hello", "protocol": "mrc-transfer", "version": 1},
        {"type": "hello", "protocol": "mrc-perf", "version": 2},
        {"type": "hello", "protocol": "mrc-perf", "version": 1, "latency": 1},
    ],
)
def test_a_hello_that_is_none_of_ours_is_refused(hello: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        perf._plan(hello)


# Arguments, JSON, exit codes.


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("mrc-send", [], "required"),
        ("mrc-send", ["only"], "required"),
        ("mrc-send", ["-", "-", "host"], "named twice"),
        ("mrc-send", ["-", "host", "--mtu", "1000"], "--mtu"),
        ("mrc-send", ["-", "host", "--planes", ","], "--planes"),
        ("mrc-send", ["-", "host", "--udp-port", "0"], "udp_port"),
        ("mrc-send", ["-", "host", "--timeout", "nan"], "--timeout"),
        ("mrc-send", ["/", "host"], "empty"),
        ("mrc-send", ["", "host"], "'' names nothing"),
        ("mrc-recv", ["--discard", "dir"], "--discard keeps nothing"),
        ("mrc-recv", ["--resume", "--overwrite"], "--resume and --overwrite"),
        ("mrc-recv", ["-"], "--json and -"),
        ("mrc-recv", ["-", "--resume"], "needs a directory, not -"),
        ("mrc-recv", ["--discard", "--overwrite"], "needs a directory, not --discard"),
        ("mrc-recv", ["--listen", "1:2:3:x"], "--listen"),
        ("mrc-perf", ["host", "--latency", "--bidirectional"], "--latency and --bidirectional"),
        ("mrc-perf", ["server", "--size", "1"], "--size belongs to `mrc-perf HOST`"),
        ("mrc-perf", ["server", "--duration", "1"], "--duration belongs to `mrc-perf HOST`"),
        ("mrc-perf", ["server", "--window", "1"], "--window belongs to `mrc-perf HOST`"),
        ("mrc-perf", ["server", "--latency"], "--latency belongs to `mrc-perf HOST`"),
        ("mrc-perf", ["server", "--bidirectional"], "--bidirectional belongs to `mrc-perf HOST`"),
        ("mrc-perf", ["host", "--once"], "--once belongs to `mrc-perf server`"),
        ("mrc-perf", ["host", "--listen", ":7"], "--listen belongs to `mrc-perf server`"),
        ("mrc-send", ["f", "fd00::2:99999"], "with a port it is [fd00::2]:99999"),
        ("mrc-recv", ["--listen", "fd00::2:99999"], "with a port it is [fd00::2]:99999"),
        ("mrc-perf", ["host:port"], "'host:port' is not HOST"),
        ("mrc-perf", ["host", "--size", "1X"], "--size"),
        ("mrc-perf", ["host", "--size", "2G"], "--size 2147483648 is not 0..1073741824 bytes"),
        ("mrc-perf", ["host", "--window", "0"], "--window 0 is not 1..4096 messages"),
        ("mrc-perf", ["host", "--dur", "1"], "unrecognized"),
    ],
)
def test_a_usage_error_exits_2_with_one_line_and_one_json_object(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS[command]([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["command"], result["exit_code"]) == (command, 2)
    assert message in result["error"]
    assert err == f"{command}: {result['error']}\n"


def test_a_missing_file_exits_6_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert send.main(["/nowhere/f", "host", "--json"]) == 6
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "/nowhere/f: No such file or directory"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CapabilityError("say setcap"), 77),
        (ConfigError("planes: x"), 2),
        (ConnectTimeout("x"), 3),
        (ConnectRefused("x"), 3),
        (HandshakeError("x"), 3),
        (ConnectionLost("peer silent"), 4),
        (ConnectionClosedOK("x"), 4),
        (ProtocolError("x"), 4),
        (transfer.PeerFailed(transfer.Failure(kind="io", message="x")), 4),
        (transfer.PeerFailed(transfer.Failure(kind="integrity", message="x")), 5),
        (OSError(28, "No space left on device"), 6),
        (RuntimeError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_every_error_has_its_exit_code_one_line_and_valid_json(
    error: Exception, code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(arguments: argparse.Namespace, result: common.Result) -> None:
        result["bytes"] = 7
        raise error

    parser = common.Parser("mrc-x", "")
    common.add_common_arguments(parser)
    assert common.run(parser, work, words) == code
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert err.startswith("mrc-x: ")
    if words:
        result = json.loads(out)
        assert (result["exit_code"], result["bytes"]) == (code, 7)
        assert result["error"]
    else:
        assert out == ""


INTERRUPTED = """
import asyncio, os, signal, sys
from mrc.cli import common
async def work(arguments, result):
    result["bytes"] = 7
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        raise ConnectionError("met while cleaning up")
parser = common.Parser("mrc-x", "")
common.add_common_arguments(parser)
sys.exit(common.run(parser, work, ["--json"]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_with_its_code_and_valid_json(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["bytes"]) == (code, 7)
    assert "Traceback" not in done.stderr


def test_a_reader_of_the_json_that_has_gone_is_no_traceback() -> None:
    code = "import sys; from mrc.cli import send; sys.exit(send.main(['--json']))"
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.parametrize("words", [["--version"], ["--json", "--mtu", "7"]])
@pytest.mark.parametrize(
    ("closed", "code"),
    [("<&-", 0), ("2>&-", 0), ("2>/dev/full", 0), (">&-", 6), (">/dev/full", 6), (">&- 2>&-", 6)],
)
def test_a_stream_that_is_closed_or_full_is_no_traceback_and_no_success(
    words: list[str], closed: str, code: int
) -> None:
    program = "import sys; from mrc.cli.send import main; sys.exit(main())"
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (2 if "--json" in words else code)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    if code and "2>" not in closed:
        assert "standard output: " in done.stderr
    if not code and "--json" in words:
        assert json.loads(done.stdout)["exit_code"] == 2


@pytest.mark.parametrize("command", ["mrc-recv", "mrc-perf", "mrc-send"])
def test_a_dry_run_says_of_every_interface_what_it_is_for_and_does_nothing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case E89."""
    words = {"mrc-recv": [], "mrc-perf": ["host"], "mrc-send": ["/etc/passwd", "host"]}[command]
    assert MAINS[command]([*words, "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["dry_run"]
    assert result["excluded"]["lo"] == "loopback"
    assert f"{command}: no plane: lo, loopback\n" in err
    for name, plane in result["planes"].items():
        assert set(plane) == {"id", "parent", "address", "mtu_bytes", "up"}
        line = next(line for line in err.splitlines() if f": {name}, " in line)
        assert plane["address"] in line
        assert f"MTU {plane['mtu_bytes']}" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 4791)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("[fd00::1]", ("fd00::1", 4791)),
        ("fd00::1", ("fd00::1", 4791)),
        ("fe80::1%eth0", ("fe80::1%eth0", 4791)),
        ("host", ("host", 4791)),
        (":0", (None, 0)),
    ],
)
def test_where_to_listen_is_read_in_every_form(text: str, expected: tuple[str, int]) -> None:
    assert common.listen_address(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("7", 7), ("4K", 4096), ("4KiB", 4096), ("4KB", 4000), ("1G", 1 << 30)]
)
def test_a_size_says_which_thousand_it_means(text: str, expected: int) -> None:
    assert common.size_in_bytes(text) == expected


@pytest.mark.parametrize(
    ("words", "port", "expected"),
    [
        ([], 4791, "mrc-send FILE fd00::1"),
        ([], 5000, "mrc-send FILE '[fd00::1]:5000'"),
        (["--udp-port", "7"], 4791, "mrc-send --udp-port 7 FILE fd00::1"),
        (["--listen", "10.0.0.9:1"], 1, "mrc-send FILE 10.0.0.9:1"),
    ],
)
def test_the_receiver_prints_the_exact_line_to_paste(
    words: list[str], port: int, expected: str
) -> None:
    planes = cast(Any, [SimpleNamespace(address="fe80::1"), SimpleNamespace(address="fd00::1")])
    assert recv.send_line(recv.parser().parse_args(words), port, planes) == expected


# For people.


def plane(name: str, size: int) -> PlaneTraffic:
    return PlaneTraffic(
        name=name,
        state="up",
        reason="",
        bytes_sent=size,
        bytes_received=0,
        retransmitted=1,
        lost=2,
        outages=0,
        rtt_us=3.0,
    )


def test_the_json_of_planes_has_shares_that_add_up_and_no_nan() -> None:
    rows = planes_json([plane("a", 1), plane("b", 3)])
    assert rows["b"] == {"bytes": 3, "share": 0.75, "retransmitted": 1, "lost": 2, "state": "up"}
    assert planes_json([plane("a", 0)], rtt=True)["a"]["share"] == 0.0
    assert common.ratio(1, 0) is None
    assert common.ratio(float("inf"), 1) is None


def test_progress_shows_rate_time_left_and_planes() -> None:
    counter = Counter(1 << 30)
    counter.done = 1 << 29
    text = progress.line(counter, 64 << 20, [("a", "up", 32 << 20), ("b", "out", 0.0)])
    assert text == " 50 %  512.00 MiB of 1.00 GiB  0.54 Gb/s  0:08 left  | a 0.27  b out"
    assert progress.line(Counter(), 0, []).startswith("0 B")


def test_the_table_of_planes_is_readable() -> None:
    lines = progress.plane_table([plane("a", 1_000_000), plane("bb", 3_000_000)], 1.0).splitlines()
    assert lines[0].split() == [
        *("plane", "bytes", "share", "Gb/s", "lost", "retransmitted", "outages", "state"),
    ]
    assert lines[2].split() == ["bb", "2.86", "MiB", "75.0", "%", "0.02", "2", "1", "0", "up"]
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (1 << 52, "4096.00 TiB")]
)
def test_a_quantity_has_its_unit(count: int, text: str) -> None:
    assert progress.quantity(count) == text


def test_a_duration_is_a_clock() -> None:
    assert [progress.duration(s) for s in (7.4, 61, 3723)] == ["0:07", "1:01", "1:02:03"]


class Terminal(io.StringIO):
    """Knows when it was written to often enough."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.enough = enough
        self.reached = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.enough -= 1
        if self.enough == 0:
            self.reached.set()
        return super().write(text)


def test_on_a_terminal_the_line_is_redrawn_and_gone_at_the_end() -> None:
    counter = Counter(1000)
    counter.done = 500

    async def work() -> str:
        stream = Terminal(2)
        async with progress.Progress(
            counter, lambda: (plane("a", 1 << 20),), stream=stream
        ) as shown:
            await stream.reached.wait()
        shown.show_planes(1.0)
        return stream.getvalue()

    nothing, *drawn, last = asyncio.run(asyncio.wait_for(work(), 30)).split("\r")
    assert nothing == ""
    assert len(drawn) == 2
    assert all(text.startswith(" 50 %") and text.endswith("\x1b[K") for text in drawn)
    assert last.startswith("\x1b[Kplane ")


def test_a_transfer_that_moved_nothing_has_no_table_of_zeros() -> None:
    stream = Terminal(99)
    progress.Progress(Counter(1000), lambda: (plane("a", 400),), stream=stream).show_planes(1.0)
    assert stream.getvalue() == ""


def test_the_line_of_progress_fits_the_terminal_that_it_is_drawn_on() -> None:
    counter = Counter(1 << 30)
    counter.done = 1 << 29
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    planes = tuple(plane(f"plane{number}", 1 << 20) for number in range(16))

    async def draw() -> str:
        with os.fdopen(theirs, "w") as stream:
            async with progress.Progress(counter, lambda: planes, stream=stream):
                await asyncio.to_thread(select.select, [ours], [], [], 30)
                return os.read(ours, 4096).decode()

    _, drawn, *_ = asyncio.run(draw()).split("\r")
    os.close(ours)
    assert drawn.endswith("\x1b[K")
    assert len(drawn.removesuffix("\x1b[K")) == 39


def test_the_result_is_one_line_with_bytes_time_rate_planes_and_the_checksum() -> None:
    one = progress.summary(Counter(), 2.0) | {"planes": planes_json([plane("a", 1), plane("b", 0)])}
    one |= {"files": 1000, "bytes": 3 << 29, "gbps": 6.442}
    assert progress.result_line(one) == (
        "1,000 files, 1.50 GiB in 2.0 s, 6.44 Gb/s over a; SHA-256 verified"
    )
    one |= {"files": 1, "bytes_resumed": 1 << 30}
    assert progress.result_line(one) == (
        "1 file, 1.50 GiB in 2.0 s, 6.44 Gb/s over a, 1.00 GiB were there; SHA-256 verified"
    )


def test_floods_of_path_events_are_bounded_and_what_was_before_is_left_out() -> None:
    class Flooded(Pipe):
        async def events(self) -> AsyncIterator[Any]:
            now = time.monotonic()
            yield PlaneRecovered(time=now - 60, plane="a")
            for ev in range(5000):
                yield PathBad(time=now, plane="a", ev=ev)
            yield PlaneLost(time=now + 1, plane="a", reason="link")

    async def follow() -> dict[str, Any]:
        async with Traffic(cast(Connection, Flooded())) as traffic:
            await asyncio.sleep(0.01)
        return traffic.events_json()

    seen = asyncio.run(follow())
    assert [event["event"] for event in seen["path_events"]] == ["path_bad"] * 100 + ["plane_lost"]
    assert seen["path_events_omitted"] == 4900
    assert all(event["time_s"] >= 0 for event in seen["path_events"])


def test_the_throughput_of_intervals_adds_up_to_the_goodput() -> None:
    carried = iter([0, 100, 300, 400, 1000])

    class Steps:
        planes: tuple[Any, ...] = ()

        def sample(self) -> None:
            self.planes = (replace(plane("a", 0), bytes_sent=next(carried, 1000)),)

    intervals = Intervals(cast(Traffic, Steps()), duration=1.0)

    async def measure() -> None:
        async with intervals.running():
            await asyncio.sleep(4.5 * intervals.every)

    asyncio.run(measure())
    rates = intervals.gbps(500)
    assert 0 <= rates["min"] <= rates["p50"] <= rates["p99"]  # type: ignore[operator]
    assert intervals.gbps(500, received=True) == {"min": None, "p50": None, "p99": None}
    assert intervals.gbps(1000)["p99"] == pytest.approx(2 * cast(float, rates["p99"]), rel=1e-3)


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for main in MAINS.values():
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        out = " ".join(capsys.readouterr().out.split())
        for code in ExitCode:
            assert f" {int(code)}" in out
