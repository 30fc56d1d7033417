# SPDX-License-Identifier: Apache-2.0
"""Scenes from public bug reports, played between two programs while the rig breaks things.

Each docstring names its case. What is sent is checked: every message once, whole and in order.
"""

from __future__ import annotations

import time

import pytest
from rig.talker import MBIT, MIB, Talker, connecting, listening, lost, pair, settle_up

from tools.rig import Rig, shell

pytestmark = pytest.mark.rig


def test_a_dropped_plane_comes_back_by_itself_each_time(rig: Rig) -> None:
    """Cases A1 and A2: a drop of any length ends by probing; one recovery each."""
    client, server = pair(rig)
    before = client.until_state("p0", "up")["paths"]["p0"]["recoveries"]
    for count, seconds in enumerate((0.1, 1.0), 1):
        rig.plane(0).blackhole()
        client.until_state("p0", "out")
        time.sleep(seconds)
        rig.plane(0).heal()
        client.until_state("p0", "up")
        look = client.until_share("p0", 0.2)
        assert look["paths"]["p0"]["recoveries"] == before + count
    assert lost(client, "p0") == ["silent", "silent"]
    settle_up(client, server)


def test_a_plane_that_is_black_before_the_connect_is_named(rig: Rig) -> None:
    """Case A3: the set-up passes over the other plane, and the first is told as lost."""
    rig.plane(0).blackhole()
    server = listening(rig)
    client = connecting(rig, planes_to=(0, 1), send=True, config={"max_inflight": MIB})
    assert client.ready()["seconds"] < 2  # of the 10 that it may take
    look = client.until(lambda look: look["events"].count(["PlaneLost", "p0", "address"]) > 0)
    path = client.until(lambda later: later["sent"] > look["sent"] + 50)["paths"]["p0"]
    assert (path["state"], path["bytes_sent"]) == ("out", 0)
    assert lost(client, "p0") == ["address"]
    assert client.log.count("plane p0 carries nothing: address") == 1
    settle_up(client, server)


def test_all_planes_black_for_less_than_dead_after_is_a_pause(rig: Rig) -> None:
    """Case A5 (a)."""
    client, server = pair(rig, config={"dead_after": 10})
    client.until(lambda look: look["sent"] > 10)
    for plane in rig.planes:
        plane.blackhole()
    time.sleep(1)
    for plane in rig.planes:
        plane.heal()
    sent = client.look()["sent"]
    client.until(lambda look: look["sent"] > sent + 100)
    settle_up(client, server)


def test_all_planes_black_for_longer_ends_both_sides(rig: Rig) -> None:
    """Case A5 (b)."""
    client, server = pair(rig, config={"dead_after": 1})
    server.until(lambda look: look["received"] > 10)
    for plane in rig.planes:
        plane.blackhole()
    for talker in (client, server):
        look = talker.until(lambda look: bool(look["ends"]))
        assert look["ends"] == ["peer silent"]
        assert "planes p0 " in look["errors"][0]


def test_planes_are_all_used_after_the_peer_restarted_amid_set_ups(rig: Rig) -> None:
    """Case A6: nothing is quarantined by set-ups that failed."""
    server = listening(rig)
    client = connecting(rig, planes_to=(0, 1), connections=3, timeout=3)
    time.sleep(0.35)
    server.kill()
    server = listening(rig)
    client.answer()
    client.tell("again")
    look = client.until(lambda look: {p["state"] for p in look["paths"].values()} == {"up"})
    assert look["connections"] >= 3
    client.tell("close")


def test_a_plane_that_mangles_headers_is_left(rig: Rig) -> None:
    """Case A7: what does not pass the checks is counted; data and close take the other plane."""
    client, server = pair(rig)
    client.until_state("p0", "up")
    rig.plane(0).corrupt(100, offset=3)
    client.until_state("p0", "out")
    _, got = settle_up(client, server)
    assert got["counters"]["drop_icrc"] + got["counters"]["drop_opcode"] > 0


def test_an_address_that_comes_back_late_brings_its_plane_back(rig: Rig) -> None:
    """Case A9: the kernel flushes the address with the link; it is looked up again."""
    client, server = pair(rig)
    client.until_state("p0", "up")
    host = rig.hosts[0]
    shell.batch(["link set p0 down"], netns=host.name)
    client.until_state("p0", "out")
    shell.batch(["link set p0 up"], netns=host.name)
    time.sleep(0.5)
    path = client.look()["paths"]["p0"]
    assert (path["state"], path["reason"]) == ("out", "address")
    shell.batch([f"address add {host.addresses[0]} dev p0 nodad"], netns=host.name)
    client.until_share("p0", 0.2)
    settle_up(client, server)


