# SPDX-License-Identifier: Apache-2.0
"""A run: topology, flows, settings and faults in; arrays of what happened out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from mrc._core import ffi, lib
from mrc.config import Policy
from mrc.errors import ConfigError
from mrc.sim.topology import SWITCH, Topology
from mrc.sim.workload import FLOW, Flows

__all__ = ["NEVER", "Fault", "Settings", "Simulation", "Totals"]

NEVER: Final = (1 << 63) - 1
"""ps: it has not happened."""

_PS: Final = 10**12
_NS: Final = 10**9
_ANY_KIND: Final = (1 << 32) - 1

_TYPES: Final = {
    "int32_t": np.int32,
    "int64_t": np.int64,
    "uint32_t": np.uint32,
    "uint64_t": np.uint64,
}


def _dtype(name: str) -> np.dtype[Any]:
    """The numpy type of a C struct, by its own description."""
    members = ffi.typeof(name).fields
    return np.dtype(
        {
            "names": [member for member, _ in members],
            "formats": [_TYPES[member.type.cname] for _, member in members],
            "offsets": [member.offset for _, member in members],
            "itemsize": ffi.sizeof(name),
        }
    )


TIMES: Final = _dtype("mrc_sim_times")
QP: Final = _dtype("mrc_sim_qp")
PORT: Final = _dtype("mrc_sim_port_stats")
RECORD: Final = _dtype("mrc_sim_record")
EV: Final = _dtype("mrc_ev_info")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of every endpoint. Those with the name of a setting of `mrc.Config` mean the same.

    Attributes:
        mtu: Payload of a packet: 256, 512, .. 8192.
        mpr: PSN window, units of 128 packets, 1..32.
        ev_count: EVs of a queue pair over all planes, 1..256; 1 a plane pins a flow to one path,
            as ECMP does.
        ev_backup: Spare EVs a plane.
        ev_min_active: EVs of a live plane that stay in use.
        policy: How planes share the load.
        trimming: Data may be trimmed, and trims are answered.
        sack_threshold: Bytes since the last SACK that call for one.
        sack_delay: s; the delayed-SACK timer.
        ack_timeout: s; 0: from the measured RTT.
        chunks: Most records of 64 packets in flight, of a host that sends.
        dead_after: s of silence on every plane that end a queue pair.
        linear_cnt: Tries of a packet at the fixed timeout; at most 7.
        exp_cnt: Tries with exponential back-off; 25 means for ever.
        warm_up: s before the first flow, in which endpoints probe their planes.
        max_events: After which a run fails, as one that goes in circles; 0: any number.
        log_room: Log records that are kept; all are hashed.
        payload: Packets carry their payload and a right ICRC: slow, and the same run.
    """

    mtu: int = 4096
    mpr: int = 8
    ev_count: int = 128
    ev_backup: int = 8
    ev_min_active: int = 4
    policy: Policy = "equal"
    trimming: bool = True
    sack_threshold: int = 16384
    sack_delay: float = 10e-6
    ack_timeout: float = 0.0
    chunks: int = 32
    dead_after: float = 10.0
    linear_cnt: int = 7
    exp_cnt: int = 25
    warm_up: float = 100e-6
    max_events: int = 0
    log_room: int = 0
    payload: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something happens to a link, both directions of it or one.

    Attributes:
        time: s; from minus the warm-up on.
        port: Either end.
        up: False: what is on it and comes to it is lost; a host whose end it is sees its port go
            down.
        kind: Index of `Topology.kinds` from now on; None: as it is.
        one_way: Only what this port sends is concerned, and only a host at this end is told.
    """

    time: float
    port: int
    up: bool = True
    kind: int | None = None
    one_way: bool = False


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Everything so far: `mrc_sim_totals`, whose members these are."""

    events: int
    hops: int
    packets_sent: int
    packets_delivered: int
    marked: int
    trimmed: int
    dropped: int
    lost: int
    dead: int
    duplicated: int
    packets: int
    packets_peak: int
    flows_ended: int
    flows_failed: int
    flows_received: int
    log_hash: int
    log_count: int
    host_bytes: int
    fabric_bytes: int
    drop_rate: int
    controls_full: int
    drop_stale: int
    writes: int
    chunks: int
    immediates: int
    controls: int


