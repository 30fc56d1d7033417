# SPDX-License-Identifier: Apache-2.0
"""Every setting of an endpoint: name, unit, default, source; checked when made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from mrc.errors import ConfigError

__all__ = ["Config", "Policy", "is_engine_setting"]

Policy = Literal["adaptive", "equal"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20


def _setting(
    default: Any,
    low: float,
    high: float,
    *,
    scale: int = 1,
    engine: bool = True,
    power: bool = False,
) -> Any:
    """A number of `low` to `high`; `scale`: the engine counts in 1/scale of our unit."""
    metadata = {"low": low, "high": high, "scale": scale, "engine": engine, "power": power}
    return field(default=default, metadata=metadata)


def is_engine_setting(name: str) -> int:
    """How many of the engine's units one of ours is; 0: the setting is not the engine's."""
    metadata = Config.__dataclass_fields__[name].metadata
    return int(metadata["scale"]) if metadata.get("engine") else 0


_NS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of an endpoint and its connections. Times are in seconds, sizes in bytes.

    Numbers without a source are choices of this project; the others are the specification's.

    Attributes:
        udp_port: Destination port of every packet (RoCEv2: 4791). Both sides must have the same.
        policy: `adaptive`: packets go where they drain; `equal`: every live plane carries the same
            (the specification's rule, for a fabric that runs nothing else).
        mtu: Most payload bytes a packet: 1024, 2048, 4096, 8192; 0: the most that fits.
        burst: Most packets of one frame, 1..15; 1 turns segmentation offload off.
        mpr: PSN window that we offer, in units of 128 packets, 1..32.
        max_wimm: Writes with immediate that the peer may have in flight, 8..255.
        trimming: The fabric cuts packets instead of dropping them.
        ev_count: Entropy values of a queue pair over all planes (specification: 128-256).
        ev_backup: Spare entropy values a plane.
        ev_min_active: Entropy values of a live plane that stay in use whatever happens.
        probes_to_revive: Answered probes before a plane or entropy value is trusted again.
        revive_spread: Time over which these are spread; doubles with each flap within 60 s.
        plane_probe: Between probes of a plane that is out while there is work.
        probe_max: Longest time between probes of what is out when idle.
        ack_timeout: Retransmission time-out; 0: from the measured round trip, at least 5 ms.
        linear_cnt: Tries at the fixed time-out, at most 7.
        exp_cnt: Tries with exponential back-off, at most 25, which means for ever.
        dead_after: Silence on every plane that ends a connection.
        linger: Time for which a closed connection still answers late packets.
        sack_threshold: Received bytes that call for a SACK (specification: 16 KiB).
        sack_delay: Longest time that a SACK is held back.
        rate_bps: Rate of all planes together, bits/s; 0: what the links claim, as measured.
        dscp_control: Class of control packets (wire format, Traffic classes), as the next five.
        dscp_trimmed: Class by which a switch marks what it cut.
        dscp_trimmed_lasthop: The same at the last hop.
        dscp_trimmable: Class of data that may be cut.
        dscp_trimmable_retx: Class of retransmitted data that may be cut.
        dscp_no_trim: Class of data that must not be cut.
        spin: Time to look for work before the I/O thread sleeps; 0 where cores are scarce.
        receive_buffer: Of each plane's socket.
        send_buffer: Of each plane's socket.
        ring: Entries of the submission and completion rings, a power of 2.
        max_qps: Connections of one endpoint, lingering ones included.
        max_peers: Peers of one endpoint.
        max_regions: Memory regions of one endpoint, those of large messages included.
        max_writes: Writes under way, over all connections.
        max_chunks: Records of 64 packets in flight, over all connections.
        slots: Small messages that a peer may have under way to one connection.
        slot_size: Of each, its header of 16 bytes included.
        grants: Large messages that may be on their way to one connection at once.
        max_queue: Received, undelivered bytes of one connection beyond which the peer must wait.
        max_inflight: Bytes that `post_send` accepts before it waits.
        post_window: Bytes of large messages handed to the core at a time; what comes later and is
            urgent waits behind them.
        dad_timeout: Longest wait for an IPv6 address that is still tentative (cases.md, B30).
        crash_after: Silence that confirms a peer's crash once its control connection has ended.
    """

    udp_port: int = _setting(4791, 1, 65535)
    policy: Policy = "adaptive"
    mtu: int = 0
    burst: int = _setting(15, 1, 15)
    mpr: int = _setting(32, 1, 32, engine=False)
    max_wimm: int = _setting(64, 8, 255, engine=False)
    trimming: bool = field(default=False, metadata={"engine": True, "scale": 1})
    ev_count: int = _setting(128, 16, 256)
    ev_backup: int = _setting(8, 0, 64)
    ev_min_active: int = _setting(4, 1, 256)
    probes_to_revive: int = _setting(3, 1, 100)
    revive_spread: float = _setting(0.1, 0, 60, scale=_NS)
    plane_probe: float = _setting(0.05, 0.001, 60, scale=_NS)
    probe_max: float = _setting(5.0, 0.01, 3600, scale=_NS)
    ack_timeout: float = _setting(0.0, 0, 17.2, scale=_NS)
    linear_cnt: int = _setting(7, 0, 7)
    exp_cnt: int = _setting(25, 0, 25)
    dead_after: float = _setting(10.0, 0.01, 86400, scale=_NS)
    linger: float = _setting(2.0, 0, 60, scale=_NS)
    sack_threshold: int = _setting(16 * KIB, KIB, MIB)
    sack_delay: float = _setting(100e-6, 0, 0.1, scale=_NS)
    rate_bps: int = _setting(0, 0, 1 << 43)
    dscp_control: int = _setting(46, 0, 63)
    dscp_trimmed: int = _setting(12, 0, 63)
    dscp_trimmed_lasthop: int = _setting(16, 0, 63)
    dscp_trimmable: int = _setting(4, 0, 63)
    dscp_trimmable_retx: int = _setting(8, 0, 63)
    dscp_no_trim: int = _setting(0, 0, 63)
    spin: float = _setting(50e-6, 0, 0.01, scale=_NS)
    receive_buffer: int = _setting(32 * MIB, 64 * KIB, 1 << 30)
    send_buffer: int = _setting(8 * MIB, 64 * KIB, 1 << 30)
    ring: int = _setting(4096, 64, 1 << 20, power=True)
    max_qps: int = _setting(1024, 1, 1 << 15)
    max_peers: int = _setting(512, 1, 1 << 16)
    max_regions: int = _setting(4096, 4, 1 << 20)
    max_writes: int = _setting(4096, 16, 1 << 20)
    max_chunks: int = _setting(2048, 64, 1 << 20)
    slots: int = _setting(8, 2, 256, engine=False)
    slot_size: int = _setting(2 * KIB, 256, 64 * KIB, engine=False)
    grants: int = _setting(16, 1, 64, engine=False)
    max_queue: int = _setting(64 * MIB, 64 * KIB, 1 << 40, engine=False)
    max_inflight: int = _setting(64 * MIB, 1, 1 << 40, engine=False)
    post_window: int = _setting(32 * MIB, 64 * KIB, 1 << 40, engine=False)
    dad_timeout: float = _setting(5.0, 0, 600, engine=False)
    crash_after: float = _setting(1.0, 0.01, 600, engine=False)

    def __post_init__(self) -> None:
        if self.policy not in {"adaptive", "equal"}:
            raise ConfigError(f"policy = {self.policy!r} is neither 'adaptive' nor 'equal'")
        if self.mtu not in {0, 1024, 2048, 4096, 8192}:
            raise ConfigError(f"mtu = {self.mtu!r} is not 0, 1024, 2048, 4096 or 8192 bytes")
        if not isinstance(self.trimming, bool):
            raise ConfigError(f"trimming = {self.trimming!r} is not a bool")
        for setting in fields(self):
            if "low" in setting.metadata:
                self._check_number(setting.name, setting.metadata)
        self._check_pairs()

    def _check_number(self, name: str, limits: Any) -> None:
        value = getattr(self, name)
        is_float = isinstance(self.__dataclass_fields__[name].default, float)
        if isinstance(value, bool) or not isinstance(value, (int, float) if is_float else int):
            kind = "a number" if is_float else "an integer"
            raise ConfigError(f"{name} = {value!r} is not {kind}")
        if not limits["low"] <= value <= limits["high"]:
            raise ConfigError(f"{name} = {value} is not in {limits['low']}..{limits['high']}")
        if limits["power"] and int(value) & (int(value) - 1):
            raise ConfigError(f"{name} = {value} is not a power of 2")

    def _check_pairs(self) -> None:
        if self.ev_min_active > self.ev_count:
            raise ConfigError(
                f"ev_min_active = {self.ev_min_active} is more than ev_count = {self.ev_count}"
            )
        if self.plane_probe > self.probe_max:
            raise ConfigError(
                f"plane_probe = {self.plane_probe} is more than probe_max = {self.probe_max}"
            )
        if len({self.dscp_trimmed, self.dscp_trimmed_lasthop, self.dscp_trimmable}) < 3:
            raise ConfigError("dscp_trimmed, dscp_trimmed_lasthop, dscp_trimmable must differ")
