# SPDX-License-Identifier: Apache-2.0
"""The engine's view of interfaces and next hops follows the kernel's."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from datagrams import wait_until
from native.build import load

from tools.rig import Host, Rig, shell

pytestmark = pytest.mark.rig

ffi, lib = load("engine")

UDP_PORT = 4791
HOPS = 4


def packed(text: str) -> Any:
    """An address as the core has it."""
    address = ffi.new("mrc_address *")
    if text:
        ip = ipaddress.ip_address(text)
        address.version = ip.version
        address.bytes[0 : len(ip.packed)] = ip.packed
    return address


def text(address: Any) -> str:
    if address.version == 0:
        return ""
    return str(ipaddress.ip_address(bytes(address.bytes)[: 16 if address.version == 6 else 4]))


class Watch:
    """A watch in a host, of its interface p0 as plane 0."""

    def __init__(self, host: Host, stack: ExitStack, *, wanted: str = "") -> None:
        self.host = host
        self.it = ffi.new("struct netlink_watch *")
        self.hops = ffi.new("struct watched_hop[]", HOPS)
        opened = shell.inside(
            host.name, lambda: lib.netlink_watch_open(self.it, UDP_PORT, self.hops, HOPS)
        )
        assert opened == 0
        stack.callback(lib.netlink_watch_close, self.it)
        plane = self.plane
        plane.is_used = True
        plane.name = b"p0"
        plane.wanted = packed(wanted)[0]
        lib.netlink_watch_sync(self.it)

    @property
    def plane(self) -> Any:
        return self.it.planes[0]

    @property
    def address(self) -> str:
        return text(self.plane.info.address)

    def read(self) -> bool:
        return bool(lib.netlink_watch_read(self.it))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Follows the kernel until the condition holds."""

        def is_so() -> bool:
            self.read()
            return condition()

        wait_until(is_so, what)

    def ip(self, line: str) -> None:
        shell.batch([line], netns=self.host.name)

    def follow(self, address: str, *, number: int = 0) -> Any:
        """A next hop on plane 0."""
        hop = self.hops[number]
        hop.is_used = True
        hop.plane = 0
        hop.next_hop = packed(address)[0]
        hop.has_mac = False
        lib.netlink_watch_sync(self.it)
        return hop

    def resolve(self, hop: Any) -> None:
        def is_known() -> bool:
            lib.netlink_watch_nudge(self.it, ffi.addressof(hop))
            self.read()
            return bool(hop.has_mac)

        wait_until(is_known, "the next hop's link address")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(planes=1, direct=True) as made:
        yield made


@pytest.fixture
def watch(rig: Rig, stack: ExitStack) -> Watch:
    return Watch(rig.hosts[0], stack)


def mac(host: Host) -> bytes:
    """The link address of p0."""
    text = shell.run(["ip", "netns", "exec", host.name, "cat", "/sys/class/net/p0/address"])
    return bytes.fromhex(text.strip().replace(":", ""))


# Interfaces.


def test_an_interface_that_is_there_is_seen_with_all_its_properties(rig: Rig, watch: Watch) -> None:
    host = rig.hosts[0]
    plane = watch.plane
    assert plane.index == shell.inside(host.name, lambda: socket.if_nametoindex("p0"))
    assert plane.info.mtu == 4200
    assert plane.info.up
    assert plane.info.rate_bps == 10_000_000_000  # what a veth claims
    assert bytes(plane.info.mac) == mac(host)
    assert watch.address == host.address(0)


def test_own_link_down_and_up_is_followed(rig: Rig, watch: Watch) -> None:
    rig.plane(0).down("a")
    watch.until(lambda: not watch.plane.info.up, "link down")
    assert watch.address == ""  # the kernel flushes it
    rig.plane(0).up("a")
    watch.until(lambda: bool(watch.plane.info.up), "link up")
    watch.until(lambda: watch.address == rig.hosts[0].address(0), "the address")


def test_a_lost_carrier_is_a_link_that_is_down(rig: Rig, watch: Watch) -> None:
    rig.plane(0).down("b")
    watch.until(lambda: not watch.plane.info.up, "carrier lost")
    assert watch.plane.index != 0
    rig.plane(0).up("b")
    watch.until(lambda: bool(watch.plane.info.up), "carrier back")