def _pointer(name: str, array: npt.NDArray[Any]) -> Any:
    return ffi.cast(f"{name} *", ffi.from_buffer(array))


def _config(settings: Settings) -> Any:
    config = ffi.new("mrc_config *")
    lib.mrc_config_default(config)
    counts = ("ev_count", "ev_backup", "ev_min_active", "sack_threshold", "linear_cnt", "exp_cnt")
    for name in (*counts, "trimming"):
        setattr(config, name, getattr(settings, name))
    policies = {"adaptive": lib.MRC_POLICY_ADAPTIVE, "equal": lib.MRC_POLICY_EQUAL}
    config.policy = policies[settings.policy]
    config.sack_delay = round(settings.sack_delay * _NS)
    config.ack_timeout = round(settings.ack_timeout * _NS)
    config.dead_after = round(settings.dead_after * _NS)
    return config


def _kinds(topology: Topology) -> Any:
    kinds = ffi.new("mrc_sim_kind[]", len(topology.kinds))
    for out, link in zip(kinds, topology.kinds, strict=True):
        out.rate_bps = round(link.rate)
        out.delay = round(link.delay * _PS)
        out.jitter = round(link.jitter * _PS)
        out.loss_ppm = round(link.loss * 1e6)
        out.duplicate_ppm = round(link.duplicate * 1e6)
        for name in ("data_limit", "control_limit", "mark_from", "mark_to", "control_weight"):
            setattr(out, name, getattr(link, name))
        out.trim = link.trim
    return kinds


def _ports(topology: Topology) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(
        np.stack([topology.peer, topology.node, topology.kind], axis=1), dtype=np.uint32
    )


def _faults(faults: Sequence[Fault]) -> Any:
    out = ffi.new("mrc_sim_fault[]", max(len(faults), 1))
    for target, fault in zip(out, faults, strict=False):
        target.time = round(fault.time * _PS)
        target.port = fault.port
        target.kind = _ANY_KIND if fault.kind is None else fault.kind
        target.up = fault.up
        target.one_way = fault.one_way
    return out


