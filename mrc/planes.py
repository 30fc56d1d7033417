# SPDX-License-Identifier: Apache-2.0
"""Planes: interfaces of this host that can be one, pairs of two hosts' planes, next hops.

Reads the kernel's tables by netlink (blocking: call it from a thread where a loop runs); changes
nothing. That interfaces come, go and change later is the engine's business.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from mrc.errors import ConfigError

__all__ = [
    "Address",
    "Discovery",
    "Interface",
    "LocalPlane",
    "RemotePlane",
    "discover",
    "next_hop",
    "pair",
    "parse_spec",
]

MAX_PLANES: Final = 16
"""Four bits of an EV name the plane (MRC 1.0)."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_log = logging.getLogger("mrc")

_ARPHRD_ETHER: Final = 1
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_IFA_F_DADFAILED: Final = 0x08
_IFA_F_DEPRECATED: Final = 0x20
_IFA_F_TENTATIVE: Final = 0x40
_SCOPE_LINK: Final = 253

# Links that the host made for itself and that lead to no other host by their own.
_VIRTUAL_KINDS: Final = frozenset(
    ("bridge", "dummy", "ifb", "nlmon", "team", "tun", "vcan", "vrf", "openvswitch")
)
_VIRTUAL_NAMES: Final = re.compile(r"(docker|br-|virbr|cni|flannel|cali|lxcbr)")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An address of an interface, as the kernel lists them.

    Attributes:
        name: Of the interface.
        index: The kernel's number of it.
        address: None: it has none that can be used.
        prefix: Length of the address's network prefix, bits.
        mtu: Bytes of an IP packet.
        up: Administratively up and with carrier.
        parent: What it is made on: a bus device, or an interface; "" if the kernel knows none.
    """

    name: str
    index: int
    address: Address | None
    prefix: int
    mtu: int
    up: bool
    parent: str = ""


@dataclass(frozen=True, kw_only=True)
class LocalPlane:
    """One plane of an endpoint.

    Attributes:
        number: Its number here, 0..15.
        id: What both hosts call it; "" if it was not named.
        interface: Where it is.
    """

    number: int
    id: str
    interface: Interface


@dataclass(frozen=True, kw_only=True)
class RemotePlane:
    """One plane as a host describes it to the other.

    Attributes:
        number: Its number at that host, 0..15.
        id: What both hosts call it; "" if it was not named.
        name: Of its interface, for messages.
        address: Where it is reached.
        prefix: Length of the address's network prefix, bits.
        mtu: Bytes of an IP packet.
    """

    number: int
    id: str
    name: str
    address: Address
    prefix: int
    mtu: int


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What was found.

    Attributes:
        planes: In order of number.
        excluded: Why each interface that is none is none.
    """

    planes: tuple[LocalPlane, ...]
    excluded: dict[str, str]


def parse_spec(spec: str) -> tuple[str, str, Address | None]:
    """Reads `[ID=]INTERFACE[/ADDRESS]`; returns id, interface and address.

    Raises:
        ConfigError: It is none.
    """
    match = re.fullmatch(r"(?:([\w.-]{1,32})=)?([^/=\s]{1,15})(?:/([0-9a-fA-F.:]+))?", spec)
    if match is None:
        raise ConfigError(f"planes: {spec!r} is not [ID=]INTERFACE[/ADDRESS]")
    address = None
    if match[3]:
        try:
            address = ipaddress.ip_address(match[3])
        except ValueError:
            raise ConfigError(f"planes: {match[3]!r} in {spec!r} is not an IP address") from None
    return match[1] or "", match[2], address


@dataclass(frozen=True)
class _Entry:
    """An address and what the kernel says of it."""

    address: Address
    prefix: int
    flags: int
    link_scope: bool

    @property
    def rank(self) -> int:
        """Preference: global or unique local IPv6, then IPv4, then link-local ones."""
        base = 0 if self.address.version == 6 else 1
        late = 2 if self.link_scope or self.address.is_link_local else 0
        return base + late + (4 if self.flags & _IFA_F_DEPRECATED else 0)


def _ask(question: Callable[[Any], Any]) -> Any:
    """What the kernel answers by netlink.

    Asked from a thread, for pyroute2 drives a loop of its own, which cannot run inside another.
    """
    # Takes 0.1 s: only who looks for planes pays.
    from pyroute2 import IPRoute, NetlinkError  # noqa: PLC0415

    def ask() -> Any:
        with IPRoute() as netlink:
            return question(netlink)

    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            return executor.submit(ask).result()
        except NetlinkError as error:
            raise OSError(error.code, os.strerror(error.code)) from None


