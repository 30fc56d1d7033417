# SPDX-License-Identifier: Apache-2.0
"""A network of endpoints of the core in virtual time: the typed face of `native/vnet.h`.

    a == p0 == b        every host has a link into every plane
      == p1 ==

    net = Net(seed, planes=2)
    connection = net.connect()
    connection.write(0, 4096)
    net.run()

Every call that lets time pass raises `Violation` when something that must always hold did not
(`native/vnet_check.c`). Times are ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from native.build import load

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

ADAPTIVE, EQUAL = 0, 1

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = range(0xC6, 0xCC)
ACK, REQUEST, RESPONSE = 0xD1, 0xD8, 0xD9
SACK, NACK, PROBE = 0xDC, 0xDD, 0xDE
EV_GOOD, EV_SKIP, EV_ASSUMED_BAD, EV_DENIED, EV_BACKUP = range(5)
PLANE_ABSENT, PLANE_PROBING, PLANE_UP, PLANE_OUT = range(4)
QP_ERROR = 4
ON_WRITE, ON_RECEIVE, ON_QP, ON_PLANE, ON_EV, ON_PROBE = range(1, 7)
FLUSHED, REMOTE_ACCESS, REMOTE_OPERATION, INVALID_REQUEST = -16, -17, -18, -19
RETRY_EXCEEDED, PEER_SILENT, PEER_RESTARTED = -20, -21, -22
LINK, PEER, SILENT, MTU, ADDRESS, DISABLED = range(1, 7)
WRITES = (FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM)
IMMEDIATES = (LAST_IMM, ONLY_IMM)
ALL = (*WRITES, ACK, REQUEST, RESPONSE, SACK, NACK, PROBE)

REGION_VA = 0x7F0000001000
ANY_PSN = 0xFFFFFFFF
FATES = (
    *("sent", "delivered", "lost", "full", "dead", "ruled out", "too long", "trimmed"),
    *("marked", "corrupted", "duplicated"),
)


def library() -> tuple[Any, Any]:
    """cffi's `ffi` and `lib` of the core and the network."""
    return load("vnet")


class Violation(AssertionError):
    """Something that must always hold did not; says what, and what went before."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One host's link into one plane.

    `loss`, `duplicate` and `corrupt` are probabilities; `jitter` is uniform on top of `delay` and
    reorders; above `busy_bytes` of queue the port refuses, above `mark_bytes` it marks CE; what a
    full queue (`queue_bytes`) refuses is cut to its headers where `trim_dscp` is set, else dropped.
    `mtu` makes larger IP packets vanish; `cut` cuts frames into packets; `dead` lets nothing pass.
    """

    rate_bps: int = 0
    queue_bytes: int = 0
    busy_bytes: int = 0
    mark_bytes: int = 0
    delay: int = 50 * US
    jitter: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    mtu: int = 0
    trim_dscp: int = 0
    cut: bool = False
    dead: bool = False


