# SPDX-License-Identifier: Apache-2.0
"""The userspace fabric on real packets."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from datagrams import SO_RCVBUFFORCE, wait_until
from fabric_net import WRITE, frame
from rig.test_library import Peer
from rig.transfer import Transfer

import mrc.topology
from tools.fabric import FabricError, Settings
from tools.rig import shell
from tools.rig.fabric_rig import FabricRig

pytestmark = pytest.mark.rig

TOPOLOGY = """
planes = {planes}
routing = "{routing}"
block = "fc00::/32"
addresses = "fd00::/16"
mtu = 4200
[[tiers]]
switches = ["t0a", "t0b"]
usid = 0x100
down = {{ rate = "1Gbit", delay = "100us" }}
[[tiers]]
switches = [{upper}]
usid = 0x200
down = {{ rate = "{inner}", delay = "100us" }}
[hosts]
"""
"""Two T0 a plane; hosts in turn on either."""

Make = Callable[..., FabricRig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Builds rigs; `inner` is the rate of T0-T1 links, `t1` how many T1 a plane has."""
    rigs = []

    def build(
        *,
        planes: int = 2,
        hosts: int = 2,
        t1: int = 2,
        inner: str = "1Gbit",
        routing: str = "srv6",
        settings: Settings | None = None,
    ) -> FabricRig:
        upper = ", ".join(f'"t1{chr(ord("a") + number)}"' for number in range(t1))
        text = TOPOLOGY.format(planes=planes, upper=upper, inner=inner, routing=routing)
        for number in range(hosts):
            t0 = "t0b" if number % 2 else "t0a"
            text += f'{chr(ord("a") + number)} = {{ t0 = "{t0}", usid = {0x300 + number} }}\n'
        path = tmp_path / "topology.toml"
        path.write_text(text)
        rig = FabricRig(path, settings)
        rigs.append(rig)
        rig.start()
        return rig

    yield build
    for rig in rigs:
        rig.close()


def exchange(rig: FabricRig, *words: str) -> dict[str, Any]:
    """Messages of all sizes both ways at once: about 80 MB."""
    server = Peer(rig.hosts[1], "sizes_server", "-", *words)
    server.wait_for("listening")
    client = Peer(rig.hosts[0], "sizes_client", f"[{rig.hosts[1].address(0)}]", *words)
    result = client.result()
    assert server.result()["errors"] == result["errors"] == 0
    return result


def test_a_transfer_over_two_planes_and_two_t1_is_whole_and_uses_every_path(make: Make) -> None:
    rig = make()
    exchange(rig)
    counters = rig.fabric.counters()
    for plane in (0, 1):
        for t1 in ("t1a", "t1b"):
            for t0 in ("t0a", "t0b"):
                assert counters[plane, t0, t1]["sent"] > 100
    assert rig.fabric.status()["too_long"] == 0


def send(rig: FabricRig, frames: list[bytes]) -> list[bytes]:
    """Puts frames on host a's first plane, and returns what reaches b within half a second."""
    sender = rig.hosts[0].socket(socket.AF_PACKET, socket.SOCK_RAW)
    receiver = rig.hosts[1].socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
    with sender, receiver:
        sender.bind(("p0", 0))
        receiver.bind(("p0", 0))
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
        receiver.settimeout(0.5)
        for number, each in enumerate(frames):
            sender.send(each)
            if number % 50 == 49:
                time.sleep(2e-3)
        got = []
        try:
            while True:
                data, (*_, kind, _, _) = receiver.recvfrom(10_000)
                if kind != socket.PACKET_OUTGOING and len(data) > 62 and data[62] == WRITE:
                    got.append(data)
        except TimeoutError:
            return got


def writes(rig: FabricRig, count: int) -> list[bytes]:
    destination = rig.hosts[1].address(0)
    return [frame(psn, ev=psn % 16, destination=destination) for psn in range(count)]


def psns(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(each[71:74], "big") for each in frames]


def test_the_same_seed_loses_the_same_packets_in_whatever_order_they_come(make: Make) -> None:
    rig = make(settings=Settings(seed=7))
    again = make(settings=Settings(seed=7))
    other = make(settings=Settings(seed=8))
    for each in (rig, again, other):
        each.fabric.rule(0, {"loss": 100_000})
    frames = writes(rig, 1000)
    got = set(psns(send(rig, frames)))
    assert 800 < len(got) < 980
    assert set(psns(send(again, frames[::-1]))) == got
    assert set(psns(send(other, frames))) != got


