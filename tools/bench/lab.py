# SPDX-License-Identifier: Apache-2.0
"""Running the benches' programs, mrc-perf and iperf3 in the hosts of a rig."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.bench.series import Log
from tools.rig import Host, Rig

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PERF = [sys.executable, "-c", "import sys; from mrc.cli.perf import main; sys.exit(main())"]

MIB = 1 << 20


class BenchError(RuntimeError):
    """A program in a host ended when it should not have."""


class Program:
    """A scenario of stream.py, echo.py or soak.py in a host."""

    def __init__(self, host: Host, name: str, target: str, **words: Any) -> None:
        """Starts it.

        Args:
            host: Where.
            name: As in "stream.sink".
            target: Its first argument.
            words: Its keyword arguments.
        """
        module, scenario = name.split(".")
        self.name = name
        self._process = host.popen(
            [sys.executable, "-m", f"tools.bench.{module}", scenario, target, json.dumps(words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
        )

    def read(self) -> Any:
        """The next thing that it says.

        Raises:
            BenchError: It has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, **question: Any) -> Any:
        """Asks it, and returns the answer.

        Raises:
            BenchError: It has ended.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `read` says more
            print(json.dumps(question), file=self._process.stdin, flush=True)
        return self.read()

    def stop(self) -> None:
        """Ends its questions, and waits for its end.

        Raises:
            BenchError: It failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code := self._process.wait(timeout=30):
            raise BenchError(f"{self.name} ended with {code}")

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


def target_of(rig: Rig) -> str:
    """The second host, as a target of `mrc.connect`."""
    address = rig.hosts[1].address(0)
    return f"[{address}]" if ":" in address else address


class Stream:
    """Messages without end from the first host of a rig to the second."""

    def __init__(
        self, rig: Rig, *, size: int = MIB, window: int = 16, config: dict[str, Any] | None = None
    ) -> None:
        self._config = config or {}
        self._rig, self._size, self._window = rig, size, window

    def __enter__(self) -> Stream:
        a, b = self._rig.hosts[:2]
        self._sink = Program(b, "stream.sink", "-", config=self._config)
        self._sink.read()
        self._source = Program(
            a,
            "stream.source",
            target_of(self._rig),
            size=self._size,
            window=self._window,
            config=self._config,
        )
        self._source.read()
        return self

    def __exit__(self, *exception: object) -> None:
        self._source.kill()
        self._sink.kill()

    def between(self, start: float, end: float) -> Log:
        """How the bytes came from `start` to `end`, seconds of `time.monotonic()`."""
        time.sleep(max(0.0, end - time.monotonic()))
        return Log(**self._sink.ask(start=start, end=end))

    def watch(self, seconds: float, *, after: float = 0.0) -> Log:
        """How they come from `after` seconds from now, for so many seconds."""
        start = time.monotonic() + after
        return self.between(start, start + seconds)

    def counts(self) -> dict[str, Any]:
        """The sender's counts, since it connected."""
        counts: dict[str, Any] = self._source.ask()
        return counts


@contextlib.contextmanager
def perf_server(rig: Rig) -> Iterator[None]:
    """`mrc-perf server` in the second host."""
    server = rig.hosts[1].popen([*PERF, "server"], env=ENVIRONMENT, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        if "waiting" not in server.stderr.readline():
            raise BenchError("mrc-perf server does not start")
        yield
    finally:
        server.kill()
        server.wait()


def perf(rig: Rig, seconds: float, *arguments: str) -> dict[str, Any]:
    """What `mrc-perf HOST --json` says, run in the first host."""
    command = [*PERF, target_of(rig), "--json", "--duration", str(seconds), *arguments]
    done = rig.hosts[0].run(command, env=ENVIRONMENT, timeout=seconds + 30)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextlib.contextmanager
def iperf_server(rig: Rig) -> Iterator[None]:
    """`iperf3 -s` in the second host."""
    server = rig.hosts[1].popen(
        ["iperf3", "-s", "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert server.stdout is not None
        if not any("listening" in line for line in server.stdout):
            raise BenchError("iperf3 does not start: is it installed?")
        yield
    finally:
        server.kill()
        server.wait()


def iperf(rig: Rig, seconds: float, *arguments: str) -> dict[str, Any]:
    """One TCP stream of iperf3 over plane 0: goodput, CPU of both sides, congestion control."""
    command = ["iperf3", "-J", "-c", rig.hosts[1].address(0), "-t", str(seconds), *arguments]
    done = rig.hosts[0].run(command, timeout=seconds + 30)
    end = json.loads(done.stdout)["end"]
    received, cpu = end["sum_received"], end["cpu_utilization_percent"]
    busy = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
    return {
        "goodput_gbps": received["bits_per_second"] / 1e9,
        "cpu_s_per_gb": busy * 1e9 / received["bytes"],
        "congestion_control": end["sender_tcp_congestion"],
    }