@dataclass(frozen=True, kw_only=True)
class Record:
    """What happened to one packet (`vnet_record`)."""

    time: int
    bitmap: int
    fate: str
    host: int
    plane: int
    opcode: int
    qp: int
    psn: int
    ev: int
    entropy: int
    size: int
    offset: int
    code: int
    dscp: int
    rtx: bool
    ack_request: bool
    pr: bool
    frame: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a host's endpoint (`mrc_event`)."""

    host: int
    type: int
    status: int
    qp: int
    peer: int
    plane: int
    ev: int
    state: int
    reason: int
    immediate: int
    tag: int
    time: int
    rtt: int


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A frame as it was delivered."""

    host: int
    plane: int
    segment_size: int
    data: bytes


def _mask(numbers: Sequence[int]) -> int:
    return sum(1 << number for number in numbers)


class Connection:
    """Two hosts' queue pairs to each other; `side` 0 and 1 are the hosts it was made with."""

    def __init__(self, net: Net, number: int, hosts: tuple[int, int]) -> None:
        self.net = net
        self.number = number
        self.hosts = hosts

    def qp(self, side: int) -> int:
        return int(self.net.lib.vnet_qp(self.net.c, self.number, side))

    def write(
        self,
        side: int,
        size: int,
        *,
        imm: int | None = None,
        offset: int | None = None,
        key: int = 0,
    ) -> None:
        """Posts a write of side into the other's region; `offset` and `key` may be wrong ones."""
        status = self.try_write(side, size, imm=imm, offset=offset, key=key)
        assert status == 0, f"mrc_qp_write gave {status}"

    def try_write(
        self,
        side: int,
        size: int,
        *,
        imm: int | None = None,
        offset: int | None = None,
        key: int = 0,
    ) -> int:
        """The same, returning what mrc_qp_write did."""
        none = 2**64 - 1
        return int(
            self.net.lib.vnet_write(
                *(self.net.c, self.number, side, size, none if imm is None else imm),
                *(none if offset is None else offset, key),
            )
        )

    def close(self, side: int) -> None:
        assert self.net.lib.vnet_close(self.net.c, self.number, side) == 0

    def deny(self, side: int, ev: int, *, deny: bool = True) -> None:
        assert self.net.lib.vnet_deny(self.net.c, self.number, side, ev, deny) == 0

    def stats(self, side: int) -> Any:
        """`mrc_qp_stats` of that side."""
        stats = self.net.ffi.new("mrc_qp_stats *")
        endpoint = self.net.endpoint(self.hosts[side])
        assert self.net.lib.mrc_qp_get_stats(endpoint, self.qp(side), stats) == 0
        return stats

    def plane(self, side: int, plane: int) -> Any:
        """`mrc_plane_stats` of that side."""
        stats = self.net.ffi.new("mrc_plane_stats *")
        peer = self.net.lib.vnet_peer(self.net.c, self.number, side)
        endpoint = self.net.endpoint(self.hosts[side])
        assert self.net.lib.mrc_peer_stats(endpoint, peer, plane, stats) == 0
        return stats

    def evs(self, side: int) -> list[tuple[int, int, int]]:
        """(EV, plane, state) of that side's EVs."""
        infos = self.net.ffi.new("mrc_ev_info[512]")
        endpoint = self.net.endpoint(self.hosts[side])
        count = self.net.lib.mrc_qp_evs(endpoint, self.qp(side), infos, 512)
        return [(infos[i].ev, infos[i].plane, infos[i].state) for i in range(count)]


