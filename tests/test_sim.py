# SPDX-License-Identifier: Apache-2.0
"""The simulator: what is built, what runs on it, and that a run is the same each time."""

from __future__ import annotations

import dataclasses
import heapq
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native.build import load
from test_tree import DRIVERS
from topologies import TWO_BY_TWO

from mrc import sim, topology_file
from mrc.errors import ConfigError
from tools.figures import t1

ROOT = Path(__file__).resolve().parent.parent
PS = 10**12

HEADERS = 14 + 40 + 8 + 12 + 4 + 16 + 4  # Ethernet IPv6 UDP BTH METH RETH ICRC
ON_THE_LINK = HEADERS + 24  # preamble, FCS and gap
IMMEDIATE = 4


def small(**changes: Any) -> sim.Topology:
    """16 hosts under four T0 and four T1, at 100 Gb/s with 1 us a link."""
    return sim.two_tier(**{"t0": 4, "hosts": 4, "t1": 4, **changes})


def run(
    topology: sim.Topology, flows: Any, *, seed: int = 1, faults: Any = (), **settings: Any
) -> sim.Simulation:
    """All flows have ended well; otherwise the test fails."""
    simulation = sim.Simulation(topology, flows, sim.Settings(**settings), seed=seed, faults=faults)
    assert simulation.run(1.0), simulation.totals()
    assert simulation.totals().flows_failed == 0
    return simulation


# The event queue


@given(
    shift=st.integers(0, 20),
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.one_of(st.integers(0, 1 << 12), st.integers(0, 1 << 34)), st.integers(0, 9)
            ),
            st.none(),
        ),
        max_size=200,
    ),
)
def test_events_come_out_in_order_of_time_and_then_of_number(
    shift: int, steps: list[tuple[int, int] | None]
) -> None:
    ffi, lib = load("events")
    queue, event = ffi.new("struct event_queue *"), ffi.new("struct event *")
    lib.event_queue_init(queue, shift)
    expected: list[tuple[int, int]] = []
    now = 0
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            heapq.heappush(expected, (now + step[0], step[1]))
            lib.event_queue_push(queue, now + step[0], step[1])
        elif expected:
            assert lib.event_queue_peek(queue, event)
            lib.event_queue_pop(queue)
            assert (event.time, event.what) == heapq.heappop(expected)
            now = event.time
    assert not lib.event_queue_peek(queue, event)
    assert not queue.has_failed
    lib.event_queue_free(queue)


# Topologies


@pytest.mark.parametrize(
    ("topology", "switches", "links"),
    [
        (small(), 8, {"host": 16, "t0-t1": 16}),
        (small(planes=2, width=3), 16, {"host": 32, "t0-t1": 96}),
        (
            sim.three_tier(pods=4, t0=2, hosts=2, t1=2, cores=4),
            20,
            {"host": 16, "t0-t1": 16, "t1-t2": 16},
        ),
        (
            sim.three_tier(pods=2, t0=3, hosts=2, t1=2, cores=6, planes=2),
            2 * (6 + 4 + 6),
            {"host": 24, "t0-t1": 24, "t1-t2": 24},
        ),
    ],
    ids=["two tiers", "planes and parallel links", "fat tree", "uneven fat tree"],
)
def test_a_network_has_its_switches_and_every_host_reaches_every_other(
    topology: sim.Topology, switches: int, links: dict[str, int]
) -> None:
    assert len(topology.switches) == switches
    assert topology.links == links
    assert (topology.peer[topology.peer] == np.arange(len(topology.peer))).all()
    done = run(topology, sim.all_to_all(range(topology.hosts), size=100))
    assert done.totals().dropped == 0


def test_a_path_crosses_one_switch_more_for_every_tier_up_and_down() -> None:
    tree = sim.three_tier(pods=2, t0=2, hosts=2, t1=1, cores=1)
    for destination, links in ((1, 2), (2, 4), (4, 6)):
        flow = sim.incast([0], destination, size=4096)
        done = run(tree, flow)
        size = 4096 + ON_THE_LINK + IMMEDIATE
        expected = links * (size * 8 / 100e9 + 1e-6)
        assert done.completion_times()[0] == pytest.approx(expected, rel=1e-4)


