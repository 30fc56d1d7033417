# SPDX-License-Identifier: Apache-2.0
"""The rig does what it says to real packets, and leaves nothing behind.

host a  p0, p1 ── hub ── p0, p1  host b       numbered UDP datagrams from a to b
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from datagrams import drain, numbers, packet_socket, pair, udp_frames, wait_until

from tools.rig import Host, Rig, RigError, shell

pytestmark = pytest.mark.rig

ALL_TEN = list(range(10))
SOL_UDP, UDP_SEGMENT = 17, 103


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Two hosts, two planes."""
    with Rig(planes=2) as made:
        yield made


def links(netns: str) -> dict[str, dict[str, object]]:
    """The interfaces of a namespace but for lo, as `ip -j` gives them."""
    found = json.loads(shell.run(["ip", "-n", netns, "-j", "link", "show"]))
    return {link["ifname"]: link for link in found if link["ifname"] != "lo"}


def has_carrier(host: Host, plane: int) -> bool:
    return links(host.name)[host.interface(plane)]["operstate"] == "UP"


# What it is.


@pytest.mark.parametrize("direct", [False, True], ids=["through the hub", "direct"])
@pytest.mark.parametrize("ip", [6, 4, "ll"])
def test_traffic_passes_on_every_plane_both_ways(ip: Literal[4, 6, "ll"], direct: bool) -> None:
    with Rig(planes=3, ip=ip, direct=direct) as rig:
        a, b = rig.hosts
        for plane in range(3):
            assert numbers(a, b, plane) == ALL_TEN
            assert numbers(b, a, plane) == ALL_TEN


def test_a_frame_crosses_its_own_plane_and_no_other(rig: Rig) -> None:
    a, b = rig.hosts
    before = a.counters(), b.counters()
    numbers(a, b, 1)
    after = a.counters(), b.counters()
    assert after[0][1].tx_packets - before[0][1].tx_packets >= 10
    assert after[1][1].rx_packets - before[1][1].rx_packets >= 10
    assert after[0][0].tx_packets - before[0][0].tx_packets < 10
    assert after[1][0].rx_packets - before[1][0].rx_packets < 10


def test_among_three_hosts_each_reaches_each_and_a_fault_has_its_two() -> None:
    with Rig(("a", "b", "c"), planes=1) as rig:
        for source, destination in itertools.permutations(rig.hosts, 2):
            assert numbers(source, destination) == ALL_TEN
        a, b, c = rig.hosts
        rig.plane(0).blackhole(direction="a->b")
        assert numbers(a, b) == []
        assert numbers(a, c) == ALL_TEN
        assert numbers(c, b) == ALL_TEN


def test_all_ifindexes_of_a_rig_are_different(rig: Rig) -> None:
    namespaces = [*(host.name for host in rig.hosts), str(rig.planes[0].hub)]
    found = [link["ifindex"] for name in namespaces for link in links(name).values()]
    assert len(found) == 8
    assert len(set(found)) == 8


def test_a_rig_of_four_planes_is_built_and_removed_a_dozen_times_in_seconds() -> None:
    """Case B46: none of its namespaces keeps a descriptor open."""
    began = time.monotonic()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(12):
        with Rig():
            pass
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "arguments",
    [
        {"hosts": ("a",)},
        {"hosts": ("a", "a")},
        {"hosts": ("a", "hub")},
        {"hosts": ("a", "b", "c"), "direct": True},
        {"planes": 0},
        {"ip": 5},
    ],
    ids=str,
)
def test_a_rig_that_makes_no_sense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Rig(**arguments)  # type: ignore[arg-type]


# What befalls frames.


def test_loss_in_percent_is_binomial_and_counted(rig: Rig) -> None:
    a, b = rig.hosts
    rig.plane(0).loss(10, match="udp dport 5001", direction="a->b")
    arrived = numbers(a, b, count=4000)
    assert 400 - 6 * 19 < 4000 - len(arrived) < 400 + 6 * 19  # the deviation is 19
    assert rig.plane(0).lost() == 4000 - len(arrived)
    assert arrived == sorted(set(arrived))
    gaps = {after - before for before, after in itertools.pairwise(arrived)}
    assert len(gaps) > 1  # no pattern, but draws


def test_loss_by_pattern_takes_every_nth_exactly(rig: Rig) -> None:
    a, b = rig.hosts
    rig.plane(0).loss(every=7, match="udp dport 5001")
    assert numbers(a, b, count=70) == [number for number in range(70) if number % 7 != 6]


def test_loss_is_for_the_frames_that_match(rig: Rig) -> None:
    a, b = rig.hosts
    rig.plane(0).loss(100, match="udp dport 4791")
    assert numbers(a, b) == ALL_TEN
    rig.plane(0).loss(100, match="udp dport 5001")
    assert numbers(a, b) == []
    rig.plane(0).loss(0)
    assert numbers(a, b) == ALL_TEN


