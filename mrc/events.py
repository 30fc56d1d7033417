# SPDX-License-Identifier: Apache-2.0
"""What can happen to the paths of a connection, and how they do: events and snapshots."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ConnectionStats",
    "EVInfo",
    "Event",
    "PathBad",
    "PathGood",
    "PathStats",
    "PlaneInfo",
    "PlaneLost",
    "PlaneRecovered",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events.

    Attributes:
        time: When, in seconds of `time.monotonic()`.
        plane: Name of our interface.
    """

    time: float
    plane: str


@dataclass(frozen=True, kw_only=True)
class PlaneLost(Event):
    """A plane carries no data any more: told once an outage.

    Attributes:
        reason: What was seen first: `link` (our port is down), `peer` (the peer's is), `silent`
            (nothing came back), `mtu` (full-size packets do not pass), `address` (none, or no
            neighbour), `disabled`.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class PlaneRecovered(Event):
    """A plane carries data, for the first time or again."""


@dataclass(frozen=True, kw_only=True)
class PathBad(Event):
    """One path of a plane is out.

    Attributes:
        ev: Its entropy value.
        hops: Names of its nodes, both hosts included; None: no topology says.
    """

    ev: int
    hops: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PathGood(Event):
    """One path of a plane is used again.

    Attributes:
        ev: Its entropy value.
        hops: Names of its nodes, both hosts included; None: no topology says.
    """

    ev: int
    hops: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class EVInfo:
    """One entropy value of a connection, as it is now.

    Attributes:
        ev: 32 bits.
        plane: Name of our interface.
        hops: Names of its nodes, both hosts included; None: no topology says.
        state: `good`; `skip`: congested, passed over once; `assumed bad`: it lost, and is probed;
            `denied`: by the operator; `backup`: waits to take another's place (MRC 1.0, Paths).
    """

    ev: int
    plane: str
    hops: tuple[str, ...] | None
    state: str


@dataclass(frozen=True, kw_only=True)
class PlaneInfo:
    """One plane of an endpoint, as it is now.

    Attributes:
        name: Of the interface.
        id: What both hosts call it; "" if it was not named.
        address: "" if it has none now.
        mtu: Bytes of an IP packet.
        up: It has carrier and is up.
        enabled: Nobody took it out by `disable_plane`.
        bursts: Several packets can be sent as one frame.
        receive_buffer: Bytes that the kernel granted.
        send_buffer: The same, for what is sent.
        kernel_drops: Frames that came while the receive buffer was full.
        send_errors: Frames that the kernel refused to send.
        send_error: Why it refused the last of them, as "ENOBUFS"; "" if it has refused none.
    """

    name: str
    id: str
    address: str
    mtu: int
    up: bool
    enabled: bool
    bursts: bool
    receive_buffer: int
    send_buffer: int
    kernel_drops: int
    send_errors: int
    send_error: str


@dataclass(frozen=True, kw_only=True)
class PathStats:
    """One plane of a connection: counts since the peer was first connected.

    Connections of one endpoint to one peer share them.

    Attributes:
        name: Of our interface.
        peer_name: Of the peer's.
        local_address: Ours.
        peer_address: The peer's.
        state: `probing`, `up` or `out`.
        reason: Why it is out: see `PlaneLost`; "" if it is not.
        bytes_sent: Payload, retransmissions included.
        bytes_acked: Payload that arrived by this plane.
        bytes_received: Payload of new packets.
        packets_sent: Data packets.
        packets_acked: Of these.
        packets_received: Of the peer's.
        packets_retransmitted: Sent again on this plane.
        packets_lost: Judged lost on this plane.
        ce_marks: Congestion marks reported by the peer.
        trims: Packets that a switch cut.
        outages: How often it went out.
        recoveries: How often it came back.
        rtt_us: Smoothed round trip, microseconds; 0 unknown.
        rtt_min_us: Least round trip, microseconds.
        cwnd: Congestion window, bytes.
        inflight: Bytes sent and not yet known to have arrived or to be lost.
        bursts: Frames of several packets get through.
        changed: When the state last changed, in seconds of `time.monotonic()`.
    """

    name: str
    peer_name: str
    local_address: str
    peer_address: str
    state: str
    reason: str
    bytes_sent: int
    bytes_acked: int
    bytes_received: int
    packets_sent: int
    packets_acked: int
    packets_received: int
    packets_retransmitted: int
    packets_lost: int
    ce_marks: int
    trims: int
    outages: int
    recoveries: int
    rtt_us: float
    rtt_min_us: float
    cwnd: int
    inflight: int
    bursts: bool
    changed: float


@dataclass(frozen=True, kw_only=True)
class ConnectionStats:
    """A connection as a whole: counts since it was set up.

    Attributes:
        mtu: Payload bytes a packet.
        writes_posted: Writes handed to the core: several for a large message.
        writes_completed: Of these, acknowledged.
        bytes_posted: Of these writes.
        bytes_completed: Of these, acknowledged.
        bytes_received: New payload bytes.
        messages_received: Writes of the peer executed.
        packets_sent: Data packets.
        packets_retransmitted: Of these, sent again.
        packets_spurious: Of these, in vain: the first had arrived.
        packets_duplicate: Received more than once.
        timeouts: Retransmission timers that ran out.
        probes_sent: Questions after lost packets.
        sacks_sent: Acknowledgements.
        sacks_received: Of the peer.
        nacks_sent: Refusals.
        nacks_received: Of the peer.
        inflight: Bytes sent and not yet known to have arrived or to be lost.
        cwnd: Congestion window, bytes.
        window_packets: Packets outstanding.
        rtt_us: Smoothed round trip over all planes, microseconds.
        evs_good: Paths in use.
        evs_bad: Paths that are out.
    """

    mtu: int
    writes_posted: int
    writes_completed: int
    bytes_posted: int
    bytes_completed: int
    bytes_received: int
    messages_received: int
    packets_sent: int
    packets_retransmitted: int
    packets_spurious: int
    packets_duplicate: int
    timeouts: int
    probes_sent: int
    sacks_sent: int
    sacks_received: int
    nacks_sent: int
    nacks_received: int
    inflight: int
    cwnd: int
    window_packets: int
    rtt_us: float
    evs_good: int
    evs_bad: int