def test_the_fabric_of_a_topology_file_is_simulated_as_it_is_described() -> None:
    fabric = topology_file.parse(TWO_BY_TWO)
    topology = sim.from_fabric(fabric)
    assert topology.names == ("a", "c", "b", "")
    assert (topology.planes, len(topology.switches)) == (2, 2 * 4)
    assert topology.links == {"host": 2 * 4, "t0-t1": 2 * 4}
    size = 4096 + ON_THE_LINK + IMMEDIATE
    near, far = fabric.tiers[0].down, fabric.tiers[1].down
    to_host = size * 8 / near.rate + near.delay / 1e9
    between = size * 8 / far.rate + far.delay / 1e9
    for destination, expected in (("c", 2 * to_host), ("b", 2 * to_host + 2 * between)):
        flow = sim.incast([topology.host("a")], topology.host(destination), size=4096)
        done = run(topology, flow, warm_up=0.1)
        assert done.completion_times()[0] == pytest.approx(expected, rel=1e-3)
    for name in ("", "d"):
        with pytest.raises(ConfigError, match="no host"):
            topology.host(name)


def test_the_network_of_the_paper_is_as_its_table_t1_says() -> None:
    ours = sim.paper().summary()
    other = sim.three_tier(pods=64, t0=32, hosts=32, t1=32, cores=1024, rate=800e9).summary()
    assert ours["hosts"] == 131072
    assert ours["switches"] == 8 * (512 + 256)
    assert ours["links"] == 131072 * 8 * 2
    assert (ours["longest_path_switches"], other["longest_path_switches"]) == (3, 5)
    assert ours["optics_per_host"] / other["optics_per_host"] == pytest.approx(2 / 3)
    ratio = ours["switch_ports_per_host"] / other["switch_ports_per_host"]
    assert ratio == pytest.approx(3 / 5)
    assert (ours["t0_uplink_share"], other["t0_uplink_share"]) == (1 / 256, 1 / 32)
    assert (ours["host_port_share"], other["host_port_share"]) == (1 / 8, 1)
    assert [line.split() for line in t1.lines()][-2:] == [
        ["optics_per_host", "0.6667", "of", "three", "tiers"],
        ["switch_ports_per_host", "0.6000", "of", "three", "tiers"],
    ]


def test_twice_as_many_hosts_as_uplinks_take_twice_as_long() -> None:
    pairs = np.concatenate([sim.incast([i], 4 + i, size=1 << 20) for i in range(4)])
    full, half = (run(small(t0=2, t1=t1), pairs).completion_times().max() for t1 in (4, 2))
    assert 1.8 <= half / full <= 2.3


def test_a_slow_uplink_is_used_less() -> None:
    topology = small(t0=2)
    slow = topology.up_ports(topology.switch(tier=0, index=0))[0]
    link = dataclasses.replace(topology.kinds[2], rate=25e9)
    done = run(
        topology.with_kind(link, [slow]),
        np.concatenate([sim.incast([i], 4 + i, size=4 << 20) for i in range(4)]),
    )
    sent = done.ports()["sent_bytes"][topology.up_ports(topology.switch(tier=0, index=0))]
    assert sent[0] < 0.7 * sent[1:].mean()


def test_planes_carry_equal_shares() -> None:
    done = run(small(planes=4), sim.permutation(16, size=1 << 20, seed=3))
    sent = done.ports()["sent_bytes"][: 16 * 4].reshape(16, 4).sum(axis=0)
    assert sent.max() <= 1.05 * sent.min()


# Workloads


def test_a_permutation_lets_every_host_send_and_receive_once() -> None:
    flows = sim.permutation(100, size=1, seed=5)
    assert sorted(flows["source"]) == sorted(flows["destination"]) == list(range(100))
    assert (flows["source"] != flows["destination"]).all()


def test_all_to_all_in_windows_starts_a_flow_when_an_earlier_one_is_done() -> None:
    for window in (1, 3):
        flows = sim.all_to_all(range(6), size=50000, window=window)
        assert len({(f["source"], f["destination"]) for f in flows}) == 30
        times = run(small(), flows).times()
        for host in range(6):
            mine = times[flows["source"] == host]
            starts, ends = mine["started"], mine["completed"]
            assert (starts[window:] == ends[:-window]).all()
            assert (starts[:window] == 0).all()


def test_a_ring_all_reduce_passes_every_chunk_on_when_it_has_come() -> None:
    count = 5
    flows = sim.ring_all_reduce(range(count), size=count << 16)
    times = run(small(), flows).times()
    assert len(flows) == count * 2 * (count - 1)
    for index, flow in enumerate(flows[count:], count):
        before = flows[flow["after"]]
        assert (before["destination"], before["bytes"]) == (flow["source"], 1 << 16)
        assert times["started"][index] == times["received"][flow["after"]]


