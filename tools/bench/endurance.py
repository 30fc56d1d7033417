# SPDX-License-Identifier: Apache-2.0
"""Much of everything: messages, connections, bytes; intact, and nothing left afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tools.bench.lab import MIB, Program, target_of
from tools.bench.report import Options, Row, say
from tools.rig import Rig

LARGEST = MIB
MIXED_GROWTH_MIB = 256
"""What they may hold in messages under way, slots and kept buffers."""
CONNECT_GROWTH_MIB = 32
IDLE_PERCENT = 1.0


@contextlib.contextmanager
def _peer(rig: Rig, count: int, connections: int) -> Iterator[None]:
    peer = Program(
        rig.hosts[1], "soak.echo", "-", count=count, largest=LARGEST, connections=connections
    )
    try:
        peer.read()
        yield
    finally:
        peer.kill()


def _run(rig: Rig, name: str, **words: Any) -> dict[str, Any]:
    program = Program(rig.hosts[0], f"soak.{name}", target_of(rig), **words)
    try:
        said: dict[str, Any] = program.read()
        say(f"endurance, {name} {words}: {said}")
        return said
    finally:
        program.kill()


def _mixed(rig: Rig, count: int, connections: int) -> list[Row]:
    with _peer(rig, count, connections):
        said = _run(rig, "mixed", count=count, largest=LARGEST, connections=connections)
    what = f"{count} random messages each way on {connections} connection(s)"
    grown = said["grown"] / MIB
    return [
        Row(name=f"{what}: wrong", key="message_count", measured=said["wrong"], at_most=0),
        Row(name=f"{what}: memory", key="grown_mib", measured=grown, at_most=MIXED_GROWTH_MIB),
    ]


def measure(options: Options) -> list[Row]:
    """Runs everything in turn on four unshaped planes.

    Raises:
        BenchError: A program in a host ended.
    """
    rows: list[Row] = []
    size = 64 * MIB if options.quick else 5 << 30
    count = 50 if options.quick else 1000
    with Rig(direct=True) as rig:
        rows += _mixed(rig, options.count(10_000, 100), 1)
        rows += _mixed(rig, options.count(100, 5), 64)
        with _peer(rig, 0, 1):
            said = _run(rig, "large", size=size)
            rows.append(
                Row(
                    name=f"one message of {size >> 20} MiB: wrong",
                    key="message_count",
                    measured=said["wrong"],
                    at_most=0,
                )
            )
            grown = _run(rig, "connects", count=count)["grown"] / MIB
            rows.append(
                Row(
                    name=f"{count} connects and closes: memory",
                    key="grown_mib",
                    measured=grown,
                    at_most=CONNECT_GROWTH_MIB,
                )
            )
            used = _run(rig, "idle", seconds=options.seconds(10, 2))["percent"]
            rows.append(Row(name="idle", key="cpu_percent", measured=used, at_most=IDLE_PERCENT))
    return rows
