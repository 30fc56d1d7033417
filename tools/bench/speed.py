# SPDX-License-Identifier: Apache-2.0
"""Unshaped goodput over four planes beside one TCP stream over one of them, and CPU of both.

TCP has the system's congestion control, and cubic; everything has the default offloads. The three
take turns, so that what the machine does meanwhile befalls all alike.
"""

from __future__ import annotations

from typing import Any

from tools.bench.lab import iperf, iperf_server, perf, perf_server
from tools.bench.report import Options, Row, median, say
from tools.rig import Rig

LIMITS = {"default": 1.0, "cubic": 0.55}
MTUS = {4200: True, 1500: False}
"""MTUs, and whether the limits hold there: 4200 is the least with packets of 4096 bytes."""


def measure(options: Options) -> list[Row]:
    """Runs it."""
    return [row for mtu, judged in MTUS.items() for row in _at_mtu(mtu, judged, options)]


def _at_mtu(mtu: int, judged: bool, options: Options) -> list[Row]:
    runs: dict[str, list[dict[str, Any]]] = {"mrc": [], "default": [], "cubic": []}
    seconds = options.seconds(3, 1)
    with Rig(planes=4, mtu=mtu, direct=True) as rig, perf_server(rig), iperf_server(rig):
        for trial in range(options.count(5, 1)):
            runs["mrc"].append(_mrc(rig, seconds))
            runs["default"].append(iperf(rig, seconds))
            runs["cubic"].append(iperf(rig, seconds, "-C", "cubic"))
            rates = (f"{name} {done[-1]['goodput_gbps']:.1f}" for name, done in runs.items())
            say(f"speed, MTU {mtu}, trial {trial}: {', '.join(rates)} Gb/s")
    names = {
        "mrc": "mrc, 4 MiB messages, 4 planes",
        "default": f"TCP {runs['default'][0]['congestion_control']} (default)",
        "cubic": "TCP cubic",
    }
    middle = {name: _median(done, "goodput_gbps") for name, done in runs.items()}
    rows = []
    for name, done in runs.items():
        label = f"MTU {mtu}: {names[name]}"
        rows.append(Row(name=label, key="goodput_gbps", measured=middle[name]))
        rows.append(Row(name=label, key="cpu_s_per_gb", measured=_median(done, "cpu_s_per_gb")))
    for name, limit in LIMITS.items():
        rows.append(
            Row(
                name=f"MTU {mtu}: mrc to {names[name]}",
                key="goodput_ratio",
                measured=middle["mrc"] / middle[name],
                at_least=limit if judged else None,
            )
        )
    return rows


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return median([run[key] for run in runs])


def _mrc(rig: Rig, seconds: float) -> dict[str, Any]:
    result = perf(rig, seconds, "--size", "4M")
    cpu = result["cpu_s_per_gb"]
    return {
        "goodput_gbps": result["goodput_gbps"],
        "cpu_s_per_gb": cpu["local"] + cpu["peer"],
    }