def test_joined_workloads_wait_each_for_its_own() -> None:
    serial = sim.all_to_all([0, 1, 2], size=1000, window=1)
    flows = sim.join(serial, sim.permutation(16, size=1 << 16, seed=1), serial)
    assert (flows["after"][-3:] == serial["after"][-3:] + len(serial) + 16).all()
    run(small(), flows)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ((0, 5, 0, 99, sim.NONE), "two hosts"),
        ((0, 5, 3, 3, sim.NONE), "two hosts"),
        ((0, 1 << 31, 0, 1, sim.NONE), "2\\^30"),
        ((-1, 5, 0, 1, sim.NONE), "start before 0"),
        ((0, 5, 0, 1, 1), "before it"),
        ((0, 5, 7, 1, 0), "sends or receives"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(flow: tuple[int, ...], message: str) -> None:
    first = (0, 5, 0, 1, sim.NONE)
    flows = np.array([first, flow], dtype=sim.FLOW)
    with pytest.raises(ConfigError, match=message):
        sim.Simulation(small(), flows)


def test_settings_that_the_core_refuses_are_refused() -> None:
    flows = sim.permutation(16, size=1, seed=1)
    for settings in (
        sim.Settings(mtu=1000),
        sim.Settings(mpr=33),
        sim.Settings(ev_count=0),
        sim.Settings(ev_count=257),
    ):
        with pytest.raises(ConfigError):
            sim.Simulation(small(), flows, settings)


# Faults


def test_lost_packets_are_sent_again() -> None:
    topology = small()
    lossy = dataclasses.replace(topology.kinds[2], loss=0.02)
    done = run(
        dataclasses.replace(topology, kinds=(*topology.kinds[:2], lossy)),
        sim.permutation(16, size=1 << 20, seed=1),
    )
    assert done.totals().lost > 50
    assert done.qps()["packets_retransmitted"].sum() >= done.totals().lost / 2


def test_duplicates_and_packets_that_overtake_change_nothing_but_the_log() -> None:
    topology = small()
    odd = dataclasses.replace(topology.kinds[2], duplicate=0.05, jitter=5e-6)
    done = run(
        dataclasses.replace(topology, kinds=(*topology.kinds[:2], odd)),
        sim.permutation(16, size=1 << 18, seed=1),
    )
    totals = done.totals()
    sent = totals.packets_sent + totals.duplicated
    assert totals.duplicated > 50
    assert sent == totals.packets_delivered + totals.dropped + totals.packets
    assert totals.flows_received == 16
    assert done.qps()["bytes_received"].sum() == 16 << 18


def test_a_fault_of_one_way_leaves_the_other_one_alone() -> None:
    topology = small(t0=2)
    up = topology.up_ports(topology.switch(tier=0, index=0))[0]
    done = run(
        topology,
        sim.join(sim.incast([0], 4, size=4 << 20), sim.incast([4], 0, size=4 << 20)),
        faults=[sim.Fault(time=20e-6, port=up, up=False, one_way=True)],
    )
    lost = done.ports()["lost"]
    assert lost[up] > 0
    assert lost[topology.peer[up]] == 0


def test_a_run_that_takes_too_many_events_fails() -> None:
    flows = sim.permutation(16, size=1 << 17, seed=2)
    simulation = sim.Simulation(small(), flows, sim.Settings(max_events=1000))
    with pytest.raises(RuntimeError, match="1000 events"):
        simulation.run()


def test_a_host_whose_port_goes_down_goes_on_by_its_other_planes() -> None:
    topology = small(planes=2)
    port = topology.host_port(0, 1)
    done = run(
        topology,
        sim.incast([0], 8, size=8 << 20),
        faults=[sim.Fault(time=100e-6, port=port, up=False)],
    )
    sent = done.ports()["sent"]
    assert 0 < sent[port] < 0.3 * sent[topology.host_port(0, 0)]
    assert done.qps()["planes_up"][0] == 0b01


def test_entropy_values_of_a_dead_link_leave_the_rotation() -> None:
    topology = small(t0=2)
    port = topology.up_ports(topology.switch(tier=0, index=0))[2]
    done = run(
        topology,
        sim.incast([0], 4, size=8 << 20),
        faults=[sim.Fault(time=50e-6, port=port, up=False)],
    )
    states = done.evs(int(done.times()["qp"][0]))["state"]
    assert 0 < done.ports()["lost"][port] < 200
    assert (states == 2).sum() == done.qps()["evs_bad"][0] > 0


# Runs


def test_a_run_is_the_same_with_the_same_seed_and_another_with_another() -> None:
    flows = sim.permutation(16, size=1 << 19, seed=2)
    hashes = [run(small(), flows, seed=seed).totals().log_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_run_in_pieces_is_the_same_run() -> None:
    flows = sim.permutation(16, size=1 << 19, seed=2)
    pieces = sim.Simulation(small(), flows, seed=1)
    end = 0.0
    while not pieces.run(end):
        assert pieces.now == round(end * PS)
        end += 7e-6
    assert pieces.totals() == run(small(), flows).totals()


def test_the_log_names_every_packet_once_sent_and_once_at_its_end() -> None:
    done = run(small(), sim.permutation(16, size=1 << 17, seed=2), log_room=1 << 16)
    log = done.log()
    assert len(log) == done.totals().log_count
    assert (np.diff(log["time"]) >= 0).all()
    whats = np.bincount(log["what"], minlength=14)
    assert whats[0] == done.totals().packets_sent
    assert whats[1] == done.totals().packets_delivered
    assert whats[7] == whats[8] == whats[9] == 16


def test_packets_with_payload_make_the_same_run_and_write_memory() -> None:
    topology = small(planes=2)
    lossy = dataclasses.replace(topology.kinds[2], loss=0.01, data_limit=12000)
    topology = dataclasses.replace(topology, kinds=(*topology.kinds[:2], lossy))
    flows = sim.all_to_all(range(6), size=70001)
    bare = run(topology, flows)
    full = run(topology, flows, payload=True)
    assert full.totals().trimmed > 0
    assert full.totals().lost > 0
    assert full.totals().log_hash == bare.totals().log_hash
    index = np.arange(70001)
    written = ((index * 131 + (index >> 8)) & 255).astype(np.uint8).tobytes()
    assert full.memory(3) == written * 5
    assert bare.memory(3) == b""


@pytest.mark.slow
def test_an_optimised_and_a_sanitized_build_log_the_same(tmp_path: Path) -> None:
    csrc = ROOT / "csrc"
    sources = [path for path in csrc.glob("*.c") if path.stem not in DRIVERS]
    sources += [*csrc.glob("sim/*.c"), ROOT / "tests" / "native" / "sim_run.c"]
    builds = {
        "fast": ["-O2"],
        "sanitized": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    }
    said = []
    for name, flags in builds.items():
        program = tmp_path / name
        subprocess.run(
            ["gcc", "-std=c11", *flags, f"-I{csrc}", *sources, "-o", program], check=True
        )
        done = subprocess.run([program], check=True, capture_output=True, text=True)
        said.append(done.stdout)
    _, _, lost, trimmed = said[0].split()
    assert int(lost) > 0
    assert int(trimmed) > 0
    assert said[0] == said[1]


def test_a_nic_with_an_idle_queue_pair_takes_24_kib_at_most() -> None:
    topology = small(planes=8)
    pairs = np.concatenate([sim.incast([i], i + 1, size=0) for i in range(0, 16, 2)])
    simulation = sim.Simulation(topology, pairs, sim.Settings(ev_count=64))
    assert simulation.totals().host_bytes / 16 <= 24 * 1024


def test_everything_is_given_back_when_all_is_quiet() -> None:
    done = run(small(planes=2), sim.all_to_all(range(16), size=30000))
    done.run_on(done.now / PS + 1e-3)
    assert done.totals().packets <= 2  # a probe of the next refresh at most
    assert (done.ports()["waiting"] == 0).all()


def test_a_queue_pair_whose_only_way_in_use_is_dead_takes_a_spare_one() -> None:
    """The peer answers probes by other ways; nothing that was sent on this one ever comes back."""
    topology = sim.two_tier(t0=2, hosts=1, t1=4, rate=1e9, fabric_rate=1e9)
    settings = sim.Settings(ev_count=1, ev_backup=3, ev_min_active=1)
    left = []
    for port in topology.up_ports(topology.switch(tier=0, index=0)):
        dead = sim.Fault(time=1e-6, port=port, up=False, one_way=True)
        flows = sim.incast([0], 1, size=100_000)
        simulation = sim.Simulation(topology, flows, settings, faults=[dead])
        assert simulation.run(2.0)
        left.append(int(simulation.qps()["evs_bad"].sum()))
    assert sum(left) == 1
