# SPDX-License-Identifier: Apache-2.0
"""A test's hand on talk.py: starts one in a host, and tells it what to do."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tools.rig import Host, Rig

HERE = Path(__file__).resolve()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent.parent.parent)}
LIMIT = 30.0
"""Seconds within which everything that a test waits for happens."""

MIB = 1 << 20
MBIT = 60
"""Rate of the planes of the fixture `rig`, in Mb/s."""

Look = dict[str, Any]


def lost(client: Talker, plane: str) -> list[str]:
    """Why a plane was lost, each time."""
    events = client.look()["events"]
    return [reason for kind, name, reason in events if (kind, name) == ("PlaneLost", plane)]


class Talker:
    """One talk.py in a host."""

    def __init__(
        self,
        host: Host,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Starts it: by the command `within`, with more of an `environment`."""
        self.process: subprocess.Popen[str] = host.popen(
            [*within, sys.executable, str(HERE.with_name("talk.py")), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, **environment},
        )
        self.log = ""
        self._answers: queue.Queue[Look] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def answer(self) -> Look:
        try:
            return self._answers.get(timeout=LIMIT)
        except queue.Empty:
            pytest.fail(f"no answer: {self.log}")

    def ready(self) -> Look:
        """What it says first, when it says that all is well."""
        answer = self.answer()
        assert answer["ready"], (answer, self.log)
        return answer

    def begin(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def tell(self, command: str) -> Look:
        self.begin(command)
        return self.answer()

    def look(self) -> Look:
        return self.tell("look")

    def until(self, condition: Callable[[Look], bool]) -> Look:
        """Looks until the condition holds."""
        deadline = time.monotonic() + LIMIT
        while not condition(look := self.look()):
            assert time.monotonic() < deadline, (look, self.log)
            time.sleep(0.05)
        return look

    def until_state(self, plane: str, state: str) -> Look:
        return self.until(lambda look: look["paths"][plane]["state"] == state)

    def until_received(self, count: int) -> Look:
        """Waits for so many more messages."""
        wanted = self.look()["received"] + count
        return self.until(lambda look: look["received"] >= wanted)

    def until_share(self, plane: str, share: float) -> Look:
        """Waits until the plane carries more than so much of what is sent between two looks."""
        before = self.look()["paths"]

        def carries(look: Look) -> bool:
            nonlocal before
            new = {n: p["bytes_sent"] - before[n]["bytes_sent"] for n, p in look["paths"].items()}
            before = look["paths"]
            return bool(new[plane] > share * max(sum(new.values()), 1))

        return self.until(carries)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(LIMIT)
        for thread in self._threads:
            thread.join(LIMIT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def listening(rig: Rig, **options: Any) -> Talker:
    """One in host b that listens."""
    talker = Talker(rig.hosts[1], listen=True, **options)
    talker.ready()
    return talker


def connecting(rig: Rig, *, planes_to: tuple[int, ...] = (0,), **options: Any) -> Talker:
    """One in host a that connects, to host b's addresses on these planes."""
    targets = [f"[{rig.hosts[1].address(plane)}]" for plane in planes_to]
    return Talker(rig.hosts[0], connect=targets, **options)


def pair(rig: Rig, **options: Any) -> tuple[Talker, Talker]:
    """Host b reads what host a sends."""
    config = {"max_inflight": 1 << 20, **options.pop("config", {})}
    server = listening(rig, config=config)
    client = connecting(rig, send=True, config=config, **options)
    client.ready()
    return client, server


def settle_up(client: Talker, server: Talker) -> tuple[Look, Look]:
    """Stops, closes, and checks that every message has arrived once, whole and in order."""
    stopped = client.tell("stop")
    assert stopped["ends"] == [], stopped
    server.until(lambda look: look["received"] >= stopped["sent"])
    closed = client.tell("close")
    assert closed["errors"] == []
    got = server.until(lambda look: bool(look["ends"]))
    assert (got["ends"], got["wrong"]) == (["closed"], 0)
    assert got["received"] == closed["sent"] > 0
    server.tell("close")
    assert client.end() == server.end() == 0
    return stopped, got