def test_another_address_takes_its_plane_out_until_the_next_set_up_tells_it(rig: Rig) -> None:
    """Case A9, an address that does not come back: nothing is sent that the peer would refuse."""
    client, server = pair(rig)
    client.until_state("p0", "up")
    rig.plane(0).change_address("a", "fd00::77/64")
    assert client.until_state("p0", "out")["paths"]["p0"]["reason"] == "address"
    server.until_state("p0", "out")
    client.tell("again")
    client.until_state("p0", "up")
    client.until_share("p0", 0.2)
    look = server.look()
    assert (look["wrong"], look["ends"]) == (0, [])


def test_disjoint_planes_end_in_a_named_error(rig: Rig) -> None:
    """Case A12: one host has p0 alone, the other p1."""
    server = listening(rig, planes=["p1"])
    rig.plane(1).blackhole()
    client = connecting(rig, planes=["p0"], timeout=2)
    answer = client.answer()
    assert not answer["ready"]
    assert answer["errors"][0].startswith("HandshakeError")
    assert "no plane in common: there p1 fd00:1::2; here p0 fd00::1" in answer["errors"][0]
    server.tell("close")


def test_a_deleted_interface_is_one_loss_and_made_again_it_carries_data(rig: Rig) -> None:
    """Cases A14 and B27."""
    client, server = pair(rig)
    client.until_state("p0", "up")
    rig.plane(0).delete("a")
    look = client.until_state("p0", "out")
    client.until(lambda later: later["sent"] > look["sent"] + 50)
    assert lost(client, "p0") == ["link"]
    rig.plane(0).recreate()
    rig.plane(0).rate(MBIT)
    client.until_share("p0", 0.2)
    settle_up(client, server)


