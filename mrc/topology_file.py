# SPDX-License-Identifier: Apache-2.0
"""`topology.toml`: the one description of the fabric that library, commands and rig read.

    planes = 2               # 1..16; every plane has the same switches, cables and hosts
    routing = "srv6"         # or "stev": switches read bit fields of the EV (this is the default)
    block = "fc00::/32"      # uSID locator block, whole bytes: /32 is F3216, /48 leaves five uSIDs
    plane_stride = 0x1000    # what each plane adds to every uSID (this is the default)
    addresses = "fd00::/16"  # of hosts: 16 bits of plane follow, the last bits count the hosts
    mtu = 9000               # largest IP packet on every link, bytes (this is the default)

    [[tiers]]                # T0: the switches that hosts hang on
    switches = ["t0a", "t0b"]
    usid = 0x100             # of the first switch in plane 0; the others count up
    down = { rate = "1Gbit", delay = "100us" }     # each link to a host

    [[tiers]]                # T1: uplink k of every T0 leads to the k-th of these
    switches = ["t1a", "t1b"]
    usid = 0x200
    down = { rate = "1Gbit", delay = "100us" }     # each link to a T0

    [hosts]
    a = { t0 = "t0a", usid = 0x300 }
    b = { t0 = "t0b", usid = 0x301 }

Whatever is wrong is one ConfigError of one line that begins with "file:line: ".
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mrc.errors import ConfigError
from mrc.topology import (
    MAX_CARRIER_USIDS,
    MAX_PLANES,
    MAX_UPLINKS,
    USID_BITS,
    Host,
    LinkClass,
    Routing,
    Tier,
    Topology,
)

__all__ = ["DEFAULT_FILE", "load", "parse"]

DEFAULT_FILE: Final = "topology.toml"

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,30}")
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]")
_ASSIGNMENT: Final = re.compile(r"\s*([\w\"'.-]+)\s*=")
_TOML_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|k|M|G|T)bit")
_DELAY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s)")
_RATE_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DELAY_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

Place = tuple[str | int, ...]
"""Where a value stands: keys and positions from the top of the file."""


def _names(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _lines(text: str) -> dict[Place, int]:
    """The line of every key and table; tomllib doesn't tell them."""
    lines: dict[Place, int] = {(): 1}
    table: Place = ()
    counts: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = tuple(_names(header[2]))
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table[:1], number)
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            place = table
            for part in _names(assignment[1]):
                place = (*place, part)
                lines.setdefault(place, number)
    return lines


class _Reader:
    """Takes values out of the file; every complaint names the file and the line."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines = _lines(text)

    def error(self, place: Place, message: str) -> ConfigError:
        while place not in self._lines:
            place = place[:-1]
        return ConfigError(f"{self._name}:{self._lines[place]}: {message}")

    def table(self, value: object, place: Place, known: Sequence[str]) -> dict[str, Any]:
        """A table with no other keys than these."""
        if not isinstance(value, dict):
            raise self.error(place, f"{self.say(place)} must be a table")
        for key in value:
            if key not in known:
                raise self.error(
                    (*place, key), f"unknown key {key!r}; {', '.join(known)} are known"
                )
        return value

    def say(self, place: Place) -> str:
        """What to call a value in a message."""
        return ".".join(str(part) for part in place)

    def need(self, table: dict[str, Any], place: Place, key: str) -> Any:
        if key not in table:
            of = f"{self.say(place)} has no {key!r}" if place else f"there is no {key!r}"
            raise self.error(place, of)
        return table[key]

    def integer(self, value: object, place: Place, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(place, f"{self.say(place)} must be a number {low}..{high}")
        return value

    def usid(self, value: object, place: Place) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 0xFFFF:
            raise self.error(place, f"{self.say(place)} must be a uSID, 0x1..0xffff")
        return value

    def routing(self, value: object, place: Place) -> Routing:
        if value == "srv6":
            return "srv6"
        if value == "stev":
            return "stev"
        raise self.error(place, f"{self.say(place)} must be 'srv6' or 'stev', not {value!r}")

    def node_name(self, value: object, place: Place) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self.error(place, f"{value!r} is no name: a letter, then letters, digits or '-'")
        return value

    def network(self, value: object, place: Place) -> ipaddress.IPv6Network:
        try:
            if not isinstance(value, str):
                raise TypeError("it must be a string")
            return ipaddress.IPv6Network(value)
        except (TypeError, ValueError) as error:
            raise self.error(place, f"{self.say(place)} is no IPv6 prefix: {error}") from None

    def quantity(
        self, value: object, place: Place, form: re.Pattern[str], units: dict[str, int], like: str
    ) -> int:
        found = form.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise self.error(place, f"{self.say(place)} must be like {like!r}, not {value!r}")
        whole, _, part = found[1].partition(".")
        scaled: int = int(whole + part) * units[found[2]]
        return scaled // int("1" + "0" * len(part))

    def link(self, value: object, place: Place) -> LinkClass:
        table = self.table(value, place, ("rate", "delay"))
        given = {key: self.need(table, place, key) for key in ("rate", "delay")}
        rate_place, delay_place = (*place, "rate"), (*place, "delay")
        rate = self.quantity(given["rate"], rate_place, _RATE, _RATE_UNITS, "1Gbit")
        if rate == 0:
            raise self.error(rate_place, f"{self.say(rate_place)} must not be zero")
        delay = self.quantity(given["delay"], delay_place, _DELAY, _DELAY_UNITS, "100us")
        return LinkClass(rate=rate, delay=delay)


def _tier(reader: _Reader, value: object, number: int) -> Tier:
    place: Place = ("tiers", number)
    table = reader.table(value, place, ("switches", "usid", "down"))
    given = {key: reader.need(table, place, key) for key in ("switches", "usid", "down")}
    switches_place = (*place, "switches")
    if not isinstance(given["switches"], list) or not given["switches"]:
        raise reader.error(switches_place, f"{reader.say(switches_place)} must be a list of names")
    if number > 0 and len(given["switches"]) > MAX_UPLINKS:
        raise reader.error(
            switches_place,
            f"{len(given['switches'])} switches give a T0 uplinks up to "
            f"{len(given['switches']) - 1}; an EV names 0..{MAX_UPLINKS - 1}",
        )
    return Tier(
        switches=tuple(reader.node_name(each, switches_place) for each in given["switches"]),
        usid=reader.usid(given["usid"], (*place, "usid")),
        down=reader.link(given["down"], (*place, "down")),
    )


def _host(reader: _Reader, name: str, value: object, number: int, t0: Tier) -> Host:
    place: Place = ("hosts", name)
    reader.node_name(name, place)
    table = reader.table(value, place, ("t0", "usid"))
    switch = reader.need(table, place, "t0")
    if switch not in t0.switches:
        raise reader.error(
            (*place, "t0"),
            f"host {name!r} hangs on {switch!r}, which is no T0; T0s are {', '.join(t0.switches)}",
        )
    usid = reader.usid(reader.need(table, place, "usid"), (*place, "usid"))
    return Host(name=name, number=number, t0=switch, usid=usid)


def _check_block(reader: _Reader, topology: Topology) -> None:
    length = topology.block.prefixlen
    if length % 8 != 0 or length == 0:
        raise reader.error(("block",), f"block is /{length}; it must be whole bytes, as /32 or /48")
    room = min((128 - length) // USID_BITS, MAX_CARRIER_USIDS)
    # Two T0s, a T1 and the host; one T0 and the host when all hosts hang on the same.
    need = 4 if len({host.t0 for host in topology.hosts}) > 1 else 2
    if need > room:
        raise reader.error(
            ("block",),
            f"a path needs {need} uSIDs; behind a /{length} block an address carries {room}, "
            "and more would need an SRH",
        )


def _nodes(topology: Topology) -> Iterator[tuple[str, int, Place]]:
    """Every node's name, its uSID in plane 0, and where it stands in the file."""
    for number, tier in enumerate(topology.tiers):
        for index, name in enumerate(tier.switches):
            yield name, tier.usid + index, ("tiers", number, "switches")
    for host in topology.hosts:
        yield host.name, host.usid, ("hosts", host.name)


