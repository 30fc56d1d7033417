# SPDX-License-Identifier: Apache-2.0
"""The program of a host in a scenario: sends its flows, and notes what comes and what happens.

`python -m tools.rig.traffic OPTIONS`; OPTIONS is JSON: `config` and `planes` as of `mrc.Endpoint`,
`flows` to send, as of `workload.Flow` with a `target` and, if it `trains`, this rank of the `ring`;
`training` is the flow that comes from the previous rank. It obeys lines of standard input, and
answers each by a line of JSON:

    connect         makes a connection for each flow
    start T         sends, T being the timeline's start in seconds of `time.monotonic()`
    report          says what it has noted

Its first line says that it listens; it ends with standard input. The first message of a connection
is the flow's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import sys
import time
from collections import deque
from typing import Any

import uvloop

import mrc

SAMPLES_EVERY = 0.05
WINDOW_BYTES = 16 << 20
"""Posted and not acknowledged, of one flow: some round trips at the rates of a rig."""


def say(answer: Any) -> None:
    """Answers a line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Notes:
    """What a host has seen: `samples` of each flow it receives, `states` and `events` of its own.

    A sample is [time, bytes, bytes by plane], a state [time, EVs in use, EVs out], an event
    [time, kind, plane, EV or reason], a step of a training loop [time of its end, seconds, loss].
    `done` is when the last message of a flow was acknowledged.
    """

    def __init__(self, training: str) -> None:
        """`training` is the flow that a training loop receives, or ""."""
        self._training = training
        self._previous: asyncio.Future[mrc.Connection] = asyncio.Future()
        self.steps: list[Any] = []
        self.samples: dict[str, list[Any]] = {}
        self.states: dict[str, list[Any]] = {}
        self.events: dict[str, list[Any]] = {}
        self.counts: dict[str, Any] = {}
        self.done: dict[str, float] = {}
        self.errors: list[str] = []

    async def receive(self, connection: mrc.Connection) -> None:
        """Notes a flow that comes in, until it ends."""
        name = bytes(await connection.recv()).decode()
        sampling = asyncio.create_task(self._sample(name, connection))
        if name == self._training:
            self._previous.set_result(connection)
            await sampling
            return
        try:
            async for _ in connection:
                pass
        except mrc.ConnectionLost as error:
            self.errors.append(f"{name}: {error}")
        sampling.cancel()

    async def _sample(self, name: str, connection: mrc.Connection) -> None:
        samples = self.samples.setdefault(name, [])
        with contextlib.suppress(mrc.ConnectionClosed):
            while True:
                planes = {path.name: path.bytes_received for path in connection.paths()}
                samples.append([time.monotonic(), connection.stats().bytes_received, planes])
                await asyncio.sleep(SAMPLES_EVERY)

    async def train(
        self, rank: int, size: int, *, following: mrc.Connection, start: float, end: float
    ) -> None:
        """Trains from `start` to `end`, seconds of `time.monotonic()`, and notes the steps."""
        # numpy is not needed by other workloads.
        from tools.examples import training  # noqa: PLC0415
        from tools.examples.ring import Ring  # noqa: PLC0415

        ring = Ring(rank, size, previous=await self._previous, following=following)
        model = training.Model(seed=2)
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        try:
            async for step in training.train(ring, model, lambda: time.monotonic() < end):
                self.steps.append([time.monotonic(), step.seconds, step.loss])
        except mrc.ConnectionLost as error:
            self.errors.append(f"rank {rank}: {error}")

    def report(self) -> dict[str, Any]:
        """All of it."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    async def watch(self, name: str, connection: mrc.Connection) -> None:
        """Notes what happens to the paths of a flow that goes out."""
        events = self.events.setdefault(name, [])
        async for event in connection.events():
            about = getattr(event, "reason", None) or getattr(event, "ev", "")
            events.append([event.time, type(event).__name__, event.plane, about])

    async def watch_evs(self, name: str, connection: mrc.Connection) -> None:
        """Notes how many EVs of a flow that goes out are in use."""
        states = self.states.setdefault(name, [])
        with contextlib.suppress(mrc.ConnectionClosed):
            while True:
                stats = connection.stats()
                states.append([time.monotonic(), stats.evs_good, stats.evs_bad])
                await asyncio.sleep(SAMPLES_EVERY)

    def count(self, name: str, connection: mrc.Connection) -> None:
        """Notes the totals of a flow that goes out."""
        with contextlib.suppress(mrc.ConnectionClosed):
            planes = {path.name: dataclasses.asdict(path) for path in connection.paths()}
            self.counts[name] = dataclasses.asdict(connection.stats()) | {"planes": planes}


async def send(connection: mrc.Connection, flow: dict[str, Any], zero: float, notes: Notes) -> None:
    """Sends messages from the flow's start to its end, a window of them at once."""
    data = bytes(flow["size"])
    window = max(2, WINDOW_BYTES // flow["size"])
    await asyncio.sleep(max(0.0, zero + flow["start"] - time.monotonic()))
    under_way: deque[mrc.Completion] = deque()
    posted = 0
    with contextlib.suppress(mrc.ConnectionClosed):
        while time.monotonic() < zero + flow["end"] and posted != (flow["messages"] or -1):
            if len(under_way) >= window:
                await under_way.popleft()
            under_way.append(await connection.post_send(data))
            posted += 1
        for completion in under_way:
            await completion
        notes.done[flow["name"]] = time.monotonic()


async def begin(
    connection: mrc.Connection, flow: dict[str, Any], zero: float, notes: Notes
) -> None:
    """Does what a flow is."""
    if flow["trains"]:
        start, end = zero + flow["start"], zero + flow["end"]
        await notes.train(**flow["ring"], following=connection, start=start, end=end)
    else:
        await send(connection, flow, zero, notes)


async def send_in_turn(
    flows: list[tuple[dict[str, Any], mrc.Connection]], zero: float, notes: Notes
) -> None:
    """Sends the flows of each turn at once, when those of the one before are done."""
    for _, turn in itertools.groupby(flows, key=lambda pair: pair[0]["turn"]):
        await asyncio.gather(*(begin(connection, flow, zero, notes) for flow, connection in turn))


async def lines() -> asyncio.StreamReader:
    """Standard input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def accept(listener: mrc.Listener, notes: Notes, tasks: set[asyncio.Task[None]]) -> None:
    """Receives from everyone."""
    async for connection in listener:
        tasks.add(asyncio.create_task(notes.receive(connection)))


async def main(options: dict[str, Any]) -> None:
    """Runs the program."""
    notes = Notes(options["training"])
    tasks: set[asyncio.Task[None]] = set()
    connections: list[tuple[dict[str, Any], mrc.Connection]] = []
    config = mrc.Config(**options["config"])
    async with (
        mrc.Endpoint(options["planes"], config) as endpoint,
        endpoint.listen() as listener,
    ):
        tasks.add(asyncio.create_task(accept(listener, notes, tasks)))
        reader = await lines()
        say("listens")
        while line := (await reader.readline()).decode().split():
            if line[0] == "connect":
                for flow in options["flows"]:
                    connection = await endpoint.connect(flow["target"])
                    await connection.send(flow["name"].encode())
                    connections.append((flow, connection))
                    tasks.add(asyncio.create_task(notes.watch(flow["name"], connection)))
                    tasks.add(asyncio.create_task(notes.watch_evs(flow["name"], connection)))
                say("connected")
            elif line[0] == "start":
                connections.sort(key=lambda pair: pair[0]["turn"])
                sending = send_in_turn(connections, float(line[1]), notes)
                tasks.add(asyncio.create_task(sending))
                say("started")
            else:
                for flow, connection in connections:
                    notes.count(flow["name"], connection)
                say(notes.report())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, connection in connections:
            connection.abort()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