def test_another_mtu_and_another_mac_are_followed(rig: Rig, watch: Watch) -> None:
    rig.plane(0).set_mtu("a", 1500)
    watch.until(lambda: watch.plane.info.mtu == 1500, "MTU 1500")
    watch.ip("link set p0 address 02:00:00:00:77:77")
    watch.until(lambda: bytes(watch.plane.info.mac) == bytes.fromhex("020000007777"), "the MAC")


def test_an_interface_made_anew_under_its_name_is_the_plane_again(rig: Rig, watch: Watch) -> None:
    before = watch.plane.index
    rig.plane(0).delete()
    watch.until(lambda: watch.plane.index == 0, "interface gone")
    assert not watch.plane.info.up
    assert watch.address == ""
    rig.plane(0).recreate()
    watch.until(lambda: watch.plane.index not in {0, before}, "another index")
    watch.until(lambda: watch.address == rig.hosts[0].address(0), "the address")


def test_a_renamed_interface_is_the_plane_no_more(watch: Watch) -> None:
    watch.ip("link set p0 down")
    watch.ip("link set p0 name other0")
    watch.until(lambda: watch.plane.index == 0, "no interface p0")
    watch.ip("link set other0 name p0")
    watch.until(lambda: watch.plane.index != 0, "p0 again")


def test_leaving_a_bridge_is_not_being_deleted(watch: Watch) -> None:
    watch.ip("link add br0 type bridge")
    watch.ip("link set p0 master br0")
    watch.ip("link set p0 nomaster")
    watch.ip("link set p0 mtu 1400")  # what is told after the rest
    watch.until(lambda: watch.plane.info.mtu == 1400, "MTU 1400")
    assert watch.plane.index != 0
    assert watch.address != ""


# Addresses.


def test_the_wanted_address_comes_first_then_ipv6_then_ipv4_then_link_local(
    rig: Rig, stack: ExitStack
) -> None:
    host = rig.hosts[0]
    wanting = Watch(host, stack, wanted="10.9.0.1")
    plain = Watch(host, stack)
    wanting.ip("address add 10.9.0.1/24 dev p0")
    wanting.until(lambda: wanting.address == "10.9.0.1", "the wanted address")
    plain.until(lambda: plain.plane.address_count == 3, "three addresses")
    assert plain.address == host.address(0)
    wanting.ip(f"address del {host.addresses[0]} dev p0")
    plain.until(lambda: plain.address == "10.9.0.1", "IPv4 for want of IPv6")
    wanting.ip("address del 10.9.0.1/24 dev p0")
    plain.until(lambda: plain.address.startswith("fe80:"), "link-local for want of all else")
    wanting.until(lambda: wanting.address.startswith("fe80:"), "link-local here, too")


def test_an_address_in_use_stays_when_another_comes(rig: Rig, watch: Watch) -> None:
    before = watch.address
    watch.ip("address add fd00:9::1/64 dev p0 nodad")
    watch.until(lambda: watch.plane.address_count == 3, "three addresses")
    assert watch.address == before
    lib.netlink_watch_sync(watch.it)
    assert watch.address == before


def test_ipv4_stands_in_only_while_a_link_that_was_down_has_no_ipv6(rig: Rig, watch: Watch) -> None:
    before = watch.address
    watch.ip("address add 10.9.0.1/24 dev p0")
    rig.plane(0).down("a")
    watch.until(lambda: watch.address == "10.9.0.1", "IPv4 for want of IPv6")
    watch.ip("link set p0 up")
    watch.until(lambda: bool(watch.plane.info.up), "link up")
    watch.ip(f"address add {watch.host.addresses[0]} dev p0 nodad")
    watch.until(lambda: watch.address == before, "the address it had")


def test_ipv4_in_use_stays_when_ipv6_comes(stack: ExitStack) -> None:
    with Rig(planes=1, direct=True, ip=4) as rig:
        watch = Watch(rig.hosts[0], stack)
        before = watch.address
        assert before == rig.hosts[0].address(0)
        watch.ip("address add fd00:9::1/64 dev p0 nodad")
        watch.until(lambda: watch.plane.address_count == 3, "three addresses")
        assert watch.address == before