def _check_nodes(reader: _Reader, topology: Topology) -> None:
    names: set[str] = set()
    owners: dict[int, str] = {}
    for name, first, place in _nodes(topology):
        if name in names:
            raise reader.error(place, f"two nodes have the name {name!r}")
        names.add(name)
        for plane in range(topology.planes):
            usid, label = first + plane * topology.plane_stride, f"{name!r} of plane {plane}"
            if usid > 0xFFFF:
                raise reader.error(place, f"the uSID of {label} would be {usid:#x}, over 0xffff")
            if usid in owners:
                raise reader.error(
                    place, f"duplicate uSID {usid:#x}: of {owners[usid]} and of {label}"
                )
            owners[usid] = label


_KEYS: Final = ("planes", "routing", "block", "plane_stride", "addresses", "mtu", "tiers", "hosts")


def _build(reader: _Reader, document: dict[str, Any]) -> Topology:
    table = reader.table(document, (), _KEYS)
    given = {
        key: reader.need(table, (), key)
        for key in ("planes", "block", "addresses", "tiers", "hosts")
    }
    tiers_given, hosts_given = given["tiers"], given["hosts"]
    if not isinstance(tiers_given, list) or len(tiers_given) != 2:
        raise reader.error(("tiers",), "there must be two [[tiers]]: T0 and T1")
    if not isinstance(hosts_given, dict) or not hosts_given:
        raise reader.error(("hosts",), "hosts must be a table with at least one host")
    tiers = tuple(_tier(reader, each, number) for number, each in enumerate(tiers_given))
    hosts = tuple(
        _host(reader, name, value, number, tiers[0])
        for number, (name, value) in enumerate(hosts_given.items(), 1)
    )
    topology = Topology(
        planes=reader.integer(given["planes"], ("planes",), 1, MAX_PLANES),
        routing=reader.routing(table.get("routing", "srv6"), ("routing",)),
        block=reader.network(given["block"], ("block",)),
        plane_stride=reader.usid(table.get("plane_stride", 0x1000), ("plane_stride",)),
        addresses=reader.network(given["addresses"], ("addresses",)),
        mtu=reader.integer(table.get("mtu", 9000), ("mtu",), 1280, 65535),
        tiers=tiers,
        hosts=hosts,
    )
    if topology.addresses.prefixlen > 96:
        raise reader.error(
            ("addresses",),
            "addresses must be a /96 or shorter: 16 bits of plane, 16 of host follow",
        )
    _check_block(reader, topology)
    _check_nodes(reader, topology)
    return topology


def parse(text: str, name: str = DEFAULT_FILE) -> Topology:
    """Reads a topology; `name` is what complaints call the file.

    Raises:
        ConfigError: It is wrong: one line, beginning with "name:line: ".
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        line = place[1] if place and place[1] else text.count("\n") + 1
        message = _TOML_PLACE.sub("", str(error))
        raise ConfigError(f"{name}:{line}: {message}") from None
    return _build(_Reader(text, name), document)


def load(file: str | os.PathLike[str] = DEFAULT_FILE) -> Topology:
    """Reads a topology file.

    Raises:
        ConfigError: It is wrong: one line, beginning with "file:line: ".
        OSError: It cannot be read.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{os.fspath(file)}:1: not a text file in UTF-8") from None
    return parse(text, os.fspath(file))