class Simulation:
    """Endpoints of the core on a topology, with flows between them, from one seed.

    The same arguments give the same run, to the last byte of its log (`totals().log_hash`).
    Results can be read at any time between two calls of `run`; time series are made so.
    """

    def __init__(
        self,
        topology: Topology,
        flows: Flows,
        settings: Settings | None = None,
        *,
        faults: Sequence[Fault] = (),
        seed: int = 0,
    ) -> None:
        """Builds network, endpoints and connections.

        Args:
            topology: Hosts, switches, links.
            flows: Array of dtype `FLOW`.
            settings: Of every endpoint; None: the defaults.
            faults: What happens to links, in any order.
            seed: Of everything random.

        Raises:
            ConfigError: Something contradicts something else.
        """
        self.topology = topology
        self.settings = settings or Settings()
        self.flows = np.ascontiguousarray(flows, dtype=FLOW)
        ports = _ports(topology)
        switches = np.ascontiguousarray(topology.switches, dtype=SWITCH)
        kinds, failing = _kinds(topology), _faults(faults)
        setup = ffi.new("mrc_sim_setup *")
        setup.seed = seed
        setup.host_count, setup.planes = topology.hosts, topology.planes
        setup.port_count, setup.ports = len(ports), _pointer("mrc_sim_port", ports)
        setup.switch_count = len(switches)
        setup.switches = _pointer("mrc_sim_switch", switches)
        setup.kind_count, setup.kinds = len(topology.kinds), kinds
        setup.flow_count, setup.flows = len(flows), _pointer("mrc_sim_flow", self.flows)
        setup.fault_count, setup.faults = len(faults), failing
        setup.config = _config(self.settings)[0]
        for name in ("mtu", "mpr", "chunks", "max_events", "log_room", "payload"):
            setattr(setup, name, getattr(self.settings, name))
        setup.warm_up = round(self.settings.warm_up * _PS)
        problem = ffi.new("char const **")
        self._sim = ffi.gc(lib.mrc_sim_new(setup, problem), lib.mrc_sim_free)
        if self._sim == ffi.NULL:
            raise ConfigError(ffi.string(problem[0]).decode())

    def close(self) -> None:
        """Gives the memory back now; the object is of no use afterwards."""
        ffi.release(self._sim)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    @property
    def now(self) -> int:
        """Ps."""
        return int(lib.mrc_sim_now(self._sim))

    def run(self, until: float | None = None) -> bool:
        """Runs until every flow has ended, at most until a time.

        Args:
            until: s; None: no limit.

        Returns:
            Whether every flow has ended.

        Raises:
            MemoryError: There was none for packets or events; the run means nothing any more.
            RuntimeError: There have been `Settings.max_events` events.
        """
        return self._run(NEVER if until is None else round(until * _PS), until_ended=True)

    def run_on(self, until: float) -> bool:
        """Runs until a time in seconds, whether flows are left or not; else as `run`."""
        return self._run(round(until * _PS), until_ended=False)

    def _run(self, until: int, *, until_ended: bool) -> bool:
        done = lib.mrc_sim_run(self._sim, until, until_ended)
        if done == lib.MRC_ERROR_STATE:
            raise RuntimeError(f"not done after {self.settings.max_events} events")
        if done < 0:
            raise MemoryError("no memory for packets or events")
        return bool(done)

    def totals(self) -> Totals:
        """Counts of everything so far."""
        out = ffi.new("mrc_sim_totals *")
        lib.mrc_sim_get_totals(self._sim, out)
        return Totals(**{each.name: int(getattr(out, each.name)) for each in fields(Totals)})

    def times(self) -> npt.NDArray[Any]:
        """For each flow `started`, `received`, `completed` (ps or `NEVER`), `status` and `qp`."""
        out = np.zeros(len(self.flows), dtype=TIMES)
        lib.mrc_sim_get_times(self._sim, _pointer("mrc_sim_times", out))
        return out

    def completion_times(self) -> npt.NDArray[np.float64]:
        """For each flow the seconds from its start until all of it was received; NaN: not yet."""
        times = self.times()
        done = times["received"] != NEVER
        seconds = np.full(len(times), np.nan)
        seconds[done] = (times["received"][done] - times["started"][done]) / _PS
        return seconds

    def goodput(self) -> npt.NDArray[np.float64]:
        """For each flow its payload over its completion time, bit/s; NaN: not yet received."""
        bits: npt.NDArray[np.float64] = self.flows["bytes"] * 8.0 / self.completion_times()
        return bits

    def qps(self) -> npt.NDArray[Any]:
        """For each queue pair its `mrc_sim_qp`: host, peer, packets, retransmissions, EVs, ..."""
        out = np.zeros(lib.mrc_sim_qp_count(self._sim), dtype=QP)
        lib.mrc_sim_get_qps(self._sim, _pointer("mrc_sim_qp", out))
        return out

    def evs(self, qp: int) -> npt.NDArray[Any]:
        """`ev`, `plane` and `state` (0 good, 1 skip, 2 assumed bad, 3 denied, 4 backup) of a QP."""
        out = np.zeros(512, dtype=EV)
        count = lib.mrc_sim_get_evs(self._sim, qp, _pointer("mrc_ev_info", out), len(out))
        if count < 0:
            raise ConfigError(f"there is no queue pair {qp}")
        return out[:count]

    def ports(self) -> npt.NDArray[Any]:
        """For each port its `mrc_sim_port_stats`: packets, bytes, queue now and at most, drops."""
        out = np.zeros(len(self.topology.peer), dtype=PORT)
        lib.mrc_sim_get_ports(self._sim, _pointer("mrc_sim_port_stats", out))
        return out

    def log(self) -> npt.NDArray[Any]:
        """The last `Settings.log_room` records: `mrc_sim_record`, oldest first."""
        out = np.zeros(self.settings.log_room, dtype=RECORD)
        count = lib.mrc_sim_get_log(self._sim, _pointer("mrc_sim_record", out), len(out))
        return out[:count]

    def memory(self, host: int) -> bytes:
        """What flows wrote to a host, each behind the one before; b"" without `payload`."""
        size = ffi.new("uint64_t *")
        data = lib.mrc_sim_memory(self._sim, host, size)
        return b"" if data == ffi.NULL else bytes(ffi.buffer(data, size[0]))
