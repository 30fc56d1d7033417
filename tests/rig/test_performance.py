# SPDX-License-Identifier: Apache-2.0
"""The short forms of what `make bench` measures: ratios within one run, with wide margins.

Each pair is measured back to back on the same rig. A pair that misses is measured once more, since
another program may have had the cores meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tools.bench import endurance, latency
from tools.bench.lab import Stream, perf, perf_server
from tools.bench.report import Options
from tools.rig import Rig

pytestmark = pytest.mark.rig

SECONDS = 1.5


def holds(measure: Callable[[], float], limit: float, *, at_most: bool = False) -> None:
    """Asserts that one of two measurements keeps the limit."""
    found = []
    for _ in range(2):
        found.append(measure())
        if found[-1] <= limit if at_most else found[-1] >= limit:
            return
    raise AssertionError(f"{found}, limit {limit}")


def goodput(rig: Rig, **config: object) -> float:
    with Stream(rig, size=1 << 18, config=dict(config)) as stream:
        return stream.watch(SECONDS, after=0.7).goodput_bps()


def planes_apart(rig: Rig) -> float:
    with Stream(rig, size=1 << 18) as stream:
        rates = stream.watch(SECONDS, after=0.7).plane_bps()
    return max(rates) / min(rates)


def test_four_planes_carry_almost_four_times_what_one_does() -> None:
    with Rig(planes=4) as four, Rig(planes=1) as one:
        for plane in (*four.planes, *one.planes):
            plane.rate(100)
        holds(lambda: goodput(four) / goodput(one), 3.5)


def test_equal_planes_carry_equal_shares_under_policy_adaptive() -> None:
    with Rig(planes=4) as rig:
        for plane in rig.planes:
            plane.rate(100)
        holds(lambda: planes_apart(rig), 1.1, at_most=True)


def test_unlike_planes_carry_their_sum_when_adaptive_and_the_slowest_when_equal() -> None:
    with Rig(planes=4) as rig:
        for plane, rate in zip(rig.planes, (100, 100, 100, 25), strict=True):
            plane.rate(rate)
        # 325 Mb/s against 4 x 25 Mb/s.
        holds(lambda: goodput(rig) / goodput(rig, policy="equal"), 2.4)


@pytest.mark.parametrize("offload", [True, False], ids=["frames", "packets"])
def test_one_percent_of_loss_costs_little_goodput(offload: bool) -> None:
    def ratio() -> float:
        for plane in rig.planes:
            plane.heal()
        clean = goodput(rig)
        for plane in rig.planes:
            plane.loss(1)
        return goodput(rig) / clean

    with Rig(planes=4) as rig:
        for plane in rig.planes:
            plane.rate(100)
            plane.offload(offload)
        holds(ratio, 0.75)


def test_a_round_trip_takes_a_few_times_that_of_plain_udp() -> None:
    def ratio() -> float:
        return latency.mrc_rtt_us(rig, 1.0) / latency.udp_rtt_us(rig, 1.0)

    with Rig(direct=True) as rig:
        holds(ratio, 8, at_most=True)


def test_large_messages_go_no_slower_than_one_tcp_stream_of_asyncio_would() -> None:
    """Both between the same namespaces, the TCP stream by asyncio's own transports."""

    async def tcp(host: str) -> float:
        done = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            total = 0
            while data := await reader.read(1 << 20):
                total += len(data)
            done.set_result(total)
            writer.close()

        server = await asyncio.start_server(serve, host, 0)
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(host, port)
        start = asyncio.get_running_loop().time()
        while (seconds := asyncio.get_running_loop().time() - start) < 1.0:
            writer.write(bytes(1 << 20))
            await writer.drain()
        writer.close()
        total: int = await done
        server.close()
        return float(total) * 8 / seconds

    with Rig(direct=True) as rig, perf_server(rig):
        holds(
            lambda: perf(rig, 1.5)["goodput_gbps"] * 1e9 / asyncio.run(tcp("127.0.0.1")),
            0.3,
        )


def test_nothing_is_left_and_nothing_wrong_after_much_of_everything() -> None:
    rows = endurance.measure(Options(quick=True))
    assert len(rows) > 4
    assert [row.name for row in rows if row.key == "message_count" and not row.ok] == []
    assert [row.name for row in rows if row.key == "grown_mib" and not row.ok] == []
