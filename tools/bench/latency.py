# SPDX-License-Identifier: Apache-2.0
"""Round trips of one byte, beside those of plain UDP on the same veth.

Two asyncio programs are compared with a UDP echo on uvloop; `mrc.verbs`, asleep in poll, with
blocking sockets in C (pingpong.c). They take turns.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tools.bench.lab import Program, perf, perf_server
from tools.bench.report import Options, Row, median, say
from tools.rig import Rig

SOURCE = Path(__file__).with_name("pingpong.c")
LIMIT_ASYNCIO = 1.5
LIMIT_VERBS = 1.3


def measure(options: Options) -> list[Row]:
    """Runs it."""
    seconds = options.seconds(2, 0.5)
    trips: dict[str, list[float]] = {"mrc": [], "UDP": [], "verbs": [], "spun": [], "C": []}
    with tempfile.TemporaryDirectory(prefix="mrc-bench-") as folder, Rig(direct=True) as rig:
        program = _compile(Path(folder))
        for trial in range(options.count(5, 1)):
            trips["mrc"].append(mrc_rtt_us(rig, seconds))
            trips["UDP"].append(udp_rtt_us(rig, seconds))
            trips["verbs"].append(_between(rig, "echo.verbs", seconds, config={"spin": 0}))
            trips["spun"].append(_between(rig, "echo.verbs", seconds, config={}))
            trips["C"].append(_c_rtt_us(rig, program, seconds))
            values = (f"{name} {done[-1]:.1f}" for name, done in trips.items())
            say(f"latency, trial {trial}: {', '.join(values)} us")
    middle = {name: median(done) for name, done in trips.items()}
    names = {
        "mrc": "mrc between asyncio programs",
        "UDP": "UDP echo on uvloop",
        "verbs": "mrc.verbs, asleep in poll (spin = 0)",
        "spun": "mrc.verbs, looking for work before it sleeps (default)",
        "C": "UDP in C, blocking",
    }
    rows = [Row(name=names[name], key="rtt_us", measured=middle[name]) for name in names]
    for ours, other, limit in (("mrc", "UDP", LIMIT_ASYNCIO), ("verbs", "C", LIMIT_VERBS)):
        rows.append(
            Row(
                name=f"{names[ours]}, to {names[other]}",
                key="rtt_ratio",
                measured=middle[ours] / middle[other],
                at_most=limit,
            )
        )
    return rows


def _compile(folder: Path) -> str:
    program = folder / "pingpong"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-o", program, SOURCE], check=True)
    return str(program)


def mrc_rtt_us(rig: Rig, seconds: float) -> float:
    """Median round trip of a message of one byte between two asyncio programs."""
    with perf_server(rig):
        return float(perf(rig, seconds, "--latency")["rtt_us"]["p50"])


def udp_rtt_us(rig: Rig, seconds: float) -> float:
    """Median round trip of a datagram between two asyncio programs, over plane 0."""
    return _between(rig, "echo.udp", seconds)


def _between(rig: Rig, name: str, seconds: float, **words: Any) -> float:
    a, b = rig.hosts
    server = Program(b, f"{name}_server", b.address(0), **words)
    try:
        server.read()
        client = Program(a, f"{name}_client", b.address(0), seconds=seconds, **words)
        result = client.read()
        client.stop()
        return float(result["rtt_us"]["p50"])
    finally:
        server.kill()


def _c_rtt_us(rig: Rig, program: str, seconds: float) -> float:
    a, b = rig.hosts
    server = b.popen([program, b.address(0)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        return float(a.run([program, b.address(0), str(seconds)]).stdout)
    finally:
        server.kill()
        server.wait()
