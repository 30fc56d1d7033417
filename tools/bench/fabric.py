# SPDX-License-Identifier: Apache-2.0
"""Hosts around a fabric of switches: permutation, incast and its victim, all-to-all, in ratios.

Rates are low enough that the ideal duration is hundreds of milliseconds: this machine carries
every packet of every link, and a pause of it is a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tools.bench.lab import BenchError
from tools.bench.report import Options, Row, median, say
from tools.rig import runner, scenario
from tools.rig.record import Record

HOSTS = 8
PORT_MBPS = 50
"""Of every link, but where hosts send to one."""
FLOW = 2 << 20
"""Bytes."""
INCAST_PORT_MBPS = 25
INCAST_MESSAGE = 64 << 10
PLANES = 2
"""Where hosts send to one."""
HEADERS = 1 - 4096 / 4184
"""The part of a link that Ethernet, IPv6, UDP and transport headers take of full packets."""
QUEUES = {"mark_from": 50_000, "mark_to": 200_000, "data_bytes": 250_000}


def measure(options: Options) -> list[Row]:
    """Runs it."""
    return [
        *_permutation(options),
        *_ev_counts(options),
        *_incasts(options),
        *_long_incast(options),
        *_serial_all_to_all(options),
    ]


def play(
    workloads: Sequence[dict[str, object]],
    *,
    hosts: int = HOSTS,
    planes: int = 1,
    t0: int = 2,
    t1: int = 4,
    port: int = PORT_MBPS,
    seconds: float,
    config: dict[str, object] | None = None,
    switches: dict[str, object] | None = None,
    seed: int = 1,
) -> Record:
    """Runs workloads of flows that end; returns what was seen.

    Raises:
        BenchError: One has not ended.
    """
    tables = {
        "[fabric]": {
            "hosts": hosts,
            "planes": planes,
            "t0": t0,
            "t1": t1,
            "port": f"{port}Mbit",
            "uplink": f"{port}Mbit",
        },
        # A cable of the rig claims 10 Gb/s; a port of this rate would tell it.
        "[config]": {"rate_bps": planes * port * 1_000_000, **(config or {})},
        "[switches]": switches or {},
    }
    lines = ['about = "a bench"', f"seconds = {seconds}"]
    for head, table in [*tables.items(), *(("[[workload]]", each) for each in workloads)]:
        lines += [head, *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    record = runner.run(scenario.read("\n".join(lines), "bench.toml"), seed=seed)
    late = {flow.name for flow in record.scenario.flows} - set(record.done)
    if late or record.errors:
        raise BenchError(f"after {seconds} s not done: {', '.join(sorted(late))}; {record.errors}")
    return record


def last(record: Record, flows: Sequence[str] = ()) -> float:
    """Seconds to the end of the last flow."""
    return max(record.done[name] for name in flows or record.done)


def ideal(size: int, port: int) -> float:
    """Seconds that so many bytes take on a link of so many Mb/s, whole packets and nothing else."""
    return 8 * size / (port * 1e6 * (1 - HEADERS))


def pinned(count: int) -> dict[str, object]:
    """Settings for so many entropy values."""
    return {"ev_count": count, "ev_backup": 0, "ev_min_active": min(4, (count + 1) // 2)}


def _permutation(options: Options) -> list[Row]:
    """Each of 8 hosts sends to one behind the other T0: sprayed over four spines, and by one EV."""
    flows = [{"kind": "permutation", "size": FLOW // 8, "messages": 8}]
    sprayed, single = [], []
    for trial in range(options.count(10, 1)):
        sprayed.append(last(play(flows, seconds=2.5)))
        single.append(last(play(flows, seconds=4, config=pinned(1), seed=trial + 1)))
        say(f"fabric, permutation, trial {trial}: {sprayed[-1]:.3f} s, one EV {single[-1]:.3f} s")
    best = ideal(FLOW, PORT_MBPS)
    return [
        Row(
            name="permutation, last flow: sprayed to the ideal",
            key="time_ratio",
            measured=median(sprayed) / best,
            at_most=1.25,
        ),
        Row(
            name="permutation, last flow: one EV to sprayed",
            key="time_ratio",
            measured=median(single) / median(sprayed),
            at_least=1.5,
        ),
    ]


def _ev_counts(options: Options) -> list[Row]:
    """The same by the number of EVs: from 64 on more of them do not help."""
    flows = [{"kind": "permutation", "size": FLOW // 8, "messages": 8}]
    times = {}
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        runs = [
            last(play(flows, seconds=4, config=pinned(count), seed=seed + 1))
            for seed in range(options.count(3, 1))
        ]
        times[count] = median(runs)
        say(f"fabric, {count} EVs: {times[count]:.3f} s")
    rows = [
        Row(name=f"permutation, {count} EVs, to 256", key="time_ratio", measured=time / times[256])
        for count, time in times.items()
    ]
    knee = times[64] / min(times[128], times[256])
    return [*rows, Row(name="64 EVs to more", key="time_ratio", measured=knee, at_most=1.1)]


def _incasts(options: Options) -> list[Row]:
    """Hosts of two T0s send 64 KiB each to one host at once."""
    rows = []
    for senders in (8, 16):
        flows = [{"kind": "incast", "size": INCAST_MESSAGE, "messages": 1}]
        best = ideal(senders * INCAST_MESSAGE, PLANES * INCAST_PORT_MBPS)
        for trim, limit in ((True, 1.2), (False, 1.35)):
            times, bad = [], 0
            for trial in range(options.count(5, 1)):
                record = _incast(flows, senders=senders, trim=trim, seed=trial + 1)
                times.append(last(record))
                bad += sum(row["evs_bad"] for row in record.counts.values())
            word = "with" if trim else "without"
            say(f"fabric, incast {senders}:1 {word} trimming: {median(times) / best:.2f}")
            name = f"incast {senders}:1 of 64 KiB {word} trimming"
            rows += [
                Row(
                    name=f"{name}, to the ideal",
                    key="time_ratio",
                    measured=median(times) / best,
                    at_most=limit,
                ),
                Row(name=f"{name}, EVs called bad", key="count", measured=bad, at_most=0),
            ]
    return rows


def _incast(
    flows: Sequence[dict[str, object]],
    *,
    senders: int,
    trim: bool = True,
    seconds: float = 2.0,
    seed: int = 1,
) -> Record:
    return play(
        flows,
        hosts=senders + 1,
        planes=PLANES,
        port=INCAST_PORT_MBPS,
        seconds=seconds,
        config={"trimming": trim},
        switches={**QUEUES, "trim": trim},
        seed=seed,
    )


def _long_incast(options: Options) -> list[Row]:
    """What trims make senders send again, and what a flow to a neighbour of the receiver feels."""
    victim = {"kind": "stream", "hosts": ["b", "c"], "size": FLOW // 16, "messages": 8, "from": 0.3}
    others = {"kind": "incast", "hosts": list("adefghi"), "size": FLOW // 4, "messages": 2}
    alone, beside, again = [], [], []
    for trial in range(options.count(5, 1)):
        alone.append(_incast([victim], senders=8, seed=trial + 1).done["b-c"] - 0.3)
        record = _incast([others, victim], senders=8, seconds=4, seed=trial + 1)
        beside.append(record.done["b-c"] - 0.3)
        counts = [row for name, row in record.counts.items() if name != "b-c"]
        resent = sum(row["packets_retransmitted"] for row in counts)
        again.append(resent / (sum(row["packets_sent"] for row in counts) - resent))
        say(f"fabric, long incast, trial {trial}: victim {beside[-1] / alone[-1]:.2f} of alone")
    return [
        Row(
            name="a flow beside an incast 6:1, to alone",
            key="time_ratio",
            measured=median(beside) / median(alone),
            at_most=1.3,
        ),
        Row(
            name="long incast 6:1: sent again, to a packet",
            key="packets_ratio",
            measured=median(again),
            at_most=0.25,
        ),
    ]


def _serial_all_to_all(options: Options) -> list[Row]:
    """Each of 8 hosts sends 512 KiB to every other, one after the other."""
    flows = [{"kind": "serial-all-to-all", "size": FLOW // 16, "messages": 4}]
    times = [
        last(play(flows, t1=4, seconds=4, seed=trial + 1)) for trial in range(options.count(5, 1))
    ]
    best = (HOSTS - 1) * ideal(FLOW // 4, PORT_MBPS)
    say(f"fabric, serial all-to-all: {median(times) / best:.2f}")
    return [
        Row(
            name="serial all-to-all, to the ideal",
            key="time_ratio",
            measured=median(times) / best,
            at_most=1.3,
        )
    ]