def test_a_packet_socket_of_all_protocols_does_not_see_what_is_lost(rig: Rig) -> None:
    a, b = rig.hosts
    assert numbers(a, b) == ALL_TEN  # the neighbours know each other
    rig.plane(0).loss(every=2, match="udp dport 5001")
    with packet_socket(b, 0) as sock:
        numbers(a, b)
        payloads = udp_frames(sock)
    assert [struct.unpack("!I", payload)[0] for payload in payloads] == [0, 2, 4, 6, 8]


def test_a_packet_socket_that_sends_is_not_told_of_loss(rig: Rig) -> None:
    a, _ = rig.hosts
    rig.plane(0).blackhole()
    with packet_socket(a, 0) as sock:
        frame = b"\xff" * 6 + b"\x02" + b"\0" * 5 + b"\x88\xb5" + b"x" * 100
        assert sock.send(frame) == len(frame)


def test_a_blackhole_has_a_direction_keeps_the_carrier_and_heals(rig: Rig) -> None:
    a, b = rig.hosts
    assert numbers(a, b) == ALL_TEN
    rig.plane(0).blackhole(direction="a->b")
    assert numbers(a, b) == []
    assert numbers(b, a) == ALL_TEN
    assert numbers(a, b, 1) == ALL_TEN
    assert has_carrier(a, 0)
    assert has_carrier(b, 0)
    rig.plane(0).heal()
    assert numbers(a, b) == ALL_TEN


def test_a_change_of_the_faults_loses_nothing_by_itself(rig: Rig) -> None:
    a, b = rig.hosts
    over = threading.Event()
    sent = 0

    def send(sender: socket.socket) -> None:
        nonlocal sent
        while not over.is_set() and sent < 100_000:
            sender.send(bytes(4))
            sent += 1

    with pair(a, b, 0) as (sender, receiver):
        thread = threading.Thread(target=send, args=(sender,))
        thread.start()
        for _ in range(10):
            rig.plane(0).duplicate(0)
        over.set()
        thread.join()
        assert len(drain(receiver)) == sent


def test_corruption_changes_the_one_byte(rig: Rig) -> None:
    a, b = rig.hosts
    assert numbers(a, b) == ALL_TEN
    rig.plane(0).corrupt(100, offset=20, direction="a->b")
    with packet_socket(b, 0) as sock, pair(a, b, 0) as (sender, _):
        sender.send(bytes(range(100)))
        changed = bytearray(range(100))
        changed[20] ^= 0x55
        assert udp_frames(sock) == [bytes(changed)]


def test_duplication_delivers_twice_in_order(rig: Rig) -> None:
    a, b = rig.hosts
    rig.plane(0).duplicate(100)
    assert numbers(a, b, count=3) == [0, 0, 1, 1, 2, 2]


# What limits it.


def goodput(source: Host, destination: Host) -> float:
    """The rate in Mb/s of 2 MB in datagrams of 4000 bytes, Ethernet's header included.

    Taken from the kernel's times of arrival, after the first 200 kB: those are tbf's burst.
    """
    with pair(source, destination, 0) as (sender, receiver):
        # The kernel begins to take the times a while after it was asked to.
        sender.send(bytes(4000))
        assert len(drain(receiver)) == 1
        for _ in range(500):
            sender.send(bytes(4000))
        arrived = drain(receiver)[50:]
    assert len(arrived) == 450
    return 449 * (4000 + 62) * 8 / (arrived[-1][0] - arrived[0][0]) / 1e6


def test_a_rate_is_what_was_set_in_its_direction(rig: Rig) -> None:
    a, b = rig.hosts
    rates = {}
    for mbit in (40, 80):
        rig.plane(0).rate(mbit, direction="a->b")
        rates[mbit] = goodput(a, b)
    assert rates[80] / rates[40] == pytest.approx(2, rel=0.05)
    assert goodput(b, a) > 3 * rates[80]
    rig.plane(0).rate(None)
    assert goodput(a, b) > 3 * rates[80]


def test_a_frame_longer_than_the_receivers_mtu_vanishes(rig: Rig) -> None:
    a, b = rig.hosts
    with pair(a, b, 0) as (sender, receiver):
        sender.send(bytes(2000))
        assert len(drain(receiver)) == 1
        rig.plane(0).set_mtu("b", 1500)
        sender.send(bytes(2000))
        sender.send(bytes(1000))
        assert [len(data) for _, data in drain(receiver)] == [1000]


@pytest.mark.parametrize(("on", "frames"), [(True, [6000]), (False, [1000] * 6)])
def test_a_gso_frame_is_cut_where_the_offload_is_off(rig: Rig, on: bool, frames: list[int]) -> None:
    a, b = rig.hosts
    assert numbers(a, b) == ALL_TEN
    rig.plane(0).offload(on)
    with packet_socket(b, 0) as sock, pair(a, b, 0) as (sender, _):
        sender.setsockopt(SOL_UDP, UDP_SEGMENT, 1000)
        sender.send(bytes(6000))
        assert [len(payload) for payload in udp_frames(sock)] == frames


