# SPDX-License-Identifier: Apache-2.0
"""The picture of a scenario: goodput over time, the planes' shares, and the EVs that were out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tools.rig.record import STEP, Record, rate

__all__ = ["draw", "need_matplotlib"]

_MOST_LABELS = 12
"""Events that are named; more would cover each other."""


def need_matplotlib() -> None:
    """Refuses what cannot be drawn.

    Raises:
        ValueError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a picture needs matplotlib: pip install '.[picture]'")


def draw(record: Record, file: Path) -> None:
    """Draws a record into a file, whose ending says the format.

    Raises:
        ValueError: matplotlib is not installed, or knows no such format.
        OSError: The file cannot be written.
    """
    need_matplotlib()
    # An extra, and slow to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 9), layout="constrained")
    FigureCanvasAgg(figure)
    goodput, shares, strip = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 2])
    figure.suptitle(f"{record.scenario.name}: {record.scenario.about}", fontsize=10)
    _draw_goodput(record, goodput)
    _draw_shares(record, shares)
    _draw_evs(record, strip)
    strip.set_xlabel("seconds")
    strip.set_xlim(0, record.scenario.seconds)
    figure.savefig(file)


def _draw_goodput(record: Record, axes: Any) -> None:
    times = record.times()
    for name, points in record.flows.items():
        axes.plot(times, record.goodput(points), label=name, linewidth=1)
    axes.set_ylabel("goodput, Mb/s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, ncols=4, loc="lower left")
    for number, (done, event) in enumerate(record.happened):
        axes.axvline(done, color="tab:red", linewidth=0.6)
        if len(record.happened) <= _MOST_LABELS:
            height = 0.98 - 0.06 * (number % 4)
            place = axes.get_xaxis_transform()
            axes.text(done, height, f" {event}", fontsize=6, va="top", transform=place)


def _draw_shares(record: Record, axes: Any) -> None:
    """Of all that is received, what came by each plane."""
    times = record.times()
    names = sorted({plane for planes in record.planes.values() for plane in planes})
    rows = [
        [
            sum(rate(planes[name], at - STEP, at) for planes in record.planes.values()) / 1e6
            for at in times
        ]
        for name in names
    ]
    axes.stackplot(times, rows, labels=names)
    axes.set_ylabel("by plane, Mb/s")
    axes.legend(fontsize=7, ncols=8, loc="lower left")


def _draw_evs(record: Record, axes: Any) -> None:
    """A row for each EV that was ever out, dark while it was; and one for each plane."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for flow, events in record.path_events.items():
        since: dict[str, float] = {}
        for at, kind, plane, about in events:
            about_ev = kind.startswith("Path")
            row = f"{flow} EV {about:#06x}" if about_ev else f"{flow} {plane}"
            if kind in {"PathBad", "PlaneLost"}:
                since.setdefault(row, at)
            elif row in since:
                start = since.pop(row)
                rows.setdefault(row, []).append((start, at - start))
        for row, start in since.items():
            rows.setdefault(row, []).append((start, record.scenario.seconds - start))
    for number, (_, bars) in enumerate(sorted(rows.items())):
        axes.broken_barh(bars, (number - 0.4, 0.8), color="tab:red")
    axes.set_yticks(range(len(rows)), sorted(rows), fontsize=5)
    axes.set_ylabel("EVs and planes out")