class Net:
    """Hosts joined by planes.

    Args:
        seed: Of all randomness.
        planes: The link of every host into each plane.
        hosts: How many.
        config: Members of `mrc_config` other than the defaults.
        ipv4: Planes with IPv4 addresses; the others have IPv6.
        region: Size of each host's memory region, bytes.
        batch: How long a host collects frames before it takes them in.
        drained: Whether the driver says so when it has taken a batch in.
        stall: Work without progress for so long while a path works is a violation; 0: never.
    """

    def __init__(
        self,
        seed: int,
        *,
        planes: Sequence[Link] = (Link(), Link()),
        hosts: int = 2,
        config: Mapping[str, int] | None = None,
        ipv4: Sequence[int] = (),
        port_mtu: int = 9216,
        region: int = 1 << 21,
        batch: int = 0,
        drained: bool = True,
        stall: int = 8 * SECOND,
    ) -> None:
        self.ffi, self.lib = library()
        self.seed = seed
        self.planes = len(planes)
        settings = self.ffi.new("mrc_config *")
        self.lib.mrc_config_default(settings)
        for size in ("max_qps", "max_peers", "max_regions"):
            setattr(settings, size, max(64, hosts))
        for name, value in (config or {}).items():
            setattr(settings, name, value)
        options = self.ffi.new("vnet_options *")
        options.seed = seed
        options.hosts = hosts
        options.planes = len(planes)
        options.ipv4_planes = _mask(ipv4)
        options.plane_mtu = port_mtu
        options.region_bytes = region
        options.batch = batch
        options.drained = drained
        options.stall = stall
        links = self.ffi.new("vnet_link[]", hosts * len(planes))
        for i in range(hosts * len(planes)):
            self._fill(links[i], planes[i % len(planes)])
        made = self.lib.vnet_new(options, settings, links)
        assert made != self.ffi.NULL, "the configuration is not valid"
        self.c = self.ffi.gc(made, self.lib.vnet_free)
        self.links = {
            (host, plane): link for host in range(hosts) for plane, link in enumerate(planes)
        }

    @staticmethod
    def _fill(to: Any, link: Link) -> None:
        for field in fields(link):
            value = getattr(link, field.name)
            if isinstance(value, float):
                setattr(to, f"{field.name}_ppm", round(value * 1_000_000))
            else:
                setattr(to, field.name, value)

    @property
    def now(self) -> int:
        return int(self.lib.vnet_now(self.c))

    def endpoint(self, host: int) -> Any:
        return self.lib.vnet_endpoint(self.c, host)

    def kick(self, host: int) -> None:
        """To be called after a call to an endpoint that went past this class."""
        self.lib.vnet_kick(self.c, host)

    def connect(
        self,
        a: int = 0,
        b: int = 1,
        *,
        mtu: int = 1024,
        mpr: int = 32,
        max_wimm: int = 64,
        psn: int = ANY_PSN,
        receives: int = 1024,
        trim_nack: bool = True,
        dynamic_mpr: bool = False,
        planes: Sequence[int] | None = None,
        uplinks: int = 0,
        srh: bool = False,
    ) -> Connection:
        """Connects a queue pair of a with one of b, both with the same attributes.

        With `uplinks` packets are source-routed (SRv6) over so many T1 a plane.
        """
        setup = self.ffi.new("vnet_setup *")
        setup.host = [a, b]
        setup.mtu = [mtu, mtu]
        setup.mpr = [mpr, mpr]
        setup.max_wimm = [max_wimm, max_wimm]
        setup.first_psn = [psn, psn]
        setup.receives = [receives, receives]
        setup.trim_nack = trim_nack
        setup.dynamic_mpr = dynamic_mpr
        setup.planes = _mask(range(self.planes) if planes is None else planes)
        setup.uplinks, setup.srh = uplinks, srh
        number = self.lib.vnet_connect(self.c, setup)
        assert number >= 0, f"connecting gave {number}"
        return Connection(self, number, (a, b))

    def check(self) -> None:
        violation = self.ffi.string(self.lib.vnet_violation(self.c)).decode()
        if violation:
            raise Violation(f"seed {self.seed}: {violation}")

    def run(self, duration: int = 60 * SECOND) -> None:
        """Runs until every write has ended, which must be within `duration`."""
        idle = self.lib.vnet_run(self.c, self.now + duration, True)
        self.check()
        if not idle:
            last = "\n".join(str(record) for record in self.trace()[-40:])
            raise Violation(f"seed {self.seed}: not done after {duration / 1e9} s\n{last}")

    def pass_time(self, duration: int) -> None:
        """Runs for exactly that long."""
        self.lib.vnet_run(self.c, self.now + duration, False)
        self.check()

    def pause(self, host: int, duration: int, read: Sequence[int] = ()) -> None:
        """A host is not running for that long.

        It was about to read its planes one after the other: those in `read` it has, the others are
        read when it goes on, with all that came meanwhile.
        """
        self.lib.vnet_pause(self.c, host, duration, _mask(read))

    @property
    def is_idle(self) -> bool:
        return bool(self.lib.vnet_is_idle(self.c))

    def change(self, plane: int, host: int | None = None, **changes: Any) -> None:
        """Changes the link of a host, or of all, into a plane; `changes` are members of `Link`."""
        for (at, number), link in self.links.items():
            if number == plane and host in {None, at}:
                self.links[at, number] = replace(link, **changes)
                to = self.ffi.new("vnet_link *")
                self._fill(to, self.links[at, number])
                self.lib.vnet_set_link(self.c, at, number, to)

    def port(self, host: int, plane: int, *, up: bool, told: bool = True) -> None:
        """A host's port goes down or up; `told`: its endpoint hears of it."""
        self.lib.vnet_set_port(self.c, host, plane, up, told)

    def enable(self, host: int, plane: int, *, enabled: bool) -> None:
        self.lib.vnet_enable(self.c, host, plane, enabled)

    def hold(self, host: int, *, held: bool) -> None:
        """A host's application takes no events until it is no longer held."""
        self.lib.vnet_hold(self.c, host, held)

    def rule(
        self,
        action: str,
        *,
        opcodes: Sequence[int] = WRITES,
        host: int = 0,
        planes: Sequence[int] | None = None,
        psn: int = ANY_PSN,
        evs: tuple[int, int] = (0, 0),
        skip: int = 0,
        count: int = 1,
        value: int = 0,
    ) -> int:
        """Deals with certain packets of a host: drop, mark, trim, duplicate, corrupt or delay.

        Of those that match, `skip` go by, then `count` are dealt with. `evs` is a mask and what an
        EV has under it. `value` is trim's DSCP and delay's time. Frames are cut into packets while
        there are rules. Returns its number.
        """
        rule = self.ffi.new("vnet_rule *")
        rule.host = host
        rule.planes = _mask(range(self.planes) if planes is None else planes)
        rule.opcodes = _mask([opcode - 0xC0 for opcode in opcodes])
        rule.psn = psn
        rule.ev_mask, rule.ev_value = evs
        rule.skip = skip
        rule.count = count
        rule.action = getattr(self.lib, f"VNET_{action.upper()}")
        rule.value = value
        number = int(self.lib.vnet_add_rule(self.c, rule))
        assert number >= 0
        return number

    def hits(self, rule: int) -> int:
        return int(self.lib.vnet_rule_hits(self.c, rule))

    def clear_rules(self) -> None:
        self.lib.vnet_clear_rules(self.c)

    def events(self, kind: int = 0) -> list[Event]:
        """The events since the last call; of one type if `kind` names one."""
        event = self.ffi.new("vnet_event *")
        names = [field.name for field in fields(Event) if field.name != "host"]
        found = []
        while self.lib.vnet_take_event(self.c, event):
            if kind in {0, event.event.type}:
                values = {name: getattr(event.event, name) for name in names}
                found.append(Event(host=event.host, **values))
        return found

    def trace(self, fate: str = "", opcodes: Sequence[int] = ()) -> list[Record]:
        """The last packets' records, oldest first; of one fate and of some opcodes if given."""
        room = 1 << 15
        records = self.ffi.new("vnet_record[]", room)
        count = self.lib.vnet_trace(self.c, records, room)
        names = [field.name for field in fields(Record) if field.name != "fate"]
        return [
            Record(
                fate=FATES[records[i].fate],
                **{name: getattr(records[i], name) for name in names},
            )
            for i in range(count)
            if (not fate or FATES[records[i].fate] == fate)
            and (not opcodes or records[i].opcode in opcodes)
        ]

    @property
    def hash(self) -> int:
        """Over everything that ever happened to a packet."""
        return int(self.lib.vnet_hash(self.c))

    def counts(self, host: int, plane: int) -> Any:
        """`vnet_counts` of a link; a copy."""
        counts = self.ffi.new("vnet_counts *")
        counts[0] = self.lib.vnet_get_counts(self.c, host, plane)[0]
        return counts

    def sent(self, host: int, opcodes: Sequence[int] = WRITES) -> int:
        """Packets that a host sent, over all planes."""
        return sum(
            self.counts(host, plane).by_opcode[opcode - 0xC0]
            for plane in range(self.planes)
            for opcode in opcodes
        )

    def keep(self, room: int = 1 << 16) -> None:
        """Keeps copies of what is delivered from now on."""
        self.lib.vnet_keep(self.c, room)

    def kept(self) -> list[Kept]:
        kept = self.ffi.new("vnet_kept *")
        found: list[Kept] = []
        while self.lib.vnet_get_kept(self.c, len(found), kept):
            data = bytes(self.ffi.buffer(kept.data, kept.size))
            found.append(
                Kept(
                    host=kept.host,
                    plane=kept.plane,
                    segment_size=kept.segment_size,
                    data=data,
                )
            )
        return found

    def inject(self, frame: Kept) -> None:
        """A frame from nowhere arrives at a host."""
        data = self.ffi.from_buffer(frame.data)
        kept = self.ffi.new("vnet_kept *")
        kept.host = frame.host
        kept.plane = frame.plane
        kept.size = len(frame.data)
        kept.segment_size = frame.segment_size
        kept.data = data
        self.lib.vnet_inject(self.c, kept)

    def settle(self) -> None:
        """Lets the first probes of all planes be answered, and forgets the events."""
        self.pass_time(100 * MS)
        self.events()

    def in_use(self, host: int) -> tuple[int, ...]:
        """What a host holds: queue pairs, peers, writes, chunks, immediates."""
        counters = self.counters(host)
        return (
            counters.qps,
            counters.peers,
            counters.writes,
            counters.chunks,
            counters.immediates,
        )

    def counters(self, host: int) -> Any:
        """`mrc_counters` of a host."""
        counters = self.ffi.new("mrc_counters *")
        self.lib.mrc_endpoint_counters(self.endpoint(host), counters)
        return counters


def pair(
    *, seed: int = 1, planes: int = 2, link: Link | None = None, mtu: int = 1024
) -> tuple[Net, Connection]:
    """Two hosts that have probed their planes, and send single packets."""
    net = Net(seed, planes=[link or Link()] * planes, config={"burst": 1})
    connection = net.connect(mtu=mtu)
    net.settle()
    return net, connection
