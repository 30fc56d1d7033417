# SPDX-License-Identifier: Apache-2.0
"""`topology.toml`: what may stand there, and one line for whatever may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from topologies import TWO_BY_TWO

import mrc.topology_file
from mrc.errors import ConfigError
from mrc.topology_file import load, parse


def test_the_file_of_the_documentation_is_a_right_one() -> None:
    text = re.sub(r"(?m)^    ", "", (mrc.topology_file.__doc__ or "").split("\n\n", 1)[1])
    fabric = parse(text[: text.index("Whatever")])
    assert (fabric.planes, fabric.mtu, fabric.uplinks) == (2, 9000, 2)
    assert [host.name for host in fabric.hosts] == ["a", "b"]


def test_hosts_may_have_tables_of_their_own() -> None:
    hosts = '[hosts.a]\nt0 = "t0a"\nusid = 0x300\n[hosts.b]\nt0 = "t0b"\nusid = 0x301\n'
    head, _, _ = TWO_BY_TWO.partition("[hosts]")
    assert parse(head + hosts).hosts == parse(TWO_BY_TWO).hosts[:2]


MANY = ", ".join(f'"s{number}"' for number in range(4097))

# What is replaced in the right file by what, the line that is complained about, and the words.
WRONG = {
    "not TOML": ("planes = 2", "planes = ", 1, "Invalid value"),
    "ends inside a table": ("usid = 0x302 }", "", 18, "Invalid initial character"),
    "unknown key": ("planes = 2", "planes = 2\nplane = 3", 2, "unknown key 'plane'"),
    "unknown key of a tier": ("usid = 0x200", "usid = 0x200\nups = 1", 13, "unknown key 'ups'"),
    "unknown key of a host": ("usid = 0x301", "usid = 0x301, x = 1", 17, "unknown key 'x'"),
    "no block": ('block = "fc00::/32"\n', "", 1, "there is no 'block'"),
    "no switches": ('switches = ["t1a", "t1b"]\n', "", 10, "tiers.1 has no 'switches'"),
    "no planes": ("planes = 2", "planes = 0", 1, "planes must be a number 1..16"),
    "routing of no kind": ("planes = 2", "routing = 1\nplanes = 2", 1, "must be 'srv6' or 'stev'"),
    "too many planes": ("planes = 2", "planes = 17", 1, "planes must be a number 1..16"),
    "a truth for a number": ("planes = 2", "planes = true", 1, "planes must be a number 1..16"),
    "block of odd bits": ("fc00::/32", "fc00::/36", 2, "block is /36; it must be whole bytes"),
    "block of no bits": ("fc00::/32", "::/0", 2, "block is /0"),
    "block with host bits": ("fc00::/32", "fc00::1/32", 2, "block is no IPv6 prefix"),
    "block of IPv4": ("fc00::/32", "10.0.0.0/8", 2, "block is no IPv6 prefix"),
    "block that is a number": ('"fc00::/32"', "7", 2, "block is no IPv6 prefix: it must be a str"),
    "path too long": ("fc00::/32", "fc00::/80", 2, "needs 4 uSIDs.* carries 3.*SRH"),
    "addresses too long": ("fd00::/16", "fd00::/104", 3, "addresses must be a /96 or shorter"),
    "mtu too small": ("planes = 2", "mtu = 1279\nplanes = 2", 1, "mtu must be a number 1280"),
    "one tier": ('[[tiers]]\nswitches = ["t1a', '[[t1]]\nswitches = ["t1a', 10, "unknown key 't1'"),
    "no hosts": ("[hosts]", "[hosts]\n[x]", 16, "unknown key 'x'"),
    "switches that are no list": ('["t0a", "t0b"]', '"t0a"', 6, "must be a list of names"),
    "no switch": ('["t0a", "t0b"]', "[]", 6, "must be a list of names"),
    "bad name": ('"t0b"]', '"t 0"]', 6, "'t 0' is no name"),
    "name twice": ('"t1b"]', '"t0a"]', 11, "two nodes have the name 't0a'"),
    "host named as a switch": ("c = {", "t1a = {", 18, "two nodes have the name 't1a'"),
    "host on no T0": ("c = { t0 =", "c = { t1 =", 18, "unknown key 't1'"),
    "host without a T0": ('c = { t0 = "t0a", ', "c = { ", 18, "hosts.c has no 't0'"),
    "host on a T1": ('b = { t0 = "t0b"', 'b = { t0 = "t1b"', 17, "hangs on 't1b', which is no T0"),
    "unknown node": ('b = { t0 = "t0b"', 'b = { t0 = "t0x"', 17, "hangs on 't0x', which is no T0"),
    "duplicate uSID": ("0x302", "0x301", 18, "duplicate uSID 0x301: of 'b' of plane 0 and of 'c'"),
    "uSID of a switch": ("0x302", "0x101", 18, "duplicate uSID 0x101: of 't0b'"),
    "uSID of another plane": ("0x302", "0x1201", 18, "duplicate uSID 0x1201: of 't1b' of plane 1"),
    "tiers overlap": ("usid = 0x200", "usid = 0xff", 11, "duplicate uSID 0x100"),
    "uSID zero": ("0x302", "0", 18, "hosts.c.usid must be a uSID, 0x1..0xffff"),
    "uSID over 16 bits": ("0x302", "0x10000", 18, "hosts.c.usid must be a uSID"),
    "uSID too big in a plane": ("0x302", "0xf302", 18, "'c' of plane 1 would be 0x10302"),
    "T0 uplink over 4095": ('"t1a", "t1b"', MANY, 11, "uplinks up to 4096; an EV names 0..4095"),
    "bad rate": ('"1Gbit"', '"1Gb"', 8, "tiers.0.down.rate must be like '1Gbit', not '1Gb'"),
    "no rate": ('"2.5Gbit"', '"0bit"', 13, "tiers.1.down.rate must not be zero"),
    "bad delay": ('"1ms"', "1", 13, "tiers.1.down.delay must be like '100us', not 1"),
    "no delay": (', delay = "1ms"', "", 13, "tiers.1.down has no 'delay'"),
    "down that is no table": ('{ rate = "1Gbit", delay = "100us" }', "1", 8, "must be a table"),
}


@pytest.mark.parametrize(("old", "new", "line", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_gives_one_line_that_says_where(
    old: str, new: str, line: int, words: str
) -> None:
    assert old in TWO_BY_TWO
    with pytest.raises(ConfigError) as caught:
        parse(TWO_BY_TWO.replace(old, new, 1), "fabric.toml")
    message = str(caught.value)
    assert message.startswith(f"fabric.toml:{line}: ")
    assert re.search(words, message)
    assert "\n" not in message


@pytest.mark.parametrize(("hosts", "line"), [("hosts = 1\n", 1), ("hosts = {}\n", 1)])
def test_hosts_must_be_a_table_with_at_least_one(hosts: str, line: int) -> None:
    head, _, _ = TWO_BY_TWO.partition("[hosts]")
    with pytest.raises(ConfigError, match=f"^f:{line}: hosts must be a table with at least one"):
        parse(hosts + head, "f")


def test_one_tier_is_not_enough() -> None:
    tier = TWO_BY_TWO[TWO_BY_TWO.rindex("[[tiers]]") : TWO_BY_TWO.index("[hosts]")]
    with pytest.raises(ConfigError, match=r"^f:5: there must be two \[\[tiers\]\]"):
        parse(TWO_BY_TWO.replace(tier, ""), "f")


def test_hosts_of_one_t0_alone_need_no_more_than_two_usids() -> None:
    text = TWO_BY_TWO.replace("fc00::/32", "fc00::/96").replace('t0 = "t0b"', 't0 = "t0a"')
    assert [len(path.usids) for path in parse(text).paths("a", "b")] == [2, 2]


def test_a_file_is_read_and_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(TWO_BY_TWO)
    assert load(file) == parse(TWO_BY_TWO)
    file.write_bytes(b"planes = \xff")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:1: not a text file")):
        load(file)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.toml")