def test_loss_takes_packets_where_the_offload_is_off(rig: Rig) -> None:
    a, b = rig.hosts
    assert numbers(a, b) == ALL_TEN
    rig.plane(0).offload(False, host="a")
    rig.plane(0).loss(every=3, match="udp dport 5001")
    with packet_socket(b, 0) as sock, pair(a, b, 0) as (sender, _):
        sender.setsockopt(SOL_UDP, UDP_SEGMENT, 1000)
        sender.send(b"".join(bytes([number]) * 1000 for number in range(6)))
        assert [payload[0] for payload in udp_frames(sock)] == [0, 1, 3, 4]


# Links and addresses.


def global_address(host: Host, plane: int) -> str:
    command = ["ip", "-n", host.name, "-o", "address", "show", "scope", "global"]
    return shell.run([*command, "dev", host.interface(plane)])


@pytest.mark.parametrize("direct", [False, True], ids=["through the hub", "direct"])
def test_a_link_that_goes_down_takes_the_carrier_and_comes_back_whole(direct: bool) -> None:
    with Rig(planes=1, direct=direct) as rig:
        a, b = rig.hosts
        rig.plane(0).down("a")
        wait_until(lambda: not has_carrier(b, 0), "b without a carrier")
        assert a.address(0) not in global_address(a, 0)
        rig.plane(0).up("a")
        wait_until(lambda: has_carrier(a, 0) and has_carrier(b, 0), "both with a carrier")
        assert numbers(a, b) == ALL_TEN


def test_an_address_can_survive_the_link_that_goes_down() -> None:
    with Rig(planes=1, keep_address=True) as rig:
        rig.plane(0).down("a")
        assert rig.hosts[0].address(0) in global_address(rig.hosts[0], 0)


@pytest.mark.parametrize("host", [None, "b"])
def test_an_interface_that_was_deleted_is_made_again_with_its_faults(
    rig: Rig, host: str | None
) -> None:
    a, b = rig.hosts
    plane = rig.plane(0)
    plane.loss(every=2, match="udp dport 5001", direction="a->b")
    before = links(b.name)["p0"]["ifindex"]
    plane.delete(host)
    assert "p0" not in links(b.name)
    if host is not None:
        wait_until(lambda: not has_carrier(a, 0), "a without a carrier")
    plane.recreate()
    assert links(b.name)["p0"]["ifindex"] != before
    wait_until(lambda: has_carrier(a, 0) and has_carrier(b, 0), "both with a carrier")
    assert numbers(a, b) == [0, 2, 4, 6, 8]
    assert numbers(b, a) == ALL_TEN


@pytest.mark.parametrize(("ip", "address"), [(6, "fd00:77::7/64"), (4, "10.77.0.7/24")])
def test_an_address_is_changed_and_the_old_one_gone(ip: Literal[4, 6], address: str) -> None:
    with Rig(planes=1, ip=ip) as rig:
        _, b = rig.hosts
        old = b.address(0)
        rig.plane(0).change_address("b", address)
        assert b.address(0) == address.split("/", maxsplit=1)[0]
        assert f" {address} " in global_address(b, 0)
        assert f" {old}/" not in global_address(b, 0)


# What is refused.


def test_a_direction_or_a_host_that_does_not_exist_is_a_value_error(rig: Rig) -> None:
    for direction in ("a->c", "a", "a->a"):
        with pytest.raises(ValueError, match="not"):
            rig.plane(0).blackhole(direction=direction)
    with pytest.raises(ValueError, match="no host 'c'"):
        rig.plane(0).down("c")
    with pytest.raises(ValueError, match="percentage"):
        rig.plane(0).loss(101)


def test_an_error_names_the_command_and_what_it_said(rig: Rig) -> None:
    with pytest.raises(RigError, match="nonsense") as caught:
        rig.plane(0).loss(1, match="nonsense")
    assert "nft" in caught.value.command
    assert "syntax error" in caught.value.stderr
    assert numbers(rig.hosts[0], rig.hosts[1]) == ALL_TEN  # the plane is as it was


def test_direct_planes_refuse_to_lose_anything() -> None:
    with Rig(planes=1, direct=True) as rig, pytest.raises(RigError, match="direct"):
        rig.plane(0).loss(1)


# Processes in the hosts.


def test_a_program_runs_in_its_host(rig: Rig) -> None:
    a, _ = rig.hosts
    assert a.run(["cat"], input="hello").stdout == "hello"
    assert a.run(["sh", "-c", "exit 3"], check=False).returncode == 3
    with pytest.raises(RigError, match="code 3: sorry"):
        a.run(["sh", "-c", "echo sorry >&2; exit 3"])
    names = [name for _, name in shell.inside(a.name, socket.if_nameindex)]
    assert sorted(names) == ["lo", "p0", "p1"]


def test_a_program_that_takes_too_long_is_killed_with_its_children(rig: Rig) -> None:
    a, _ = rig.hosts
    with pytest.raises(subprocess.TimeoutExpired):
        a.run(["sh", "-c", "sleep 60 & sleep 60"], timeout=0.5)
    wait_until(lambda: shell.run(["ip", "netns", "pids", a.name]) == "", "no process in a")