def test_a_silent_switch_takes_its_paths_and_nothing_else(make: Make) -> None:
    rig = make()
    frames = writes(rig, 400)
    assert len(send(rig, frames)) == 400
    rig.fabric.silence(0, "t1a", on=True)
    left = set(psns(send(rig, frames)))
    assert 0 < len(left) < 400
    # An EV is on one path: all of its packets are there, or none.
    by_ev = [sum(psn in left for psn in range(ev, 400, 16)) for ev in range(16)]
    assert set(by_ev) == {0, 25}
    rig.fabric.reboot(0, "t1a", down_ms=50)
    assert {each["node"] for each in rig.fabric.status()["down"]} == {"t0a", "t0b", "t1a"}
    time.sleep(0.1)
    assert rig.fabric.status()["down"] == []
    assert len(send(rig, frames)) == 400


def test_a_transfer_leaves_a_t1_that_is_silently_dead(make: Make) -> None:
    rig = make()
    server = Peer(rig.hosts[1], "sizes_server", "-")
    server.wait_for("listening")
    client = Peer(rig.hosts[0], "sizes_client", f"[{rig.hosts[1].address(0)}]")
    dead = (1, "t0a", "t1a")
    wait_until(lambda: sent(rig, dead) > 500, "data on the path that will die")
    rig.fabric.silence(1, "t1a", on=True)
    before = sent(rig, dead), entered(rig)
    assert server.result()["errors"] == client.result()["errors"] == 0
    on_dead, on_all = sent(rig, dead) - before[0], entered(rig) - before[1]
    assert rig.fabric.total("silent") > 0
    assert on_dead * 8 < on_all, rig.fabric.counters()  # it was a quarter of all


def steered(rig: FabricRig, tmp_path: Path, size: int, *settings: str) -> Transfer:
    """A transfer from a to b whose paths the sender names."""
    a, b, *_ = rig.hosts
    return Transfer(a, b, tmp_path / "topology.toml", size, *settings)


def test_a_host_s_own_interface_that_was_down_carries_data_again(
    make: Make, tmp_path: Path
) -> None:
    """The kernel has forgotten its neighbours, and the fabric answers nobody who asks for one."""
    rig = make()
    transfer = steered(rig, tmp_path, 192 << 20)
    way = (1, "a", "t0a")
    wait_until(lambda: sent(rig, way) > 500, "data on the plane")
    rig.set_interface(1, "a", up=False)
    before = sent(rig, way)
    time.sleep(0.2)
    assert sent(rig, way) == before
    rig.set_interface(1, "a", up=True)
    wait_until(lambda: sent(rig, way) > before + 500, "data on the plane that is back")
    assert transfer.is_right()


@pytest.mark.parametrize("srh", ["false", "true"], ids=["plain", "SRH"])
def test_a_source_routed_transfer_leaves_a_t1_that_goes_silent(
    srh: str, make: Make, tmp_path: Path
) -> None:
    rig = make()
    transfer = steered(rig, tmp_path, 64 << 20, f"srh={srh}")
    dead, beside = (1, "t0a", "t1a"), (1, "t0a", "t1b")
    wait_until(lambda: sent(rig, dead) > 1000, "data on the path that will die")
    assert rig.fabric.status()["down"] == []
    rig.fabric.silence(1, "t1a", on=True)
    before = sent(rig, dead), sent(rig, beside), entered(rig)
    assert transfer.is_right()
    on_dead, on_beside, on_all = (
        sent(rig, dead) - before[0],
        sent(rig, beside) - before[1],
        entered(rig) - before[2],
    )
    assert rig.fabric.total("silent") > 0
    assert on_dead * 8 < on_all, rig.fabric.counters()  # it was a quarter of all
    assert on_beside * 5 > on_all, rig.fabric.counters()  # its plane is used as before
    assert unrouted(rig) == 0


def test_structured_evs_name_the_uplink_and_leave_one_that_goes_silent(
    make: Make, tmp_path: Path
) -> None:
    """No EV names an uplink that is not there, and every uplink carries its share."""
    rig = make(routing="stev", t1=3)
    transfer = steered(rig, tmp_path, 192 << 20, 'routing="stev"')
    uplinks = [(1, "t0a", name) for name in ("t1a", "t1b", "t1c")]
    wait_until(
        lambda: min(sent(rig, up) for up in uplinks) > 1000, "data on the path that will die"
    )
    shares = [sent(rig, uplink) for uplink in uplinks]
    assert min(shares) * 3 > max(shares)
    rig.fabric.silence(1, "t1a", on=True)
    before = [sent(rig, uplink) for uplink in uplinks]
    assert transfer.is_right()
    dead, *others = (sent(rig, up) - then for up, then in zip(uplinks, before, strict=True))
    assert dead * 4 < min(others), rig.fabric.counters()
    assert unrouted(rig) == 0


def test_a_connection_is_made_while_a_t1_of_each_plane_is_silent(
    make: Make, tmp_path: Path
) -> None:
    """Its set-up is TCP, which switches send by a hash of its ports."""
    rig = make()
    for plane in (0, 1):
        rig.fabric.silence(plane, "t1a", on=True)
    assert all(steered(rig, tmp_path, 1).is_right() for _ in range(4))


