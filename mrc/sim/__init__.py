# SPDX-License-Identifier: Apache-2.0
"""A whole fabric of MRC endpoints in virtual time, in one process and from one seed.

    topology = sim.two_tier(t0=8, hosts=8, t1=4, planes=2, rate=100e9)
    run = sim.Simulation(topology, sim.permutation(topology.hosts, size=1 << 20, seed=1))
    run.run()
    print(run.completion_times().max())

The endpoints are the C core that also runs on real packets: the same windows, paths and verdicts.
Switches have the queues, marks and trims of the userspace fabric. Times in arrays are integer
picoseconds since the first flow may start; arguments are seconds, bit/s and bytes. Needs numpy, the
extra `sim`.
"""

from mrc.sim.simulation import NEVER, Fault, Settings, Simulation, Totals
from mrc.sim.topology import Link, Topology, from_fabric, paper, three_tier, two_tier
from mrc.sim.workload import (
    FLOW,
    NONE,
    all_to_all,
    incast,
    join,
    permutation,
    ring_all_reduce,
)

__all__ = [
    "FLOW",
    "NEVER",
    "NONE",
    "Fault",
    "Link",
    "Settings",
    "Simulation",
    "Topology",
    "Totals",
    "all_to_all",
    "from_fabric",
    "incast",
    "join",
    "paper",
    "permutation",
    "ring_all_reduce",
    "three_tier",
    "two_tier",
]
