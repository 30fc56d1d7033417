# SPDX-License-Identifier: Apache-2.0
"""Scenes from public bug reports: what the host itself does to a program that talks.

Its kernel refuses to send, its firewall or one on the way rejects, it grants little. Each docstring
names its case; as in test_cases.py every message must arrive once, whole and in order.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from native.build import HERE
from rig.talker import MIB, connecting, listening, lost, pair, settle_up

from tools.rig import Rig, shell

pytestmark = pytest.mark.rig

QUICK = {"max_inflight": MIB, "revive_spread": 0.01}
"""A plane that comes back is trusted soon, also after many outages."""


def nft(namespace: str, script: str) -> None:
    shell.run(["ip", "netns", "exec", namespace, "nft", "-f", "-"], script)


# What the kernel refuses.


@dataclass(frozen=True)
class Refuser:
    """What makes a program's kernel refuse to send, as its `environment` (native/refuse.c)."""

    environment: dict[str, str]
    orders: mmap.mmap

    def refuse(self, error: str, index: int = 0) -> None:
        """Every packet on an interface, or (0) on each, meets this errno from now on."""
        self.orders[:] = struct.pack("=ii", index, getattr(errno, error))

    def stop(self) -> None:
        self.orders[:] = bytes(8)


@pytest.fixture
def refuser(tmp_path: Path) -> Iterator[Refuser]:
    library = tmp_path / "refuse.so"
    source = str(HERE / "refuse.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    path = tmp_path / "orders"
    path.write_bytes(bytes(8))
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as orders:
        yield Refuser({"LD_PRELOAD": preload, "MRC_REFUSE": str(path)}, orders)


REFUSALS = ("EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EPERM", "ENOBUFS", "EINVAL")


def test_a_plane_on_which_the_kernel_refuses_to_send_is_left_and_comes_back(
    rig: Rig, refuser: Refuser
) -> None:
    """Case A11: whatever the error, the connection lives; it is counted and named per plane."""
    client, server = pair(rig, config=QUICK, environment=refuser.environment)
    index = shell.inside(rig.hosts[0].name, lambda: socket.if_nametoindex("p0"))
    for name in REFUSALS:
        before = client.until_state("p0", "up")["planes"]["p0"]["send_errors"]
        refuser.refuse(name, index)
        client.until_state("p0", "out")
        server.until_received(50)
        look = client.look()
        assert look["planes"]["p0"]["send_errors"] > before
        assert look["planes"]["p0"]["send_error"] == name
        refuser.stop()
        client.until_share("p0", 0.2)
    assert lost(client, "p0") == ["silent"] * len(REFUSALS)
    plane = client.look()["planes"]["p0"]
    assert (plane["bursts"], plane["up"]) == (True, True)
    settle_up(client, server)


@pytest.mark.parametrize("error", ["ENOBUFS", "EPERM"])
def test_a_kernel_that_refuses_everything_for_a_while_costs_that_while_and_little_else(
    rig: Rig, refuser: Refuser, error: str
) -> None:
    """Case D68: it is loss, tried again with patience; nothing spins, and nobody is told."""
    client, server = pair(rig, config=QUICK, environment=refuser.environment)
    client.until(lambda look: look["sent"] > 20)
    refuser.refuse(error)
    time.sleep(0.2)
    first, start = client.look(), time.monotonic()
    time.sleep(1.0)
    last, seconds = client.look(), time.monotonic() - start
    refuser.stop()
    assert last["cpu_s"] - first["cpu_s"] < 0.2 * seconds
    for name in ("p0", "p1"):
        assert last["planes"][name]["send_errors"] > first["planes"][name]["send_errors"]
        assert last["planes"][name]["send_error"] == error
    server.until_received(50)
    settle_up(client, server)


# What a firewall does.


def test_a_firewall_of_our_own_costs_one_plane_until_it_is_gone(rig: Rig) -> None:
    """Cases A1 and A11: what leaves p0 is dropped, and the kernel says ENOBUFS for it."""
    host = rig.hosts[0].name
    client, server = pair(rig, config=QUICK)
    client.until_state("p0", "up")
    hook = "type filter hook egress device p0 priority 0;"
    nft(host, f"table netdev wall {{\nchain out {{\n{hook}\nudp dport 4791 drop\n}}\n}}")
    sent = client.until_state("p0", "out")["sent"]
    client.until(lambda look: look["sent"] > sent + 50)
    nft(host, "delete table netdev wall")
    client.until_share("p0", 0.2)
    settle_up(client, server)


def test_a_firewall_on_the_way_that_rejects_is_no_worse_than_one_that_drops(rig: Rig) -> None:
    """Case A1: its ICMP messages make nothing permanent."""
    client, server = pair(rig, config=QUICK)
    client.until_state("p0", "up")
    rule = "udp dport 4791 counter reject with icmpv6 type admin-prohibited"
    nft(str(rig.plane(0).hub), f"insert rule netdev p0 a_b {rule}")
    sent = client.until_state("p0", "out")["sent"]
    client.until(lambda look: look["sent"] > sent + 50)
    counters = rig.hosts[0].run(["cat", "/proc/net/snmp6"]).stdout
    unreachable = next(line for line in counters.splitlines() if "Icmp6InDestUnreachs" in line)
    assert int(unreachable.split()[1]) > 0
    rig.plane(0).heal()
    client.until_share("p0", 0.2)
    settle_up(client, server)


# What the host grants.


def test_raw_sockets_alone_and_little_memory_are_enough(rig: Rig) -> None:
    """Cases B40 to B42: no other capability, 64 KiB to lock, and buffers as sysctl limits them."""
    within = ["setpriv", "--bounding-set", "-all,+net_raw", "prlimit", "--memlock=65536:65536"]
    client, server = pair(rig, config={"receive_buffer": 1 << 29, "send_buffer": 1 << 29})
    settle_up(client, server)
    assert client.log.count("the kernel grants") == 0
    server = listening(rig, within=within)
    client = connecting(rig, send=True, within=within, config={"max_inflight": MIB})
    client.ready()
    client.until(lambda look: look["sent"] > 50)
    settle_up(client, server)
    for kind, limit in (("receive", "rmem_max"), ("send", "wmem_max")):
        most = int(Path("/proc/sys/net/core", limit).read_text())
        told = f"the kernel grants {kind} buffers of {most} bytes, not "
        assert client.log.count(told) == 1
        assert f"sysctl -w net.core.{limit}=" in client.log
