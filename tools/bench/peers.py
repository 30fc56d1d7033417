# SPDX-License-Identifier: Apache-2.0
"""Goodput beside what others offer between the same two hosts, all taking turns.

mrc and multipath TCP have four planes, the others one. A peer whose programs are not installed is
skipped, with a word. Those of libfabric answer each message before the next, as `ping-pong` says.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tools.bench.lab import BenchError, Program, iperf, iperf_server, perf, perf_server
from tools.bench.report import Options, Row, median, say
from tools.rig import Rig

MTU = 4200
PLANES = 4
MESSAGE = 1 << 20
START = 0.5
"""Seconds that a server gets which does not say when it is ready."""

FABRIC_RATES = {"tcp": ("msg", 400), "udp;ofi_rxd": ("rdm", 60)}
"""Of the providers: the kind of endpoint, and messages a second, about, that a run asks for."""
UCX_RATE = 2000


def _mrc(rig: Rig, seconds: float) -> float:
    return float(perf(rig, seconds, "--size", "4M")["goodput_gbps"])


def _tcp(rig: Rig, seconds: float) -> float:
    return float(iperf(rig, seconds)["goodput_gbps"])


def _cubic(rig: Rig, seconds: float) -> float:
    return float(iperf(rig, seconds, "-C", "cubic")["goodput_gbps"])


@contextmanager
def _all_subflows(rig: Rig) -> Iterator[None]:
    """The second host tells its addresses on the other planes, and the first joins by each."""
    a, b = rig.hosts[:2]
    limits = ["ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8"]
    for host in (a, b):
        host.run(limits)
    for plane in range(1, PLANES):
        b.run(["ip", "mptcp", "endpoint", "add", b.address(plane), "signal"])
    yield
    b.run(["ip", "mptcp", "endpoint", "flush"])


def _mptcp(rig: Rig, seconds: float) -> float:
    a, b = rig.hosts[:2]
    family = int(socket.AF_INET)
    with _all_subflows(rig):
        sink = Program(b, "bulk.sink", "-", family=family)
        sink.read()
        source = Program(a, "bulk.source", b.address(0), family=family, seconds=seconds)
        found = float(sink.read()["goodput_gbps"])
        source.stop()
        sink.stop()
    return found


@contextmanager
def _server(rig: Rig, command: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    """A server in the second host that does not say when it is ready."""
    server = rig.hosts[1].popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        time.sleep(START)
        yield
    finally:
        server.kill()
        server.wait()


def _fabric(provider: str) -> Callable[[Rig, float], float]:
    def run(rig: Rig, seconds: float) -> float:
        kind, rate = FABRIC_RATES[provider]
        count = str(max(1, round(rate * seconds)))
        command = ["fi_pingpong", "-p", provider, "-e", kind, "-I", count, "-S", str(MESSAGE)]
        with _server(rig, command, dict(os.environ)):
            done = rig.hosts[0].run([*command, rig.hosts[1].address(0)], timeout=60)
        lines = [line.split() for line in done.stdout.splitlines() if "=" in line]
        if not lines:
            raise BenchError(f"fi_pingpong said: {done.stdout}")
        return float(lines[-1][5]) * 8e-3  # MB/sec

    return run


def _ucx(rig: Rig, seconds: float) -> float:
    environment = {
        **os.environ,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": rig.hosts[1].interface(0),
    }
    test = ["-t", "tag_bw", "-s", str(MESSAGE), "-n", str(round(UCX_RATE * seconds)), "-f"]
    with _server(rig, ["ucx_perftest"], environment):
        command = ["ucx_perftest", rig.hosts[1].address(0), *test, "-w", "50"]
        done = rig.hosts[0].run(command, timeout=60, env=environment)
    last = done.stdout.split()
    if len(last) < 4:
        raise BenchError(f"ucx_perftest said: {done.stdout}")
    return float(last[-4]) * (1 << 20) * 8e-9  # MB/s, of 2^20 bytes


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Something that carries bytes from one host to the other.

    Attributes:
        run: Does so for about so many seconds, and returns Gb/s of payload that arrived.
        needs: The program without which it cannot; "" if none.
        at_least: What part of it mrc is to reach, at least, if that is said.
    """

    run: Callable[[Rig, float], float]
    needs: str = ""
    at_least: float | None = None


MRC = "mrc, 4 MiB messages"
PEERS = {
    MRC: Peer(run=_mrc),
    "TCP": Peer(run=_tcp, needs="iperf3", at_least=1.3),
    "TCP cubic": Peer(run=_cubic, needs="iperf3", at_least=0.8),
    "multipath TCP": Peer(run=_mptcp, at_least=1.3),
    "libfabric tcp, ping-pong of 1 MiB": Peer(run=_fabric("tcp"), needs="fi_pingpong"),
    "libfabric udp;ofi_rxd, ping-pong of 1 MiB": Peer(
        run=_fabric("udp;ofi_rxd"), needs="fi_pingpong"
    ),
    "UCX tcp, messages of 1 MiB": Peer(run=_ucx, needs="ucx_perftest"),
}


def measure(options: Options) -> list[Row]:
    """Runs it."""
    there = {}
    for name, peer in PEERS.items():
        if not peer.needs or shutil.which(peer.needs):
            there[name] = peer
        else:
            say(f"peers: {name} skipped, {peer.needs} is not installed")
    found: dict[str, list[float]] = {name: [] for name in there}
    seconds = options.seconds(2, 1)
    with ExitStack() as stack:
        rig = stack.enter_context(Rig(planes=PLANES, mtu=MTU, ip=4, direct=True))
        stack.enter_context(perf_server(rig))
        if "TCP" in there:
            stack.enter_context(iperf_server(rig))
        for trial in range(options.count(5, 1)):
            for name, peer in there.items():
                found[name].append(peer.run(rig, seconds))
            rates = (f"{name} {rates[-1]:.1f}" for name, rates in found.items())
            say(f"peers, trial {trial}: {'; '.join(rates)} Gb/s")
    return [*_rates(found), *_ratios(found)]


def _rates(found: dict[str, list[float]]) -> Iterator[Row]:
    for name, rates in found.items():
        yield Row(
            name=name, key="goodput_gbps", measured=median(rates), spread=(min(rates), max(rates))
        )


def _ratios(found: dict[str, list[float]]) -> Iterator[Row]:
    for name, rates in found.items():
        if name != MRC:
            ratios = [ours / other for ours, other in zip(found[MRC], rates, strict=True)]
            yield Row(
                name=f"mrc to {name}",
                key="goodput_ratio",
                measured=median(ratios),
                spread=(min(ratios), max(ratios)),
                at_least=PEERS[name].at_least,
            )
