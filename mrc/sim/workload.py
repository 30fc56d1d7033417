# SPDX-License-Identifier: Apache-2.0
"""Who writes what to whom: flows as arrays.

Each function returns an array of dtype `FLOW`; arrays of several workloads can be joined with
`join`. A flow is one RDMA write with immediate. One that waits (`after`) starts when the named flow
has ended at its own source: completed, if that source sent it, or received there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mrc.errors import ConfigError

__all__ = ["FLOW", "NONE", "all_to_all", "incast", "join", "permutation", "ring_all_reduce"]

FLOW: Final = np.dtype(
    [
        ("start", np.int64),
        ("bytes", np.uint64),
        ("source", np.uint32),
        ("destination", np.uint32),
        ("after", np.uint32),
    ],
    align=True,
)
"""`mrc_sim_flow`: start in ps, bytes, two hosts, and the index of the flow that it waits for."""

NONE: Final = (1 << 32) - 1
"""`after` of a flow that waits for none."""

Flows = npt.NDArray[Any]


def _flows(source: Any, destination: Any, size: int, *, after: Any = NONE) -> Flows:
    if not 0 <= size <= 1 << 30:
        raise ConfigError("a flow has at most 2^30 bytes")
    flows = np.zeros(np.size(source), dtype=FLOW)
    flows["source"] = np.ravel(source)
    flows["destination"] = np.ravel(destination)
    flows["bytes"] = size
    flows["after"] = np.ravel(after)
    return flows


def permutation(hosts: int, *, size: int, seed: int) -> Flows:
    """Every host writes `size` bytes to another, and receives from one: a random cycle."""
    if hosts < 2:
        raise ConfigError("a permutation needs two hosts")
    order = np.random.default_rng(seed).permutation(hosts)
    return _flows(order, np.roll(order, -1), size)


def incast(senders: Sequence[int], receiver: int, *, size: int) -> Flows:
    """All senders write `size` bytes to one host at once."""
    return _flows(np.asarray(senders), np.full(len(senders), receiver), size)


def all_to_all(members: Sequence[int], *, size: int, window: int = 0) -> Flows:
    """Each member writes `size` bytes to every other, the next one first.

    Args:
        members: Hosts.
        size: Of each flow, bytes.
        window: Flows that a member has under way at once: 1 is serial; 0: all at once.
    """
    count = len(members)
    hosts = np.asarray(members)
    shift, index = np.meshgrid(np.arange(1, count), np.arange(count), indexing="ij")
    after = np.full(shift.shape, NONE, dtype=np.int64)
    if window > 0:
        numbers = np.arange(shift.size).reshape(shift.shape)
        after[window:] = numbers[:-window]
    return _flows(hosts[index], hosts[(index + shift) % count], size, after=after)


def ring_all_reduce(members: Sequence[int], *, size: int) -> Flows:
    """A ring all-reduce of `size` bytes a member, with its data dependencies.

    Reduce-scatter, then all-gather: in each of 2 (n - 1) steps a member writes a chunk of size / n
    to the next one, as soon as it has received the chunk of the step before.
    """
    count = len(members)
    hosts = np.asarray(members)
    step, index = np.meshgrid(np.arange(2 * (count - 1)), np.arange(count), indexing="ij")
    after = (step - 1) * count + (index - 1) % count
    after[0] = NONE
    return _flows(hosts[index], hosts[(index + 1) % count], -(-size // count), after=after)


def join(*workloads: Flows) -> Flows:
    """Several workloads at once, each waiting only for its own."""
    joined = np.concatenate(workloads)
    offset = 0
    for flows in workloads:
        part = joined[offset : offset + len(flows)]
        part["after"][part["after"] != NONE] += offset
        offset += len(flows)
    return joined
