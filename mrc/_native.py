# SPDX-License-Identifier: Apache-2.0
"""The C engine as a Python object: lifetimes, and status codes turned into exceptions.

With wire.py, buffers.py and sim/simulation.py the only module that sees `ffi` or `lib`. An `Engine`
keeps everything alive that C may touch; nothing here knows messages, connections or asyncio.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from mrc._core import ffi, lib
from mrc.config import Config, is_engine_setting
from mrc.errors import AfterForkError, CapabilityError, ConfigError, MRCError
from mrc.planes import Address
from mrc.topology import Template

__all__ = [
    "Attributes",
    "Engine",
    "EngineEvent",
    "PeerPlane",
    "Pin",
    "TableFull",
    "ffi",
    "lib",
]

PLANE_STATES: Final = ("absent", "probing", "up", "out")
PLANE_REASONS: Final = ("", "link", "peer", "silent", "mtu", "address", "disabled")
EV_STATES: Final = ("good", "skip", "assumed bad", "denied", "backup")

STATUS_OK: Final = 0
FLUSHED: Final = -16
REMOTE_ACCESS: Final = -17
RETRY_EXCEEDED: Final = -20
PEER_SILENT: Final = -21
PEER_RESTARTED: Final = -22
PEER_CLOSED: Final = -23

EVENT_QP: Final = 3
EVENT_PLANE: Final = 4
EVENT_EV: Final = 5
EVENT_PROBE: Final = 6

_EVENT_WRITE: Final = 1
_EVENT_RECEIVE: Final = 2
_ERROR_FULL: Final = -2
_POLL: Final = 64

_MEANINGS: Final = {
    -1: "an argument is out of range",
    -3: "not in this state",
    -4: "there is no such object",
}

_CAPABILITY: Final = (
    "raw sockets need CAP_NET_RAW: run as root, or `setcap cap_net_raw,cap_net_admin+ep` on the "
    "Python interpreter, or AmbientCapabilities=CAP_NET_RAW in the systemd unit"
)


_LIMITS: Final = {
    errno.EAGAIN: "no thread can be started: see `ulimit -u` and `ulimit -v`",
    errno.EMFILE: "too many open files: see `ulimit -n`",
    errno.ENOMEM: "not enough memory: see `ulimit -v`",
}


class TableFull(MRCError):
    """A table of the engine has no room now: a matter of waiting."""


class Pin:
    """A buffer's memory, exported to C until `release`."""

    __slots__ = ("pointer", "size")

    def __init__(self, buffer: Any, *, writable: bool = False) -> None:
        self.pointer = ffi.from_buffer("uint8_t[]", buffer, require_writable=writable)
        self.size = len(self.pointer)

    def release(self) -> None:
        """Gives the buffer back to its owner; C must be done with it."""
        ffi.release(self.pointer)


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """What one side of a queue pair tells the other (MRC 1.0)."""

    number: int
    psn: int
    mtu: int
    mpr: int
    max_wimm: int
    trim_nack: bool
    dynamic_mpr: bool


@dataclass(frozen=True, kw_only=True)
class PeerPlane:
    """A peer's plane as paired with one of ours.

    Attributes:
        number: Of our plane.
        remote: The peer's number of it.
        address: Where the peer is reached.
        next_hop: The neighbour on the way, often the same.
    """

    number: int
    remote: int
    address: Address
    next_hop: Address


@dataclass(frozen=True, kw_only=True)
class EngineEvent:
    """An event that is no completion; which members count depends on `type`."""

    type: int
    status: int
    qp: int
    peer: int
    plane: int
    ev: int
    state: int
    reason: int
    tag: int
    time: int
    rtt: int


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_fork_hook: list[bool] = []


def _forget_all() -> None:
    for engine in list(_engines):
        engine._forget()


def _fill_template(out: Any, path: Template, *, srh: bool) -> None:
    out.block = path.block.network_address.packed
    out.block_size = path.block.prefixlen // 8
    out.usid_count = len(path.usids)
    out.uplink_hop = len(path.usids) if path.uplink_hop is None else path.uplink_hop
    out.srh = srh
    out.uplinks = path.uplinks
    out.plane_stride = path.plane_stride
    for hop, usid in enumerate(path.usids):
        out.usids[hop] = usid