class _Tables:
    """Links and addresses, as they are now."""

    def __init__(self) -> None:
        links, addresses = _ask(
            lambda netlink: (list(netlink.get_links()), list(netlink.get_addr()))
        )
        self.links = {str(link.get_attr("IFLA_IFNAME")): link for link in links}
        self._entries: dict[int, list[_Entry]] = {}
        for message in addresses:
            raw = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            if raw is None:
                continue
            flags = message.get_attr("IFA_FLAGS")
            entry = _Entry(
                ipaddress.ip_address(raw),
                int(message["prefixlen"]),
                int(message["flags"] if flags is None else flags),
                int(message["scope"]) == _SCOPE_LINK,
            )
            self._entries.setdefault(int(message["index"]), []).append(entry)

    def entries(self, name: str) -> list[_Entry]:
        return self._entries.get(int(self.links[name]["index"]), [])

    def interface(self, name: str, entry: _Entry | None) -> Interface:
        link = self.links[name]
        return Interface(
            name=name,
            index=int(link["index"]),
            address=entry.address if entry else None,
            prefix=entry.prefix if entry else 0,
            mtu=int(link.get_attr("IFLA_MTU")),
            up=bool(link["flags"] & _IFF_UP) and int(link.get_attr("IFLA_CARRIER") or 0) == 1,
            parent=self._parent(link),
        )

    def _parent(self, link: Any) -> str:
        device = link.get_attr("IFLA_PARENT_DEV_NAME")
        if device is None and link.get_attr("IFLA_LINK_NETNSID") is None:
            index = link.get_attr("IFLA_LINK")
            lower = (name for name, other in self.links.items() if other["index"] == index)
            device = next(lower, "")
        return str(device or "")

    def why_not(self, name: str) -> str:
        """Why an interface that nobody named is not taken; "" if it may be."""
        link = self.links[name]
        info = link.get_attr("IFLA_LINKINFO")
        kind = str(info.get_attr("IFLA_INFO_KIND")) if info else ""
        virtual = kind in _VIRTUAL_KINDS or _VIRTUAL_NAMES.match(name)
        reasons = {
            "loopback": link["flags"] & _IFF_LOOPBACK,
            "not Ethernet": int(link["ifi_type"]) != _ARPHRD_ETHER,
            f"virtual ({kind or 'by its name'})": virtual,
            "a port of a bridge or bond": link.get_attr("IFLA_MASTER"),
            "down": not link["flags"] & _IFF_UP,
            "no IP address": not self.entries(name),
        }
        return next((reason for reason, applies in reasons.items() if applies), "")


def _choose(entries: list[_Entry], wanted: Address | None) -> tuple[_Entry | None, str]:
    """The address to use; without one, why there is none ("tentative": may come soon)."""
    if wanted is not None:
        entries = [entry for entry in entries if entry.address == wanted]
        if not entries:
            return None, f"does not have the address {wanted}"
    usable = [e for e in entries if not e.flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED)]
    waiting = [e for e in entries if e.flags & _IFA_F_TENTATIVE and not e.flags & _IFA_F_DADFAILED]
    failed = [entry for entry in entries if entry.flags & _IFA_F_DADFAILED]
    best = min(usable, key=lambda e: e.rank, default=None)
    if waiting and (best is None or min(e.rank for e in waiting) < best.rank):
        return best, "tentative"
    if failed and (best is None or min(e.rank for e in failed) < best.rank):
        return None, f"duplicate address detection (DAD) failed for {failed[0].address}"
    return best, "" if best else "no IP address"


def _wait_settled(names: list[tuple[str, Address | None]], timeout: float) -> _Tables:
    """The tables, once no preferred address of these interfaces is tentative any more."""
    deadline = time.monotonic() + timeout
    said = False
    while True:
        tables = _Tables()
        tentative = [
            name
            for name, wanted in names or [(name, None) for name in tables.links]
            if name in tables.links
            and (names or not tables.why_not(name))
            and _choose(tables.entries(name), wanted)[1] == "tentative"
        ]
        if not tentative or time.monotonic() >= deadline:
            return tables
        if not said:
            _log.warning("address tentative on %s: waiting for it", ", ".join(tentative))
            said = True
        time.sleep(0.05)