def test_planes_that_take_turns_lose_double_and_reorder_nothing(rig: Rig) -> None:
    """Case A15."""
    client, server = pair(rig)
    for turn in range(6):
        plane = rig.plane(turn % 2)
        client.until_state("p0", "up")
        client.until_state("p1", "up")
        plane.down(rig.hosts[turn // 2 % 2])
        client.until_state(plane.interface, "out")
        plane.up(rig.hosts[turn // 2 % 2])
    settle_up(client, server)


def test_links_down_and_up_never_leave_it_connected_and_silent(rig: Rig) -> None:
    """Case A17: both links of a host, again and again, less than `dead_after` each time."""
    client, server = pair(rig)
    for _ in range(6):
        for plane in rig.planes:
            plane.down(rig.hosts[0])
        for plane in rig.planes:
            plane.up(rig.hosts[0])
        server.until_received(20)
    settle_up(client, server)


def test_both_planes_carry_what_the_listener_sends(rig: Rig) -> None:
    """Case A20: the other direction uses all planes too."""
    server = listening(rig, send=True, config={"max_inflight": MIB})
    client = connecting(rig)
    client.ready()
    client.until(lambda look: look["received"] > 200)
    paths = server.look()["paths"].values()
    total = sum(path["bytes_sent"] for path in paths)
    assert all(path["bytes_sent"] > 0.25 * total for path in paths)
    server.tell("stop")
    assert client.look()["wrong"] == 0


def test_a_drop_in_one_direction_costs_one_plane(rig: Rig) -> None:
    """Case A21: what is sent again finds the living plane; the connection lives on."""
    client, server = pair(rig, config={"dead_after": 2})
    client.until_state("p0", "up")
    rig.plane(0).blackhole(direction="a->b")
    look = client.until_state("p0", "out")
    client.until(lambda later: later["sent"] > look["sent"] + 250)
    settle_up(client, server)


def detect_duplicates(rig: Rig) -> None:
    """Undoes what the rig does for speed."""
    values = {"net/ipv6/conf/all/accept_dad": 1, "net/ipv6/conf/p0/accept_dad": 1}
    for host in rig.hosts:
        shell.set_sysctls(host.name, values)


def test_a_tentative_address_is_waited_for(rig: Rig) -> None:
    """Case B30: duplicate address detection has not ended when the listener starts."""
    host = rig.hosts[1]
    detect_duplicates(rig)
    shell.batch(
        [
            "address flush dev p0 scope global",
            f"address add {host.addresses[0]} dev p0",
        ],
        netns=host.name,
    )
    server = listening(rig)
    assert "address tentative on p0: waiting for it" in server.log
    client = connecting(rig, planes_to=(1,), send=True, config={"max_inflight": MIB})
    client.ready()
    client.until_state("p0", "up")
    settle_up(client, server)


def test_a_duplicate_address_leaves_its_plane_out_and_says_so(rig: Rig) -> None:
    """Case B30: detection failed on p0; p1 works."""
    host, other = rig.hosts
    detect_duplicates(rig)
    shell.batch([f"address add {host.addresses[0]} dev p0"], netns=other.name)
    shell.batch([f"address del {other.addresses[0]} dev p0"], netns=other.name)
    deadline = time.monotonic() + 10
    while "dadfailed" not in shell.run(["ip", "-n", other.name, "address", "show", "dev", "p0"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server = Talker(other, listen=True)
    assert "DAD" in server.ready()["excluded"]["p0"]
    client = connecting(rig, planes_to=(1,), send=True, config={"max_inflight": MIB})
    client.ready()
    client.until(lambda look: look["sent"] > 10)
    settle_up(client, server)


@pytest.mark.parametrize("ip", [4, 6])
def test_planes_in_one_subnet_each_leave_by_their_own_port(ip: int) -> None:
    """Case B31, with reverse path filters as distributions set them."""
    with Rig(planes=2, ip=4 if ip == 4 else 6) as rig:
        addresses = [f"10.0.0.1{n}/24" if ip == 4 else f"fd00::1{n}/64" for n in range(4)]
        for number, host in enumerate(rig.hosts):
            shell.set_sysctls(host.name, {"net/ipv4/conf/all/rp_filter": 1})
            for plane in rig.planes:
                plane.change_address(host, addresses[2 * number + plane.number])
                plane.rate(MBIT)
        client, server = pair(rig)
        client.until(lambda look: {p["state"] for p in look["paths"].values()} == {"up"})
        before = rig.hosts[0].counters()
        sent = client.look()["sent"]
        client.until(lambda look: look["sent"] > sent + 100)
        after = rig.hosts[0].counters()
        moved = [after[plane].tx_bytes - before[plane].tx_bytes for plane in range(2)]
        assert min(moved) > 0.25 * sum(moved)
        settle_up(client, server)


@pytest.mark.parametrize(
    "mtus", [((9000, 1500), (1500, 1500)), ((4200, 1500), (4200, 1500))], ids=["B34", "B35"]
)
@pytest.mark.parametrize("large", ["a", "b"])
def test_unlike_mtus_use_the_smaller(
    rig: Rig, mtus: tuple[tuple[int, int], ...], large: str
) -> None:
    """Cases B34 and B35: of a plane, and of the two hosts; the largest packets must not vanish."""
    small = "b" if large == "a" else "a"
    for plane, (mtu, other) in zip(rig.planes, mtus, strict=True):
        plane.set_mtu(large, mtu)
        plane.set_mtu(small, other)
    client, server = pair(rig, sizes=[1000, 1400, 1500, 4096, 65536])
    client.until(lambda look: look["sent"] > 100)
    look, _ = settle_up(client, server)
    assert look["stats"]["mtu"] == 1024
    assert {path["state"] for path in look["paths"].values()} == {"up"}
    assert any("MTU" in notice for notice in look["notices"])


def test_flipped_bytes_are_counted_and_never_delivered(rig: Rig) -> None:
    """Cases B37 and B38: each flip is one ICRC error, and without flips there is none."""
    client, server = pair(rig)
    client.until(lambda look: look["sent"] > 100)
    assert server.look()["counters"]["drop_icrc"] == 0
    for plane in rig.planes:
        plane.corrupt(2, offset=100, direction="a->b")
    client.until(lambda look: look["sent"] > 600)
    client.tell("stop")
    _, got = settle_up(client, server)
    flips = sum(plane.corrupted() for plane in rig.planes)
    assert got["counters"]["drop_icrc"] == flips > 20


def test_small_socket_buffers_and_large_descriptors_only_slow_it_down(rig: Rig) -> None:
    """Cases B41 and B46: the least buffers that a kernel grants, descriptors above 1024."""
    least = {"receive_buffer": 65536, "send_buffer": 65536}
    client, server = pair(rig, config=least, descriptors=1100)
    client.until(lambda look: look["sent"] > 100)
    settle_up(client, server)


def test_a_peer_killed_and_started_again_is_told_and_reached_at_once(rig: Rig) -> None:
    """Case C57: the old connection ends as "peer restarted"; a new one works."""
    # Long enough for the new one to be up when it is asked for, however slowly it starts.
    client, server = pair(rig, config={"crash_after": 3.0})
    client.until(lambda look: look["sent"] > 20)
    server.kill()
    server = listening(rig)
    client.tell("again")
    look = client.until(lambda look: len(look["ends"]) > 0 and look["connections"] == 2)
    assert look["ends"] == ["peer restarted"]
    server.until(lambda look: look["received"] > 100)
    client.tell("stop")
    assert server.look()["wrong"] == 0


def test_a_close_that_is_lost_is_repeated(rig: Rig) -> None:
    """Case C58: with the window full, and every packet lost for a while."""
    client, server = pair(rig)
    client.until(lambda look: look["sent"] > 20)
    for plane in rig.planes:
        plane.blackhole()
    client.begin("close")
    time.sleep(0.5)
    for plane in rig.planes:
        plane.heal()
    closed = client.answer()
    assert closed["errors"] == []
    got = server.until(lambda look: bool(look["ends"]))
    assert (got["ends"], got["wrong"], got["received"]) == (["closed"], 0, closed["sent"])


KIB_OF_A_CONNECTION = 64
"""Of memory that an idle connection takes, at most; 17 are lent to the peer."""


def test_three_hundred_connects_at_once_arrive_or_are_refused_as_too_many(rig: Rig) -> None:
    """Case C63: none is silent; with a longer backlog all arrive, and cost bounded memory."""
    server = listening(rig)
    client = connecting(rig, connections=300, timeout=25)
    errors = client.answer()["errors"]
    accepted = client.look()["connections"]
    assert accepted + len(errors) == 300
    assert accepted >= 64
    assert all("too many connections wait to be accepted" in error for error in errors)
    assert server.until(lambda look: look["connections"] == accepted)["ends"] == []
    server.kill()

    server = listening(rig, backlog=300)
    before = server.look()["rss_kib"]
    client = connecting(rig, connections=300, timeout=25)
    assert client.ready()["errors"] == []
    look = server.until(lambda look: look["connections"] == 300)
    assert look["ends"] == []
    assert look["rss_kib"] - before < 300 * KIB_OF_A_CONNECTION


def test_packets_that_come_twice_are_taken_once(rig: Rig) -> None:
    """Case C64: every frame is doubled; each copy is counted."""
    for plane in rig.planes:
        plane.duplicate(100)
    client, server = pair(rig)
    client.until(lambda look: look["sent"] > 200)
    sent = client.tell("stop")["stats"]["packets_sent"]
    assert server.look()["stats"]["packets_duplicate"] == pytest.approx(sent, rel=0.05)
    settle_up(client, server)


def test_a_closed_port_hurts_no_healthy_connection(rig: Rig) -> None:
    """Case D65: refused at once, while another connection to that host goes on."""
    client, server = pair(rig)
    client.until(lambda look: look["sent"] > 20)
    refused = Talker(rig.hosts[0], connect=[f"[{rig.hosts[1].address(0)}]:9"])
    assert refused.answer()["errors"][0].startswith("ConnectRefused")
    settle_up(client, server)


def test_a_receiver_that_never_reads_costs_bounded_memory_and_may_begin_late(rig: Rig) -> None:
    """Case D67."""
    config = {"max_inflight": 4 * MIB, "max_queue": 4 * MIB}
    for plane in rig.planes:
        plane.rate(None)
    server = listening(rig, read=False, config=config)
    client = connecting(rig, send=True, config=config)
    client.ready()
    early = {talker: talker.look()["rss_kib"] for talker in (client, server)}
    time.sleep(1)
    stuck = client.look()["sent"]
    time.sleep(1)
    assert client.look()["sent"] == stuck
    for talker, before in early.items():
        assert talker.look()["rss_kib"] - before < 24 * 1024
    server.begin("read")
    server.answer()
    client.until(lambda look: look["sent"] > stuck + 100)
    settle_up(client, server)