def test_an_address_is_not_used_before_duplicate_address_detection_has_ended(
    rig: Rig, stack: ExitStack
) -> None:
    watch = Watch(rig.hosts[0], stack, wanted="fd00:9::1")
    shell.set_sysctls(watch.host.name, {"net/ipv6/conf/p0/accept_dad": 1})
    watch.ip("address add fd00:9::1/64 dev p0")
    watch.read()
    assert watch.address == watch.host.address(0)
    watch.until(lambda: watch.address == "fd00:9::1", "the end of the detection")


def test_a_wanted_address_is_found_among_many(rig: Rig, stack: ExitStack) -> None:
    watch = Watch(rig.hosts[0], stack, wanted="10.8.0.1")
    many = [f"address add 10.7.{number}.1/24 dev p0" for number in range(40)]
    shell.batch([*many, "address add 10.8.0.1/24 dev p0"], netns=watch.host.name)
    watch.until(lambda: watch.address == "10.8.0.1", "the wanted address")
    lib.netlink_watch_sync(watch.it)
    assert watch.address == "10.8.0.1"


# Next hops.


@pytest.mark.parametrize("ip", [4, 6, "ll"])
def test_a_next_hop_is_resolved_by_a_nudge(ip: Any, stack: ExitStack) -> None:
    with Rig(planes=1, direct=True, ip=ip) as rig:
        a, b = rig.hosts
        watch = Watch(a, stack)
        address = b.address(0).partition("%")[0]
        if ip == "ll":  # the rig's own check has not resolved it for good
            watch.ip("neigh flush all")
        hop = watch.follow(address)
        watch.resolve(hop)
        assert bytes(hop.mac) == mac(b)


def test_a_next_hop_that_nobody_has_stays_unresolved(watch: Watch) -> None:
    hop = watch.follow("fd00::99")
    other = watch.follow(watch.address.replace("::1", "::2"), number=1)
    lib.netlink_watch_nudge(watch.it, ffi.addressof(hop))
    watch.resolve(other)
    assert not hop.has_mac


def test_a_resolved_next_hop_stays_known_when_the_kernel_forgets_it(rig: Rig, watch: Watch) -> None:
    hop = watch.follow(rig.hosts[1].address(0))
    watch.resolve(hop)
    watch.ip("neigh flush all")
    watch.ip("link set p0 mtu 1400")
    watch.until(lambda: watch.plane.info.mtu == 1400, "what came after the flush")
    assert hop.has_mac
    lib.netlink_watch_sync(watch.it)
    assert hop.has_mac


def test_another_link_address_of_a_next_hop_is_followed(rig: Rig, watch: Watch) -> None:
    address = rig.hosts[1].address(0)
    hop = watch.follow(address)
    watch.resolve(hop)
    watch.ip(f"neigh replace {address} lladdr 02:00:00:00:88:88 dev p0 nud stale")
    watch.until(lambda: bytes(hop.mac) == bytes.fromhex("020000008888"), "the other address")


def test_a_next_hop_is_unknown_on_an_interface_made_anew(rig: Rig, watch: Watch) -> None:
    hop = watch.follow(rig.hosts[1].address(0))
    watch.resolve(hop)
    rig.plane(0).delete()
    watch.until(lambda: watch.plane.index == 0, "interface gone")
    assert not hop.has_mac
    rig.plane(0).recreate()
    watch.until(lambda: bool(watch.plane.info.up), "interface again")
    watch.resolve(hop)


# Lost messages.


def test_messages_that_were_lost_are_made_good_by_reading_all_anew(rig: Rig, watch: Watch) -> None:
    with socket.socket(fileno=os.dup(watch.it.fd)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    flood = [f"link set p0 mtu {1300 + number}" for number in range(200)]
    shell.batch([*flood, "address add 10.6.0.1/24 dev p0"], netns=watch.host.name)
    watch.until(lambda: watch.plane.info.mtu == 1499, "the last MTU")
    watch.until(lambda: watch.plane.address_count == 3, "the last address")