def discover(specs: Sequence[str] | None = None, *, dad_timeout: float = 5.0) -> Discovery:
    """Finds the planes of this host.

    Named interfaces are taken in that order, even if down or without an address now, for both may
    come; of the others those that are up, Ethernet, not made by the host for itself, and have an
    address, in order of the kernel's numbers.

    Args:
        specs: Each `[ID=]INTERFACE[/ADDRESS]`; None: all that can be one.
        dad_timeout: Longest wait for addresses that are tentative, in seconds.

    Raises:
        ConfigError: More than 16, one twice, or a named interface that does not exist.
        OSError: Netlink failed.
    """
    named = [parse_spec(spec) for spec in specs] if specs is not None else None
    wanted = [(name, address) for _, name, address in named or []]
    if len(set(wanted)) < len(wanted) or (named and len({n for n, _ in wanted}) < len(wanted)):
        raise ConfigError(f"planes: an interface is named twice in {', '.join(specs or ())}")
    tables = _wait_settled(wanted, dad_timeout)
    excluded: dict[str, str] = {}
    if named is None:
        by_index = sorted(tables.links, key=lambda name: int(tables.links[name]["index"]))
        excluded = {name: why for name in by_index if (why := tables.why_not(name))}
        named = [("", name, None) for name in by_index if name not in excluded]
    planes: list[LocalPlane] = []
    for plane_id, name, address in named:
        if name not in tables.links:
            raise ConfigError(f"planes: there is no interface {name}")
        entry, problem = _choose(tables.entries(name), address)
        if entry is None and (not specs or problem != "no IP address"):
            excluded[name] = f"address still {problem}" if problem == "tentative" else problem
            _log.warning("interface %s is no plane: %s", name, excluded[name])
            continue
        interface = tables.interface(name, entry)
        planes.append(LocalPlane(number=len(planes), id=plane_id, interface=interface))
    if len(planes) > MAX_PLANES:
        names = ", ".join(plane.interface.name for plane in planes)
        raise ConfigError(f"planes: {len(planes)} are more than {MAX_PLANES}; choose of {names}")
    return Discovery(planes=tuple(planes), excluded=excluded)


def next_hop(interface: Interface, destination: Address) -> Address | None:
    """The neighbour by which `interface` reaches `destination`; None: there is no such way.

    Raises:
        OSError: Netlink failed.
    """
    own = interface.address
    if own is None or own.version != destination.version:
        return None
    if destination.is_link_local or _on_link(own, interface.prefix, destination):
        return destination
    family = socket.AF_INET6 if destination.version == 6 else socket.AF_INET
    try:
        routes = _ask(
            lambda netlink: list(
                netlink.route("get", dst=str(destination), oif=interface.index, family=family)
            )
        )
    except OSError as error:
        if error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.ENETDOWN}:
            return None
        raise
    if not routes or int(routes[0].get_attr("RTA_OIF") or 0) != interface.index:
        return None
    return _gateway(routes[0]) or destination


def _gateway(route: Any) -> Address | None:
    plain = route.get_attr("RTA_GATEWAY")
    if plain is not None:
        return ipaddress.ip_address(plain)
    via = route.get_attr("RTA_VIA")  # an IPv6 neighbour of an IPv4 route
    return ipaddress.ip_address(via["addr"]) if via else None


def _on_link(own: Address, prefix: int, other: Address) -> bool:
    if own.version != other.version:
        return False
    network = ipaddress.ip_network(f"{own}/{prefix}", strict=False)
    return other in network


def _same_subnet(one: RemotePlane, other: RemotePlane) -> bool:
    # Every link has fe80::/64: it says nothing about what is connected to what.
    if one.address.is_link_local or other.address.is_link_local:
        return False
    return one.prefix == other.prefix and _on_link(one.address, one.prefix, other.address)


def pair(
    ours: Sequence[RemotePlane], theirs: Sequence[RemotePlane]
) -> list[tuple[RemotePlane, RemotePlane]]:
    """Which plane of ours belongs to which of theirs, in our order.

    By id where both sides name theirs, else by a shared subnet, else by order; never of unlike IP
    versions. Each plane is in one pair at most; a pairing is a guess until a probe has crossed it.
    """
    left = list(theirs)
    pairs: dict[int, tuple[RemotePlane, RemotePlane]] = {}

    def match(rule: Any) -> None:
        for plane in ours:
            if plane.number in pairs:
                continue
            for other in left:
                if plane.address.version == other.address.version and rule(plane, other):
                    pairs[plane.number] = (plane, other)
                    left.remove(other)
                    break

    match(lambda one, other: bool(one.id) and one.id == other.id)
    match(lambda one, other: not (one.id and other.id) and _same_subnet(one, other))
    match(lambda one, other: not (one.id and other.id))
    return [pairs[plane.number] for plane in ours if plane.number in pairs]
