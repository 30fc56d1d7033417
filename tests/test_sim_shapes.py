# SPDX-License-Identifier: Apache-2.0
"""What the core achieves on whole fabrics, as ratios: 128 hosts of a fat tree at 100 Gb/s.

Figures to beat are those of the htsim of Ultra Ethernet on the same network.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mrc import sim

TREE = sim.three_tier(pods=8, t0=4, hosts=4, t1=4, cores=16)
RATE = 100e9
MTU = 4096
OVERHEAD = 98 + 24
"""Bytes of a packet beyond its payload: headers and trailer; preamble, FCS and gap."""

PACKETS = 65536 // MTU
SENDERS = 32
SETTLED = 60e-3
"""s of warm-up for many peers of one: some of their first full-size probes are lost."""


def run(topology: sim.Topology, flows: Any, *, seed: int = 1, **settings: Any) -> sim.Simulation:
    """All flows have ended well; otherwise the test fails."""
    simulation = sim.Simulation(topology, flows, sim.Settings(**settings), seed=seed)
    assert simulation.run(1.0), simulation.totals()
    assert simulation.totals().flows_failed == 0
    return simulation


def tail(simulation: sim.Simulation) -> float:
    """When the last flow was received, s."""
    return float(simulation.times()["received"].max()) / 1e12


def alone(flows: Any, **settings: Any) -> float:
    """What the first flow takes in an empty network, s."""
    return tail(run(TREE, flows[:1], **settings))


def resent(simulation: sim.Simulation) -> float:
    """Retransmissions for each packet that had to be sent."""
    qps = simulation.qps()
    again = qps["packets_retransmitted"].sum()
    return float(again / (qps["packets_sent"].sum() - again))


def incast(seed: int, *, size: int, senders: int = SENDERS) -> Any:
    """From hosts anywhere to one."""
    receiver, *others = np.random.default_rng(seed).permutation(TREE.hosts).tolist()
    return sim.incast(others[:senders], receiver, size=size)


def ideal(flows: Any) -> float:
    """The receiver's port never idle: a flow alone, and the other flows' packets, s."""
    sizes = flows["bytes"][1:].tolist()
    wire = sum(int(size) + -(-int(size) // MTU) * OVERHEAD for size in sizes)
    return alone(flows) + wire * 8 / RATE


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_spraying_shortens_the_tail_of_a_permutation_at_least_threefold(seed: int) -> None:
    """2 MB each; to beat: 3.6 to 4.5 times, and 1.15 times a flow alone."""
    flows = sim.permutation(128, size=2 << 20, seed=seed)
    sprayed = tail(run(TREE, flows, seed=seed))
    pinned = tail(run(TREE, flows, seed=seed, ev_count=1, ev_backup=0, ev_min_active=1))
    assert pinned >= 3 * sprayed
    assert sprayed <= 1.2 * alone(flows)


@pytest.mark.parametrize("seed", SEEDS)
def test_four_slow_core_links_are_spared(seed: int) -> None:
    """They keep a quarter of their speed; to beat: 1.18 times a healthy network."""
    flows = sim.permutation(128, size=2 << 20, seed=seed)
    slow = dataclasses.replace(TREE.kinds[2], rate=RATE / 4)
    links = [TREE.up_ports(TREE.switch(tier=1, index=5 * i))[i] for i in range(4)]
    assert tail(run(TREE.with_kind(slow, links), flows, seed=seed)) <= 1.3 * tail(
        run(TREE, flows, seed=seed)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_an_incast_of_short_flows_sends_again_only_what_its_first_burst_lost(seed: int) -> None:
    """64 KB each; to beat: 1.12 times the ideal.

    All windows are open when nobody knows of the others: of 512 packets the port takes what it
    sends in the meantime and what its queue holds, 58, and trims the rest once.
    """
    flows = incast(seed, size=PACKETS * MTU)
    done = run(TREE, flows, seed=seed, trimming=True)
    assert tail(done) <= 1.2 * ideal(flows)
    assert resent(done) < 1


@pytest.mark.parametrize("seed", SEEDS)
def test_an_incast_without_trims_is_repaired_while_its_queue_still_drains(seed: int) -> None:
    """64 KB each; to beat: 1.25 times the ideal with inference, 2.6 by timeouts.

    What the queue had no room for is the end of each flow: nothing follows that could show it but a
    probe that waits in the same queue.
    """
    tree = sim.three_tier(pods=8, t0=4, hosts=4, t1=4, cores=16, trim=False)
    flows = incast(seed, size=PACKETS * MTU)
    done = run(tree, flows, seed=seed, warm_up=SETTLED)
    assert done.totals().dropped > len(flows)
    assert tail(done) <= 1.35 * ideal(flows)


def test_an_incast_of_long_flows_does_not_storm_with_trims() -> None:
    """2 MB each; to beat: 0.15 retransmissions a packet."""
    flows = incast(1, size=2 << 20)
    done = run(TREE, flows, trimming=True)
    assert tail(done) <= 1.05 * ideal(flows)
    assert resent(done) <= 0.25


@pytest.mark.parametrize(("trimming", "limit"), [(True, 1.2), (False, 1.45)])
def test_an_incast_of_all_hosts_is_repaired_with_trims_and_without(
    trimming: bool, limit: float
) -> None:
    """64 KB each; to beat: 1.3 times as long without trims, of which 1.2 by inference."""
    flows = incast(1, size=PACKETS * MTU, senders=TREE.hosts - 1)
    tree = sim.three_tier(pods=8, t0=4, hosts=4, t1=4, cores=16, trim=trimming)
    done = run(tree, flows, trimming=trimming, warm_up=SETTLED)
    assert done.totals().trimmed + done.totals().dropped > len(flows) * PACKETS / 2
    assert tail(done) <= limit * ideal(flows)


def test_an_all_to_all_in_turns_keeps_every_port_busy() -> None:
    """16 hosts, 2 MB to each other one; to beat: 1.2 times the ideal."""
    flows = sim.all_to_all(range(0, 128, 8), size=2 << 20, window=1)
    assert tail(run(TREE, flows)) <= 1.2 * 15 * alone(flows)
