# SPDX-License-Identifier: Apache-2.0
"""Every setting of an endpoint: name, unit, default, source; checked when made."""

from __future__ import annotations

import difflib
import functools
import os
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from mrc.errors import ConfigError

__all__ = ["Config", "Policy", "Routing", "is_engine_setting"]

Policy = Literal["adaptive", "equal"]
Routing = Literal["ecmp", "srv6", "stev"]

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


def _names_what_is_meant(cls: type[Config]) -> type[Config]:
    """Lets a misspelt setting be told with the one that was meant."""
    make = cls.__init__

    @functools.wraps(make)
    def init(self: Config, *args: Any, **settings: Any) -> None:
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else "help(mrc.Config) lists them all"
                raise ConfigError(f"there is no setting {name}: {hint}")
        make(self, *args, **settings)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


_NS: Final = 1_000_000_000


@_names_what_is_meant
@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of an endpoint and its connections.

    Each line ends with the unit, the default, and where that comes from: "MRC", the specification
    (OCP Multipath Reliable Connection 1.0); "choice", ours.

    Attributes:
        udp_port: Destination port of every packet; the same on both sides. [4791; RoCEv2]
        mtu: Most payload of a packet: 1024, 2048, 4096, 8192; 0: the most that fits every plane.
            [bytes; 0; choice]
        burst: Most packets of one frame; 1 turns segmentation offload off. [packets; 15; choice]
        rate_bps: Of all planes together; 0: what the links claim, as measured. [bits/s; 0; choice]

        policy: `adaptive`: packets go where they drain; `equal`: every live plane carries the same,
            for a fabric that runs nothing else (the rule of MRC). [adaptive; choice]
        routing: `ecmp`: switches choose the way by a hash of the entropy value; `srv6`: the sender
            names it in an outer IPv6 header, `stev`: in bit fields of the entropy value that
            switches read, both as `topology` says. [ecmp; MRC]
        topology: File that describes the fabric, for `srv6` and `stev`. [topology.toml; choice]
        srh: In `srv6`, repeat the way in an SRH, for those who look on. [False; choice]
        ev_count: Entropy values of a queue pair, over all planes, at least one in each.
            [128; MRC, 128-256]
        ev_backup: Spare entropy values of each plane. [8; choice]
        ev_min_active: Entropy values of a live plane that stay in use as long as losses may be
            chance, at most half of those it has; of dead paths only the last one does. [4; choice]

        mpr: PSN window that we offer. [128 packets; 32; choice]
        max_wimm: Writes with immediate that the peer may have in flight. [64; choice]
        sack_threshold: Received bytes that call for a SACK. [bytes; 16 KiB; MRC]
        sack_delay: Longest time that a SACK is held back. [s; 100e-6; choice]
        trimming: The fabric cuts packets instead of dropping them. [False; MRC]

        ack_timeout: Retransmission time-out; 0: from the measured round trip, at least 5 ms.
            [s; 0; choice]
        linear_cnt: Tries at the fixed time-out. [7; choice]
        exp_cnt: Tries with exponential back-off; 25: for ever. [25; choice]
        plane_probe: Between probes of a plane that is out while there is work. [s; 0.05; choice]
        probe_max: Longest time between probes of what is out when idle. [s; 5; choice]
        probes_to_revive: Answered probes before a plane or entropy value is trusted again.
            [3; choice]
        revive_spread: Time over which these are spread; doubles with each flap within 60 s.
            [s; 0.1; choice]
        dead_after: Time without an answer on any plane that ends a connection. [s; 10; choice]
        crash_after: Silence that confirms a peer's crash once its control connection has ended.
            [s; 1; choice]
        linger: Time for which a closed connection still answers late packets. [s; 2; choice]
        dad_timeout: Longest wait for an IPv6 address whose duplicate address detection (RFC 4862)
            is not over. [s; 5; choice]

        dscp_control: Class of control packets. [46; MRC]
        dscp_trimmed: Class by which a switch marks what it cut. [12; MRC]
        dscp_trimmed_lasthop: The same at the last hop. [16; MRC]
        dscp_trimmable: Class of data that may be cut. [4; MRC]
        dscp_trimmable_retx: Class of retransmitted data that may be cut. [8; MRC]
        dscp_no_trim: Class of data that must not be cut. [0; MRC]

        slots: Small messages that a peer may have under way to one connection. [8; choice]
        slot_size: Of each, its header of 16 bytes included. [bytes; 2 KiB; choice]
        grants: Large messages that may be on their way to one connection at once. [16; choice]
        max_queue: Received, undelivered bytes of one connection beyond which the peer must wait.
            [bytes; 64 MiB; choice]
        max_inflight: What `post_send` accepts before it waits. [bytes; 64 MiB; choice]
        post_window: Of large messages handed to the core at a time; what comes later and is urgent
            waits behind it. [bytes; 32 MiB; choice]

        spin: Time to look for work before the I/O thread sleeps; 0 where cores are scarce.
            [s; 50e-6; choice]
        receive_buffer: Of each plane's socket. [bytes; 32 MiB; choice]
        send_buffer: Of each plane's socket. [bytes; 8 MiB; choice]
        ring: Entries of the submission and completion rings, a power of 2. [4096; choice]
        max_qps: Connections of one endpoint, lingering ones included. [1024; choice]
        max_peers: Peers of one endpoint. [512; choice]
        max_regions: Memory regions of one endpoint, those of large messages included.
            [4096; choice]
        max_writes: Writes under way, over all connections. [4096; choice]
        max_chunks: Records of 64 packets in flight, over all connections. [2048; choice]

    Raises:
        ConfigError: A setting is out of range, contradicts another, or does not exist; the message
            names it and says what would do.
    """

    # What a packet is.
    udp_port: int = _setting(4791, 1, 65535)
    mtu: int = 0
    burst: int = _setting(15, 1, 15)
    rate_bps: int = _setting(0, 0, 1 << 43)

    # Which way it takes.
    policy: Policy = "adaptive"
    routing: Routing = "ecmp"
    topology: str | os.PathLike[str] = "topology.toml"
    srh: bool = False
    ev_count: int = _setting(128, 1, 256)
    ev_backup: int = _setting(8, 0, 64)
    ev_min_active: int = _setting(4, 1, 256)

    # What is acknowledged, and what may be outstanding.
    mpr: int = _setting(32, 1, 32, engine=False)
    max_wimm: int = _setting(64, 8, 255, engine=False)
    sack_threshold: int = _setting(16 * KIB, KIB, MIB)
    sack_delay: float = _setting(100e-6, 0, 0.1, scale=_NS)
    trimming: bool = field(default=False, metadata={"engine": True, "scale": 1})

    # What is given up, when, and taken back.
    ack_timeout: float = _setting(0.0, 0, 17.2, scale=_NS)
    linear_cnt: int = _setting(7, 0, 7)
    exp_cnt: int = _setting(25, 0, 25)
    plane_probe: float = _setting(0.05, 0.001, 60, scale=_NS)
    probe_max: float = _setting(5.0, 0.01, 3600, scale=_NS)
    probes_to_revive: int = _setting(3, 1, 100)
    revive_spread: float = _setting(0.1, 0, 60, scale=_NS)
    dead_after: float = _setting(10.0, 0.01, 86400, scale=_NS)
    crash_after: float = _setting(1.0, 0.01, 600, engine=False)
    linger: float = _setting(2.0, 0, 60, scale=_NS)
    dad_timeout: float = _setting(5.0, 0, 600, engine=False)

    # Traffic classes.
    dscp_control: int = _setting(46, 0, 63)
    dscp_trimmed: int = _setting(12, 0, 63)
    dscp_trimmed_lasthop: int = _setting(16, 0, 63)
    dscp_trimmable: int = _setting(4, 0, 63)
    dscp_trimmable_retx: int = _setting(8, 0, 63)
    dscp_no_trim: int = _setting(0, 0, 63)

    # Messages.
    slots: int = _setting(8, 2, 256, engine=False)
    slot_size: int = _setting(2 * KIB, 256, 64 * KIB, engine=False)
    grants: int = _setting(16, 1, 64, engine=False)
    max_queue: int = _setting(64 * MIB, 64 * KIB, 1 << 40, engine=False)
    max_inflight: int = _setting(64 * MIB, 1, 1 << 40, engine=False)
    post_window: int = _setting(32 * MIB, 64 * KIB, 1 << 40, engine=False)

    # What the host gives.
    spin: float = _setting(50e-6, 0, 0.01, scale=_NS)
    receive_buffer: int = _setting(32 * MIB, 64 * KIB, (1 << 30) - 1)
    send_buffer: int = _setting(8 * MIB, 64 * KIB, (1 << 30) - 1)
    ring: int = _setting(4096, 64, 1 << 20, power=True)
    max_qps: int = _setting(1024, 1, 1 << 15)
    max_peers: int = _setting(512, 1, 1 << 16)
    max_regions: int = _setting(4096, 4, 1 << 20)
    max_writes: int = _setting(4096, 16, 1 << 20)
    max_chunks: int = _setting(2048, 64, 1 << 20)

    def __post_init__(self) -> None:
        if self.policy not in {"adaptive", "equal"}:
            raise ConfigError(f"policy = {self.policy!r} is neither 'adaptive' nor 'equal'")
        if self.routing not in {"ecmp", "srv6", "stev"}:
            raise ConfigError(f"routing = {self.routing!r} is none of 'ecmp', 'srv6', 'stev'")
        if not isinstance(self.topology, str | os.PathLike):
            raise ConfigError(f"topology = {self.topology!r} is not the path of a file")
        if not isinstance(self.srh, bool):
            raise ConfigError(f"srh = {self.srh!r} is neither True nor False")
        if self.mtu not in {0, 1024, 2048, 4096, 8192}:
            raise ConfigError(
                f"mtu = {self.mtu!r} is not the payload of a packet, 1024, 2048, 4096 or 8192 "
                "bytes; 0 takes the most that the interfaces' MTU allows"
            )
        if not isinstance(self.trimming, bool):
            raise ConfigError(f"trimming = {self.trimming!r} is neither True nor False")
        for setting in fields(self):
            if "low" in setting.metadata:
                self._check_number(setting.name, setting.metadata)
        self._check_pairs()

    def _check_number(self, name: str, limits: Any) -> None:
        value = getattr(self, name)
        is_float = isinstance(self.__dataclass_fields__[name].default, float)
        if isinstance(value, bool) or not isinstance(value, (int, float) if is_float else int):
            kind = "a number of seconds" if is_float else "an integer"
            raise ConfigError(f"{name} = {value!r} is not {kind}")
        if not limits["low"] <= value <= limits["high"]:
            unit = " s" if is_float else ""
            raise ConfigError(f"{name} = {value} is not in {limits['low']}..{limits['high']}{unit}")
        if limits["power"] and int(value) & (int(value) - 1):
            lower = 1 << (int(value).bit_length() - 1)
            raise ConfigError(f"{name} = {value} is not a power of 2 as {lower} or {2 * lower}")

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