def _fill_address(out: Any, address: Address | None) -> None:
    out.version = address.version if address else 0
    if address:
        ffi.memmove(out.bytes, address.packed, len(address.packed))


def _read_address(value: Any) -> Address | None:
    if not value.version:
        return None
    return ipaddress.ip_address(bytes(value.bytes)[: 4 if value.version == 4 else 16])


def _as_dict(struct: Any) -> dict[str, int]:
    return {
        name: int(getattr(struct, name))
        for name, member in ffi.typeof(struct).fields
        if member.type.kind in {"primitive", "enum"}
    }


def _engine_config(config: Config, incarnation: int, *, threaded: bool) -> Any:
    out = ffi.new("mrc_engine_config *")
    lib.mrc_engine_config_default(out)
    core = {name for name, _ in ffi.typeof("mrc_config").fields}
    for setting in fields(Config):
        scale = is_engine_setting(setting.name)
        value = getattr(config, setting.name)
        if scale and value is not None:
            target = out.core if setting.name in core else out
            setattr(target, setting.name, round(value * scale))
    policies = {"adaptive": lib.MRC_POLICY_ADAPTIVE, "equal": lib.MRC_POLICY_EQUAL}
    out.core.policy = policies[config.policy]
    out.core.incarnation = incarnation
    out.core.qp_prefix = 1 + secrets.randbelow(255)
    out.seed = secrets.randbits(64)
    out.threaded = threaded
    return out


