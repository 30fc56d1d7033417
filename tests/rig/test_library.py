# SPDX-License-Identifier: Apache-2.0
"""The library over real packets: two programs (library_peers.py) in two hosts of the rig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.library_peers import OVERWRITES, REVOCATIONS

import mrc
from tools.rig import Host, Rig

pytestmark = pytest.mark.rig

HERE = Path(__file__).resolve()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent.parent.parent)}
PEERS = str(HERE.with_name("library_peers.py"))
LIMIT = 60.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(planes=4) as rig:
        yield rig


class Peer:
    """One of the programs, in a host."""

    def __init__(
        self, host: Host, scenario: str, target: str, *words: str, loop: str = "uvloop"
    ) -> None:
        self.process: subprocess.Popen[str] = host.popen(
            [sys.executable, PEERS, loop, scenario, target, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        got = self.process.stdout.readline().strip()
        if got != line:
            self.process.kill()
            pytest.fail(f"{got!r} instead of {line!r}: {self.process.communicate()[1]}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=LIMIT)

    def result(self, limit: float = LIMIT) -> dict[str, Any]:
        try:
            out, err = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"no end: {self.process.communicate()}")
        assert self.process.returncode == 0, err
        result = json.loads(out.splitlines()[-1])
        assert isinstance(result, dict)
        return result


def serve(rig: Rig, scenario: str, *words: str, loop: str = "uvloop", target: str = "-") -> Peer:
    peer = Peer(rig.hosts[1], scenario, target, *words, loop=loop)
    peer.wait_for("listening")
    return peer


def ask(rig: Rig, scenario: str, *words: str, loop: str = "uvloop", plane: int = 0) -> Peer:
    return Peer(rig.hosts[0], scenario, f"[{rig.hosts[1].address(plane)}]", *words, loop=loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_messages_of_all_sizes_go_both_ways_over_all_planes(rig: Rig, loop: str) -> None:
    server = serve(rig, "sizes_server", loop=loop)
    client = ask(rig, "sizes_client", loop=loop).result()
    assert server.result() == {"errors": 0}
    assert client["errors"] == 0
    assert [path["state"] for path in client["paths"]] == ["up"] * 4
    assert all(path["bytes_sent"] > 0 for path in client["paths"])


@pytest.mark.parametrize("ip", [4, "ll"])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_ipv4_and_link_local_planes_carry_everything(ip: Any, mtu: int) -> None:
    with Rig(planes=2, ip=ip, mtu=mtu) as rig:
        server = serve(rig, "sizes_server")
        client = ask(rig, "sizes_client").result()
        assert server.result()["errors"] == client["errors"] == 0
        assert [path["state"] for path in client["paths"]] == ["up"] * 2


def test_the_synchronous_layer_echoes_and_cannot_be_used_after_fork(rig: Rig) -> None:
    """Case D74."""
    server = serve(rig, "verbs_server")
    client = ask(rig, "verbs_client").result()
    assert client == {"echoed": 500}
    assert server.result() == {"echoed": 500}


def test_many_connects_in_a_row_leave_nothing(rig: Rig) -> None:
    server = serve(rig, "connects_server")
    assert ask(rig, "connects_client").result()["connects"] == 200
    result = server.result()
    assert result["links"] == 0
    assert result["descriptors_after"] <= result["descriptors_before"]


def test_unequal_counts_use_the_common_planes_and_say_so(rig: Rig) -> None:
    server = serve(rig, "sizes_server", "planes=p0,p1,p2")
    client = ask(rig, "sizes_client", "planes=p1,p2").result()
    assert server.result() == {"errors": 0}
    assert client["errors"] == 0
    assert [path["name"] for path in client["paths"]] == ["p1", "p2"]
    assert client["notices"] == [
        "2 planes here, 3 at the peer, 2 in common; not used here: none",
    ]


def test_sixty_four_connections_share_one_endpoint(rig: Rig) -> None:
    server = serve(rig, "echo_server")
    client = ask(rig, "echo_client").result()
    assert client == {"errors": 0, "links": 0}
    assert server.result() == {"echoed": 64 * 20}


def test_cancelled_sends_and_receives_lose_nothing_and_tear_nothing(rig: Rig) -> None:
    server = serve(rig, "cancel_server")
    finished = ask(rig, "cancel_client").result()["finished"]
    result = server.result()
    assert result["torn"] == 0
    assert result["got"] == sorted(set(result["got"]))
    assert set(finished) <= set(result["got"])


def test_ten_thousand_messages_survive_an_impatient_receiver_in_their_order(rig: Rig) -> None:
    """Case D69: each `recv` and `recv_into` ends in time or is cancelled at any moment."""
    server = serve(rig, "impatient_server", loop="asyncio")
    ask(rig, "impatient_client").result()
    result = server.result()
    assert result["wrong"] == 0
    assert result["late"] > 100


def test_a_clean_close_delivers_everything(rig: Rig) -> None:
    server = serve(rig, "wait_server")
    assert ask(rig, "close_client").result() == {"closed": True}
    result = server.result()
    assert (result["reason"], result["count"]) == ("closed", 10)


def test_an_abort_is_told_at_once(rig: Rig) -> None:
    server = serve(rig, "wait_server")
    ask(rig, "abort_client").result()
    assert server.result()["reason"] == "aborted"


def test_a_crashed_peer_is_told_from_a_silent_one(rig: Rig) -> None:
    server = serve(rig, "wait_server")
    client = ask(rig, "talk_client")
    client.wait_for("connected")
    time.sleep(0.2)
    client.kill()
    assert server.result()["reason"] == "peer crashed"

    server = serve(rig, "wait_server", "dead_after=1")
    client = ask(rig, "talk_client", "dead_after=1")
    client.wait_for("connected")
    time.sleep(0.2)
    for number in range(4):
        rig.plane(number).blackhole()
    assert client.result()["reason"] == "peer silent"
    assert server.result()["reason"] == "peer silent"


def test_a_restarted_peer_is_told_as_that(rig: Rig) -> None:
    server = serve(rig, "wait_server")
    client = ask(rig, "wait_client", "crash_after=2")
    client.wait_for("connected")
    server.kill()
    serve(rig, "wait_server")
    assert client.result()["reason"] == "peer restarted"


def test_the_first_events_of_a_connection_are_planes_that_carry_data(rig: Rig) -> None:
    serve(rig, "wait_server")
    got = ask(rig, "events_client").result()["events"]
    assert sorted(got) == [["PlaneRecovered", f"p{plane}"] for plane in range(4)]


def test_nobody_listening_is_refused(rig: Rig) -> None:
    assert ask(rig, "wait_client").result()["error"] == "ConnectRefused"


def test_another_protocol_on_the_port_is_told(rig: Rig) -> None:
    program = (
        "import socket; s = socket.create_server(('::', 4791), family=socket.AF_INET6);"
        "print('listening', flush=True); c, _ = s.accept(); c.sendall(b'220 ftp ready\\r\\n')"
    )
    other = rig.hosts[1].popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == "listening\n"
    result = ask(rig, "wait_client").result()
    assert result["error"] == "HandshakeError"
    assert "220 ftp" in result["text"]


def test_no_plane_in_common_is_told(rig: Rig) -> None:
    serve(rig, "wait_server", "planes=left=p0")
    result = ask(rig, "wait_client", "planes=right=p0").result()
    assert result["error"] == "HandshakeError"
    assert "no plane in common" in result["text"]


def test_a_dead_plane_does_not_hinder_the_set_up(rig: Rig) -> None:
    rig.plane(0).blackhole()
    server = serve(rig, "sizes_server")
    targets = [f"[{rig.hosts[1].address(plane)}]" for plane in (0, 1)]
    client = Peer(rig.hosts[0], "sizes_client", targets[1]).result()
    assert client["errors"] == server.result()["errors"] == 0


def test_a_slow_receiver_stops_its_sender_and_memory_stays_flat(rig: Rig) -> None:
    server = serve(rig, "sink_server", "max_queue=4194304")
    client = ask(rig, "sink_client").result()
    result = server.result()
    assert result["digest"] == client["digest"]
    assert client["sent_early"] <= 8 << 20


def test_one_sided_writes_land_until_they_are_revoked(rig: Rig) -> None:
    server = serve(rig, "write_server")
    client = ask(rig, "write_client").result()
    result = server.result()
    assert (result["imm"], result["size"]) == (77, 0)
    assert result["digest"] == client["digest"]
    assert client["error"] == "RemoteAccessError"


def test_nothing_at_all_is_sent_and_written_like_anything_else(rig: Rig) -> None:
    """Case C50: empty messages, writes and regions, with and without an immediate."""
    server = serve(rig, "empty_server")
    assert ask(rig, "empty_client").result() == {"sizes": [0, 9]}
    assert server.result() == {"got": [[0, None], [0, 7], [0, 8], [0, 9], [0, 0]]}


@pytest.mark.slow
def test_a_message_of_more_than_four_gib_arrives_whole(rig: Rig) -> None:
    """Case C51, in little memory: the buffers of both sides show a small file again and again."""
    server = serve(rig, "huge_server")
    ask(rig, "huge_client").result(5 * LIMIT)
    assert server.result() == {"size": (1 << 32) + 5, "right": True, "behind": "behind"}


def test_a_program_that_ends_without_closing_ends_and_its_peer_is_told(rig: Rig) -> None:
    """Cases D72 and D76: no crash and no hang at exit."""
    server = serve(rig, "wait_server")
    assert ask(rig, "leave_client").result() == {"left": True}
    result = server.result()
    assert (result["count"], result["reason"]) == (1, "peer crashed")
    assert result["seconds"] < mrc.Config().dead_after / 2


def test_an_immediate_says_that_all_bytes_are_in_place(rig: Rig) -> None:
    """Case C53: over planes of unlike delays."""
    for plane, rate in zip(rig.planes, (400, 200, 100, 50), strict=True):
        plane.rate(rate)
    server = serve(rig, "notify_server")
    shares = ask(rig, "notify_client").result()["shares"]
    assert min(shares.values()) > 0
    assert server.result() == {"early": 0}


def test_what_a_cancelled_write_left_is_whole_and_nothing_of_it_comes_late(rig: Rig) -> None:
    """Case C55: over planes of unlike delays that lose packets, its source being used again."""
    for plane, rate in zip(rig.planes, (400, 200, 100, 50), strict=True):
        plane.rate(rate)
        plane.loss(2)
    server = serve(rig, "overwrite_server")
    client = ask(rig, "overwrite_client", "post_window=65536").result()
    result = server.result()
    assert result["torn"] == 0
    assert 0 < client["finished"] < result["landed"] < OVERWRITES


def test_a_region_that_is_revoked_under_way_gets_no_byte_more_and_the_writer_is_told(
    rig: Rig,
) -> None:
    for plane, rate in zip(rig.planes, (400, 200, 100, 50), strict=True):
        plane.rate(rate)
    server = serve(rig, "revoke_server")
    client = ask(rig, "revoke_client").result()
    reasons = ["remote access refused"]
    assert server.result() == {"written": REVOCATIONS, "changed": 0, "reasons": reasons}
    assert client["first"] == ["RemoteAccessError"]
    # Of those behind it, some may not have begun when the queue pair broke.
    assert set(client["reasons"]) <= set(reasons)


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_use_after_fork_fails_in_the_child_and_spares_the_parent(rig: Rig, way: str) -> None:
    """Case D74; what the child makes for itself works."""
    server = serve(rig, "fork_server")
    assert ask(rig, "fork_client", way).result() == {"child": 42}
    assert server.result() == {"got": [["parent"], ["child"]]}