def linux_endpoint(rig: FabricRig, here: int, there: int, path: mrc.topology.Path) -> None:
    """Lets the kernel of host `here` wrap what it sends to `there`'s fd77:: address, and unwrap."""
    host, peer = rig.hosts[here], rig.hosts[there]
    own = rig.topology.usid(host.label, 0)
    lines = [
        f"address add fd77::{here + 1}/128 dev lo nodad",
        "link add sr0 type ifb",
        "link set sr0 up",
        f"route add fc00:0:{own:x}::/48 encap seg6local action End.DT6 table 255 dev sr0",
        f"route add fc00::/32 via {peer.address(0)} dev p0",
        f"route add fd77::{there + 1}/128 encap seg6 mode encap.red segs {path.address} "
        f"via {peer.address(0)} dev p0 src fd77::{here + 1}",
    ]
    shell.batch(lines, netns=host.name)


def test_linux_as_the_host_exchanges_udp_across_our_switches(make: Make) -> None:
    """The kernel's encap.red and End.DT6 read and write the same uSIDs as our switches."""
    rig = make()
    there, back = rig.topology.paths("a", "b")[0], rig.topology.paths("b", "a")[1]
    linux_endpoint(rig, 0, 1, there)
    linux_endpoint(rig, 1, 0, back)
    client, server = (host.socket(socket.AF_INET6, socket.SOCK_DGRAM) for host in rig.hosts)
    with client, server:
        server.bind(("fd77::2", 4000))
        server.settimeout(5.0)
        client.settimeout(5.0)
        for size in (1, 1000, 4000):
            client.sendto(bytes(size), ("fd77::2", 4000))
            data, sender = server.recvfrom(9000)
            assert (len(data), sender[0]) == (size, "fd77::1")
            server.sendto(data[::-1], sender)
            assert len(client.recv(9000)) == size
    for path in (there, back):
        for hop in itertools.pairwise(path.hops):
            assert sent(rig, (path.plane, *hop)) >= 3, (path, hop)
    assert unrouted(rig) == 0


def unrouted(rig: FabricRig) -> int:
    """Packets that a switch got from another and knew no way for; hosts also send multicast."""
    rows = rig.fabric.counters().items()
    return sum(row["no_route"] for (_, _, next_), row in rows if next_ not in {"a", "b"})


def entered(rig: FabricRig) -> int:
    """Packets that host a has sent so far, on both planes."""
    return sum(sent(rig, (plane, "a", "t0a")) for plane in (0, 1))


def sent(rig: FabricRig, port: tuple[int, str, str]) -> int:
    """Packets that a port has sent so far."""
    return rig.fabric.counters().get(port, {"sent": 0})["sent"]


def test_marks_hold_the_queue_below_its_limit(make: Make) -> None:
    """With the ramp well below the limit, cwnd falls before anything is lost or trimmed."""
    limit = 4_000_000
    marks = Settings(data_bytes=limit, mark_from=50_000, mark_to=200_000)
    rig = make(inner="60Mbit", settings=marks)
    exchange(rig)
    assert rig.fabric.total("marked") > 0
    assert rig.fabric.total("data_full") == 0


def test_trims_are_repaired_and_lose_nothing(make: Make) -> None:
    small = Settings(data_bytes=60_000, mark_from=0, mark_to=0)
    rig = make(inner="60Mbit", settings=small)
    exchange(rig, "trimming=true")
    assert rig.fabric.total("trimmed") > 0
    assert rig.fabric.total("trimmed") < entered(rig) / 2


def test_8_hosts_by_8_planes_are_built_and_leave_nothing(make: Make) -> None:
    rig = make(planes=8, hosts=8)
    places = [shell.NAMESPACES / host.name for host in rig.hosts]
    assert len(places) == 8
    assert all(place.exists() for place in places)
    rig.close()
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize(
    ("order", "members", "message"),
    [
        ("dance", {}, "there is no order 'dance'"),
        ("link", {"plane": 0, "node": "t0a", "next": "t0b", "up": True}, "no link from 't0a'"),
        ("link", {"plane": 0, "node": "t0a", "next": "t1a"}, "lacks 'up'"),
        ("silence", {"plane": 0, "node": "a", "on": True}, "no switch 'a'"),
        ("rule", {"slot": 64}, "slot is 64"),
        ("rule", {"slot": 0, "los": 1}, "a rule has no 'los'"),
        ("flap", {"plane": 0, "node": "t0a", "next": "t1a", "period_ms": 5, "down_ms": 5}, "part"),
        ("reboot", {"plane": 0, "node": "t1a", "down_ms": 0}, "down_ms is 0"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_by_name(
    order: str, members: dict[str, Any], message: str, make: Make
) -> None:
    with pytest.raises(FabricError, match=message):
        make().fabric.order(order, members)
