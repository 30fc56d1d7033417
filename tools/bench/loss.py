# SPDX-License-Identifier: Apache-2.0
"""Goodput with random loss on every plane, both ways, to that without, at the same shaping.

Once the rig loses whole GSO frames, once (tx-udp-segmentation off) single packets.
"""

from __future__ import annotations

from tools.bench.lab import Stream
from tools.bench.report import Options, Row, median, say
from tools.bench.shaped import RATE, shape
from tools.rig import Rig

LIMITS = {0.1: 0.95, 1.0: 0.90, 5.0: 0.75}
"""Percent of the frames lost, and the least part of the loss-free goodput."""


def measure(options: Options) -> list[Row]:
    """Runs it."""
    rows = []
    with Rig(planes=4) as rig:
        shape(rig, [RATE] * 4)
        for offload, what in ((True, "GSO frames"), (False, "packets")):
            for plane in rig.planes:
                plane.offload(offload)
            rows += _at_each_loss(rig, what, options)
    return rows


def set_loss(rig: Rig, percent: float) -> None:
    """Lets every plane lose frames, both ways."""
    for plane in rig.planes:
        plane.loss(percent)


def _at_each_loss(rig: Rig, what: str, options: Options) -> list[Row]:
    seconds = options.seconds(3, 1)
    got: dict[float, list[float]] = {percent: [] for percent in (0.0, *LIMITS)}
    for trial in range(options.count(5, 1)):
        for percent, rates in got.items():
            set_loss(rig, 0)
            with Stream(rig) as stream:
                set_loss(rig, percent)
                rates.append(stream.watch(seconds, after=1.0).goodput_bps() / 1e6)
                counts = stream.counts()
            again = 100 * counts["packets_retransmitted"] / counts["packets_sent"]
            say(
                f"loss of {what}, trial {trial}, {percent:g} %: {rates[-1]:.0f} Mb/s, "
                f"{again:.2f} % sent again, {counts['packets_spurious']} in vain"
            )
    set_loss(rig, 0)
    free = median(got[0.0])
    rows = [Row(name=f"no loss ({what})", key="goodput_mbps", measured=free)]
    for percent, limit in LIMITS.items():
        rows.append(
            Row(
                name=f"{percent:g} % of {what} lost: to loss-free",
                key="goodput_ratio",
                measured=median(got[percent]) / free,
                at_least=limit,
            )
        )
    return rows