class Engine:
    """One engine; all its numbers, keys and times are the engine's (ns, bytes).

    Raises (every method):
        AfterForkError: In a child of fork().
        MRCError: The engine was closed, or it refused; the message says what.
        OSError: A system call of the engine failed.

    Attributes:
        incarnation: 64 random bits that no other engine has.
        fd: An eventfd, readable while `poll` has something to give.
    """

    def __init__(self, config: Config, *, threaded: bool = True) -> None:
        """Opens an engine without planes.

        Raises:
            CapabilityError: This process may not open raw sockets.
            ConfigError: The settings contradict each other.
            OSError: Any other failure.
        """
        code = lib.mrc_engine_probe_capability()
        if code in {errno.EPERM, errno.EACCES}:
            raise CapabilityError(_CAPABILITY)
        self.incarnation = secrets.randbits(64)
        self._forked = False
        self._regions: dict[int, Pin] = {}
        error = ffi.new("int *")
        settings = _engine_config(config, self.incarnation, threaded=threaded)
        self._engine = lib.mrc_engine_open(settings, error)
        if self._engine == ffi.NULL:
            if error[0] == errno.EINVAL:
                raise ConfigError("the engine refuses these settings: too large or contradictory")
            told = _LIMITS.get(error[0], os.strerror(error[0]))
            raise OSError(error[0], f"cannot start the engine: {told}")
        self.fd: int = lib.mrc_engine_fd(self._engine)
        self._events = ffi.new("mrc_event[]", _POLL)
        self._submission = ffi.new("mrc_submission *")
        if not _fork_hook:
            _fork_hook.append(True)
            os.register_at_fork(after_in_child=_forget_all)
        _engines.add(self)

    def close(self) -> None:
        """Ends it; nothing is flushed. Once is enough, more is harmless."""
        engine, self._engine = self._engine, ffi.NULL
        _engines.discard(self)
        if engine != ffi.NULL:
            lib.mrc_engine_close(engine)
        for pin in self._regions.values():
            pin.release()
        self._regions.clear()

    def _forget(self) -> None:
        engine, self._engine = self._engine, ffi.NULL
        self._forked = True
        if engine != ffi.NULL:
            lib.mrc_engine_forget(engine)

    @property
    def raw(self) -> Any:
        """The C object, if it may be used."""
        if self._engine == ffi.NULL:
            if self._forked:
                raise AfterForkError("not usable after fork: open a new endpoint in the child")
            raise MRCError("the endpoint is closed")
        return self._engine

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a child of fork(), which can do nothing."""
        return self._forked

    @property
    def closed(self) -> bool:
        """Whether there is nothing to call any more."""
        return bool(self._engine == ffi.NULL)

    def _check(self, status: int, what: str) -> int:
        if status >= 0:
            return status
        if status == lib.MRC_ERROR_SYSTEM:
            code = lib.mrc_engine_errno(self.raw)
            if code in {errno.EPERM, errno.EACCES}:
                raise CapabilityError(_CAPABILITY)
            raise OSError(code, f"{what}: {os.strerror(code)}")
        if status == _ERROR_FULL:
            raise TableFull(f"{what}: a table of the endpoint is full")
        raise MRCError(f"{what}: {_MEANINGS.get(status, f'status {status}')}")

    # Planes and peers.

    def add_plane(self, number: int, name: str, address: Address | None) -> None:
        """Adds an interface as plane `number`; without address: any that it has or gets."""
        out = ffi.new("mrc_address *")
        _fill_address(out, address)
        status = lib.mrc_engine_add_plane(self.raw, number, name.encode(), out)
        self._check(status, f"plane {name}")

    def enable_plane(self, number: int, *, enabled: bool) -> None:
        """Takes a plane out of use for data, or gives it back."""
        self._check(lib.mrc_engine_enable_plane(self.raw, number, enabled), f"plane {number}")

    def plane(self, number: int) -> dict[str, Any]:
        """A plane's interface as the engine sees it now."""
        out = ffi.new("mrc_engine_plane *")
        self._check(lib.mrc_engine_get_plane(self.raw, number, out), f"plane {number}")
        return {
            **_as_dict(out[0]),
            **_as_dict(out.info),
            "name": ffi.string(out.name).decode(),
            "address": _read_address(out.info.address),
        }

    def add_peer(
        self,
        incarnation: int,
        planes: Sequence[PeerPlane],
        path: Template | None = None,
        *,
        srh: bool = False,
    ) -> int:
        """Adds a peer, or finds the one that is there; returns its number.

        Args:
            incarnation: Its.
            planes: Those of its planes that are paired with ours.
            path: The ways to it; None: any EV will do.
            srh: SRv6: repeat the way in an SRH.
        """
        setup = ffi.new("mrc_peer_setup *")
        hops = ffi.new("mrc_address[]", lib.MRC_PLANES)
        setup.incarnation = incarnation
        for plane in planes:
            _fill_address(setup.addresses[plane.number], plane.address)
            _fill_address(hops[plane.number], plane.next_hop)
            setup.remote_planes[plane.number] = plane.remote
        if path is not None:
            setup.ev_values = path.ev_values
            if path.routing == "srv6":
                _fill_template(setup.srv6, path, srh=srh)
        return self._check(lib.mrc_engine_peer_add(self.raw, setup, hops), "peer")

    def fail_peer(self, peer: int, status: int) -> None:
        """Ends every queue pair of a peer with this status."""
        self._check(lib.mrc_engine_peer_fail(self.raw, peer, status), "peer")

    def check_peer(self, peer: int) -> None:
        """Asks the peer for a sign of life."""
        self._check(lib.mrc_engine_peer_check(self.raw, peer), "peer")

    def remove_peer(self, peer: int) -> bool:
        """Forgets a peer; False while queue pairs, also lingering ones, belong to it."""
        status = lib.mrc_engine_peer_remove(self.raw, peer)
        if status == lib.MRC_ERROR_STATE:
            return False
        return self._check(status, "peer") == 0

    def plane_stats(self, peer: int, plane: int) -> dict[str, int]:
        """`mrc_plane_stats` of a plane towards a peer."""
        out = ffi.new("mrc_plane_stats *")
        self._check(lib.mrc_engine_peer_stats(self.raw, peer, plane, out), f"plane {plane}")
        return _as_dict(out[0])

    def follow(self, hops: Mapping[int, Address]) -> int:
        """Adds a peer that has next hops, by plane, but no address: nothing is sent to it."""
        setup = ffi.new("mrc_peer_setup *")
        setup.incarnation = secrets.randbits(64)
        next_hops = ffi.new("mrc_address[]", lib.MRC_PLANES)
        for number, hop in hops.items():
            _fill_address(next_hops[number], hop)
        return self._check(lib.mrc_engine_peer_add(self.raw, setup, next_hops), "peer")

    def probe(
        self, peer: int, plane: int, ev: int, tag: int, *,
        destination: Address | None = None, carriers: Sequence[Address] = (),
        timeout: int, size: int,
    ) -> bool:  # fmt: skip
        """Sends an EV probe by a peer's plane; it ends in one EVENT_PROBE with this tag.

        Args:
            peer: Whose next hop it takes.
            plane: Ours.
            ev: Its entropy value.
            tag: 64 bits for the event.
            destination: Who answers; None with carriers.
            carriers: SRv6: one or two addresses, whose uSIDs lead out and back to ourselves.
            timeout: ns.
            size: Bytes of the IP packet; less than its headers: no padding.

        Returns:
            Whether it was sent: False while the next hop's link address is not known.

        Raises:
            TableFull: Too many are out.
        """
        out = ffi.new("mrc_probe *")
        out.plane, out.ev, out.tag, out.timeout, out.size = plane, ev, tag, timeout, size
        _fill_address(out.destination, destination)
        for field, carrier in zip((out.carrier, out.next_carrier), carriers, strict=False):
            _fill_address(field, carrier)
        status = lib.mrc_engine_probe(self.raw, peer, out)
        if status == lib.MRC_ERROR_STATE:
            return False
        return self._check(status, "probe") == 0

    def counters(self) -> dict[str, int]:
        """`mrc_counters`: everything dropped or refused, and totals."""
        out = ffi.new("mrc_counters *")
        lib.mrc_engine_counters(self.raw, out)
        return _as_dict(out[0])

    # Memory.

    def register(self, buffer: Any, domain: int) -> tuple[int, int]:
        """Lends a writable buffer to the peers of a domain; returns its address and key.

        Both are random. The buffer stays exported until `deregister`.

        Raises:
            BufferError: The buffer is read-only or not contiguous.
        """
        pin = Pin(buffer, writable=True)
        region = ffi.new("mrc_region *")
        region.base = pin.pointer
        region.size = pin.size
        region.domain = domain
        region.va = secrets.randbits(46) << 12
        for _ in range(8):
            region.key = secrets.randbits(32)
            status = lib.mrc_engine_register(self.raw, region)
            if status != lib.MRC_ERROR_ARGUMENT:
                break
        if status < 0:
            pin.release()
        self._check(status, "memory region")
        self._regions[region.key] = pin
        return region.va, region.key

    def deregister(self, key: int) -> None:
        """Revokes a region: nothing is written to it any more. Harmless when it is gone."""
        pin = self._regions.pop(key, None)
        if pin is None:
            return
        if self._engine != ffi.NULL:
            lib.mrc_engine_deregister(self._engine, key)
        pin.release()

    # Queue pairs.

    def create_qp(
        self, domain: int, *, mtu: int, mpr: int, max_wimm: int, trim_nack: bool
    ) -> Attributes:
        """Makes a queue pair; returns what to tell the peer."""
        local = ffi.new("mrc_qp_attributes *")
        local.mtu, local.mpr, local.max_wimm, local.trim_nack = mtu, mpr, max_wimm, trim_nack
        self._check(lib.mrc_engine_qp_create(self.raw, domain, local), "queue pair")
        return Attributes(**{f.name: getattr(local, f.name) for f in fields(Attributes)})

    def connect_qp(self, qp: int, peer: int, remote: Attributes) -> None:
        """Makes it ready to send and receive."""
        out = ffi.new("mrc_qp_attributes *")
        for member in fields(Attributes):
            setattr(out, member.name, getattr(remote, member.name))
        self._check(lib.mrc_engine_qp_connect(self.raw, qp, peer, out), "queue pair")

    def close_qp(self, qp: int) -> None:
        """Lets it go: afterwards no data of its writes is read any more."""
        self._check(lib.mrc_engine_qp_close(self.raw, qp), "queue pair")

    def qp_stats(self, qp: int) -> dict[str, int]:
        """`mrc_qp_stats` of a queue pair."""
        out = ffi.new("mrc_qp_stats *")
        self._check(lib.mrc_engine_qp_stats(self.raw, qp, out), "queue pair")
        return _as_dict(out[0])

    def evs(self, qp: int) -> list[dict[str, int]]:
        """`mrc_ev_info` of every EV of a queue pair."""
        count = self._check(lib.mrc_engine_qp_evs(self.raw, qp, ffi.NULL, 0), "queue pair")
        out = ffi.new("mrc_ev_info[]", count)
        self._check(lib.mrc_engine_qp_evs(self.raw, qp, out, count), "queue pair")
        return [_as_dict(each) for each in out]

    def deny_ev(self, qp: int, ev: int, *, denied: bool) -> None:
        """Takes an EV out for data, or gives it back.

        Nothing is done if it is so already, or the queue pair has just ended.
        """
        status = lib.mrc_engine_qp_deny(self.raw, qp, ev, denied)
        if status not in {lib.MRC_ERROR_STATE, lib.MRC_ERROR_NOT_FOUND}:
            self._check(status, "entropy value")

    # Work.

    def submit_write(
        self, qp: int, key: int, va: int, pin: Pin, tag: int, *,
        offset: int = 0, size: int = -1, immediate: int | None = None,
    ) -> bool:  # fmt: skip
        """Posts a write of `pin`, which must stay as it is until its completion.

        Returns False when the ring is full: nothing was done then.
        """
        submission = self._submission
        submission.type = 1
        write = submission.write
        write.qp = qp
        write.key = key
        write.va = va
        write.data = pin.pointer + offset
        write.size = pin.size if size < 0 else size
        write.tag = tag
        write.has_immediate = immediate is not None
        write.immediate = immediate or 0
        return self._submit(submission)

    def submit_receives(self, qp: int, count: int) -> bool:
        """Lends the peer `count` more receives. Returns False when the ring is full."""
        self._submission.type = 2
        self._submission.receives = count
        self._submission.write.qp = qp
        return self._submit(self._submission)

    def _submit(self, submission: Any) -> bool:
        status = lib.mrc_engine_submit(self.raw, submission)
        if status == _ERROR_FULL:
            return False
        self._check(status, "work request")
        return True

    def poll(
        self,
        on_write: Callable[[int, int, int], None],
        on_receive: Callable[[int, int], None],
        on_event: Callable[[EngineEvent], None],
    ) -> int:
        """Hands out up to 64 events; returns how many. Fewer: there are no more.

        Args:
            on_write: Takes queue pair, tag and status of a write that ended.
            on_receive: Takes queue pair and immediate.
            on_event: Takes any other.
        """
        events = self._events
        count: int = lib.mrc_engine_poll(self.raw, events, _POLL)
        for index in range(count):
            event = events[index]
            kind = event.type
            if kind == _EVENT_WRITE:
                on_write(event.qp, event.tag, event.status)
            elif kind == _EVENT_RECEIVE:
                on_receive(event.qp, event.immediate)
            else:
                on_event(EngineEvent(**{f: getattr(event, f) for f in _EVENT_FIELDS}))
        return count

    def flush(self) -> None:
        """Sends what is due after `poll`; nothing if the engine was closed meanwhile."""
        if not self.closed:
            lib.mrc_engine_flush(self.raw)

    def run(self, timeout: int) -> None:
        """An unthreaded engine: works until there is an event, or for `timeout` ns (< 0: ever)."""
        self._check(lib.mrc_engine_run(self.raw, timeout), "run")


_EVENT_FIELDS: Final = tuple(f.name for f in fields(EngineEvent))
