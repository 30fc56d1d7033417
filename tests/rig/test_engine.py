# SPDX-License-Identifier: Apache-2.0
"""Whole engines between two hosts: their rings, their thread, and what befalls their planes."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from datagrams import wait_until
from native.build import load

from tools.rig import Host, Rig, shell

pytestmark = pytest.mark.rig

ffi, lib = load("engine")

KEY = 7
VA = 1 << 40
ROOM = 64


class Side:
    """An engine in a host, with one peer and one queue pair once it is joined."""

    peer: int
    qp: Any

    def __init__(
        self, host: Host, stack: ExitStack, *, planes: int = 1, threaded: bool = True, **core: int
    ) -> None:
        self.host = host
        config = ffi.new("mrc_engine_config *")
        lib.mrc_engine_config_default(config)
        config.threaded = threaded
        config.seed = random.getrandbits(64)
        config.core.incarnation = random.getrandbits(64)
        config.core.qp_prefix = random.randrange(1, 256)
        ring = core.pop("ring", 64)
        config.ring = ring
        for name, value in core.items():
            setattr(config.core, name, value)
        self.incarnation = config.core.incarnation
        self.threaded = threaded
        self.keep: list[Any] = []
        self.seen: list[Any] = []
        error = ffi.new("int *")
        # The thread and its sockets belong to the namespace that they are made in.
        self.it = shell.inside(host.name, lambda: lib.mrc_engine_open(config, error))
        assert self.it != ffi.NULL, os.strerror(error[0])
        self.is_open = True
        stack.callback(self.close)
        for number in range(planes):
            assert shell.inside(host.name, functools.partial(self.add_plane, number)) == 0

    def add_plane(self, number: int) -> int:
        none = ffi.new("mrc_address *")
        interface = self.host.interface(number).encode()
        return int(lib.mrc_engine_add_plane(self.it, number, interface, none))

    def close(self) -> None:
        if self.is_open:
            lib.mrc_engine_close(self.it)
        self.is_open = False

    def plane(self, number: int = 0) -> Any:
        out = ffi.new("mrc_engine_plane *")
        assert lib.mrc_engine_get_plane(self.it, number, out) == 0
        self.keep.append(out)  # what is looked at in it does not keep it
        return out

    # Setting up.

    def add_peer(self, other: Side, planes: int) -> int:
        setup = ffi.new("mrc_peer_setup *")
        setup.incarnation = other.incarnation
        for plane in range(planes):
            setup.addresses[plane] = other.plane(plane).info.address
            setup.remote_planes[plane] = plane
        return int(lib.mrc_engine_peer_add(self.it, setup, setup.addresses))

    def create_qp(self) -> Any:
        local = ffi.new("mrc_qp_attributes *", {"mtu": 1024, "mpr": 8, "max_wimm": 64})
        assert lib.mrc_engine_qp_create(self.it, 0, local) == 0
        return local

    def register(self, size: int) -> memoryview:
        buffer = bytearray(size)
        base = ffi.from_buffer(buffer)
        self.keep.append(base)
        region = ffi.new(
            "mrc_region *", {"base": base, "va": VA, "size": size, "key": KEY, "domain": 0}
        )
        assert lib.mrc_engine_register(self.it, region) == 0
        return memoryview(buffer)

    # Working.

    def submit(self, data: bytes, *, tag: int, immediate: int | None = None, qp: int = 0) -> int:
        buffer = ffi.from_buffer(data)
        self.keep.append(buffer)
        work = ffi.new("mrc_submission *")
        work.type = lib.MRC_SUBMIT_WRITE
        work.write.qp = qp or self.qp.number
        work.write.key = KEY
        work.write.va = VA
        work.write.data = buffer
        work.write.size = len(data)
        work.write.tag = tag
        work.write.has_immediate = immediate is not None
        work.write.immediate = immediate or 0
        return int(lib.mrc_engine_submit(self.it, work))

    def lend(self, receives: int) -> None:
        work = ffi.new("mrc_submission *")
        work.type = lib.MRC_SUBMIT_RECEIVE
        work.receives = receives
        work.write.qp = self.qp.number
        assert lib.mrc_engine_submit(self.it, work) == 0

    def poll(self, *, timeout: float = 0.0) -> list[Any]:
        """The events of now, or of the next `timeout` seconds at most."""
        if not self.threaded:
            lib.mrc_engine_run(self.it, int(timeout * 1e9))
        elif timeout > 0:
            select.select([lib.mrc_engine_fd(self.it)], [], [], timeout)
        events = ffi.new("mrc_event[]", ROOM)
        count = lib.mrc_engine_poll(self.it, events, ROOM)
        lib.mrc_engine_flush(self.it)
        got = [events[index] for index in range(count)]
        self.keep.append(events)
        self.seen += got
        return got

    def of(self, kind: int) -> list[Any]:
        return [event for event in self.seen if event.type == kind]

    def completed(self) -> list[int]:
        return [event.tag for event in self.of(lib.MRC_EVENT_WRITE)]

    def plane_state(self, plane: int = 0) -> int:
        stats = ffi.new("mrc_plane_stats *")
        assert lib.mrc_engine_peer_stats(self.it, self.peer, plane, stats) == 0
        return int(stats.state)


def until(condition: Callable[[], bool], what: str, *sides: Side) -> None:
    """Drives both engines until the condition holds."""

    def holds() -> bool:
        for side in sides:
            side.poll(timeout=0.001)
        return condition()

    wait_until(holds, what)


def join(a: Side, b: Side, *, planes: int = 1) -> None:
    """Makes a and b peers, with a queue pair, and waits until their planes carry data."""
    for one, other in ((a, b), (b, a)):
        one.peer = one.add_peer(other, planes)
        assert one.peer >= 0
        one.qp = one.create_qp()
    for one, other in ((a, b), (b, a)):
        assert lib.mrc_engine_qp_connect(one.it, one.qp.number, one.peer, other.qp) == 0
    until(lambda: are_up(a, b, planes=planes), "planes up", a, b)


def are_up(*sides: Side, planes: int = 1) -> bool:
    return all(
        side.plane_state(plane) == lib.MRC_PLANE_UP for side in sides for plane in range(planes)
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(planes=2, direct=True) as made:
        yield made


# Work.


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("ip", [4, 6, "ll"])
def test_writes_arrive_in_order_with_their_immediates(
    ip: Any, threaded: bool, stack: ExitStack
) -> None:
    with Rig(planes=2, direct=True, ip=ip) as rig:
        a, b = (Side(host, stack, planes=2, threaded=threaded) for host in rig.hosts)
        join(a, b, planes=2)
        memory = b.register(100_000)
        data = random.randbytes(100_000)
        b.lend(20)
        for tag in range(20):
            assert a.submit(data, tag=tag, immediate=tag) == 0
        until(lambda: len(a.completed()) == 20, "twenty completions", a, b)
        assert a.completed() == list(range(20))
        assert {event.status for event in a.of(lib.MRC_EVENT_WRITE)} == {0}
        until(lambda: len(b.of(lib.MRC_EVENT_RECEIVE)) == 20, "twenty immediates", a, b)
        assert [event.immediate for event in b.of(lib.MRC_EVENT_RECEIVE)] == list(range(20))
        assert memory == data
        a.close()
        b.close()


def test_a_refused_write_completes_with_its_status(rig: Rig, stack: ExitStack) -> None:
    a = Side(rig.hosts[0], stack)
    assert a.submit(b"x", tag=5, qp=0x123456) == 0
    until(lambda: a.completed() == [5], "the completion", a)
    assert a.seen[-1].status == lib.MRC_ERROR_NOT_FOUND


def test_writes_beyond_the_slots_of_the_core_wait_and_keep_their_order(
    rig: Rig, stack: ExitStack
) -> None:
    a, b = (Side(host, stack, max_writes=4) for host in rig.hosts)
    join(a, b)
    b.register(3000)
    posted = 0

    def all_done() -> bool:
        nonlocal posted
        while posted < 500 and a.submit(random.randbytes(3000), tag=posted) == 0:
            posted += 1
        return len(a.completed()) == 500

    until(all_done, "500 completions", a, b)
    assert a.completed() == list(range(500))


def test_a_full_ring_of_completions_loses_none(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack, ring=4) for host in rig.hosts)
    join(a, b)
    b.register(10)
    posted = 0
    deadline = time.monotonic() + 10
    while posted < 40 and time.monotonic() < deadline:  # nobody polls meanwhile
        if a.submit(b"0123456789", tag=posted) == 0:
            posted += 1
        else:
            time.sleep(0.001)
    assert posted == 40
    until(lambda: len(a.completed()) == 40, "40 completions", a)
    assert a.completed() == list(range(40))


def test_a_full_ring_of_submissions_says_so(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack, ring=8, max_writes=4) for host in rig.hosts)
    join(a, b)
    b.close()
    results = [a.submit(b"x", tag=tag) for tag in range(20)]
    assert results[:12] == [0] * 12
    assert results[12:] == [lib.MRC_ERROR_FULL] * 8


def cpu_share(seconds: float) -> float:
    """The part of a processor that this process uses while it only sleeps."""
    before = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - before[0]) / (time.monotonic() - before[1])


def test_an_idle_engine_hardly_uses_the_processor(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack, planes=2) for host in rig.hosts)
    join(a, b, planes=2)
    time.sleep(0.1)
    assert cpu_share(1.0) < 0.1


def test_requests_that_wait_for_a_slot_hardly_use_the_processor(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack, max_writes=4) for host in rig.hosts)
    join(a, b)
    b.close()
    for tag in range(20):
        assert a.submit(b"x", tag=tag) == 0
    time.sleep(0.1)
    assert cpu_share(1.0) < 0.3


@pytest.mark.parametrize("ip", [4, 6])
def test_packets_that_the_receiver_s_kernel_merges_are_cut_again_as_they_were(
    ip: Any, stack: ExitStack
) -> None:
    """As with a NIC that has GRO: the sender's kernel cuts bursts, the receiver's makes others."""
    with Rig(planes=1, direct=True, ip=ip) as rig:
        a, b = rig.hosts
        offloads = ["tx-udp-segmentation", "off", "tso", "off"]  # of veths, only then b may merge
        shell.run(a.command(["ethtool", "-K", "p0", *offloads]))
        shell.run(b.command(["ethtool", "-K", "p0", "gro", "on"]))
        sender, receiver = (Side(host, stack) for host in rig.hosts)
        join(sender, receiver)
        memory = receiver.register(1 << 20)
        for tag in range(20):
            crosses(sender, receiver, memory, tag)
        counters = ffi.new("mrc_counters *")
        lib.mrc_engine_counters(receiver.it, counters)
        assert counters.frames_received < counters.packets_received / 2
        assert counters.drop_icrc == 0
        sender.close()
        receiver.close()


# Planes and next hops.


def crosses(a: Side, b: Side, memory: memoryview, tag: int) -> None:
    data = random.randbytes(len(memory))
    assert a.submit(data, tag=tag) == 0
    until(lambda: tag in a.completed(), "the completion", a, b)
    assert memory == data


def test_an_interface_that_comes_later_becomes_the_plane(rig: Rig, stack: ExitStack) -> None:
    rig.plane(0).delete()
    a, b = (Side(host, stack) for host in rig.hosts)
    assert a.plane().index == 0
    rig.plane(0).recreate()
    until(lambda: a.plane().info.address.version == b.plane().info.address.version == 6, "it", a)
    join(a, b)
    crosses(a, b, b.register(5000), 1)


def test_an_interface_made_anew_carries_the_same_queue_pair(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack) for host in rig.hosts)
    join(a, b)
    memory = b.register(5000)
    crosses(a, b, memory, 1)
    rig.plane(0).delete()
    until(lambda: not are_up(a) and not are_up(b), "both planes out", a, b)
    rig.plane(0).recreate()
    until(lambda: are_up(a, b), "both planes up", a, b)
    crosses(a, b, memory, 2)


def test_an_interface_with_another_link_address_is_found_by_the_peer(
    rig: Rig, stack: ExitStack
) -> None:
    """Linux tells nobody: the engine does, by asking for its next hops anew."""
    a, b = (Side(host, stack) for host in rig.hosts)
    join(a, b)
    memory = b.register(5000)
    crosses(a, b, memory, 1)
    shell.batch(["link set p0 address 02:00:00:00:99:99"], netns=b.host.name)
    crosses(a, b, memory, 2)


def test_a_wrong_next_hop_is_found_out_by_the_silence_of_its_plane(
    rig: Rig, stack: ExitStack
) -> None:
    a, b = (Side(host, stack, planes=2) for host in rig.hosts)
    join(a, b, planes=2)
    memory = b.register(50_000)
    address = b.host.address(0)
    shell.batch(
        [
            f"neigh replace {address} lladdr 02:00:00:00:88:88 dev p0 nud permanent",
            f"neigh del {address} dev p0",
        ],
        netns=a.host.name,
    )
    tags = itertools.count()

    def send() -> int:
        crosses(a, b, memory, next(tags))
        return a.plane_state(0)

    wait_until(lambda: send() != lib.MRC_PLANE_UP, "plane 0 out")
    wait_until(lambda: send() == lib.MRC_PLANE_UP, "plane 0 up")


def test_a_peer_that_is_added_again_keeps_its_next_hop(rig: Rig, stack: ExitStack) -> None:
    a, b = (Side(host, stack) for host in rig.hosts)
    join(a, b)
    shell.batch(["neigh flush all"], netns=a.host.name)
    assert a.add_peer(b, 1) == a.peer
    assert a.plane_state() == lib.MRC_PLANE_UP


def test_a_plane_in_use_and_a_bad_name_are_refused(rig: Rig, stack: ExitStack) -> None:
    a = Side(rig.hosts[0], stack)
    none = ffi.new("mrc_address *")
    for number, name in ((0, b"p1"), (lib.MRC_PLANES, b"p1"), (1, b""), (1, b"x" * 16)):
        assert lib.mrc_engine_add_plane(a.it, number, name, none) == lib.MRC_ERROR_ARGUMENT


# Opening and closing.


def test_closing_leaves_neither_a_thread_nor_a_descriptor(rig: Rig) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = count()
    for _ in range(3):
        with ExitStack() as stack:
            a, b = (Side(host, stack, planes=2) for host in rig.hosts)
            join(a, b, planes=2)
            b.register(5000)
            a.submit(bytes(5000), tag=1)
    assert count() == before


def test_a_bad_configuration_is_refused() -> None:
    config = ffi.new("mrc_engine_config *")
    error = ffi.new("int *")
    lib.mrc_engine_config_default(config)
    config.ring = 48
    assert lib.mrc_engine_open(config, error) == ffi.NULL
    assert error[0] == errno.EINVAL


def test_calls_from_many_threads_get_their_turn_while_data_flows(
    rig: Rig, stack: ExitStack
) -> None:
    a, b = (Side(host, stack) for host in rig.hosts)
    join(a, b)
    b.register(100_000)
    stop = threading.Event()
    calls = [0] * 3

    def ask(number: int) -> None:
        while not stop.is_set():
            a.plane_state()
            calls[number] += 1

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for asker in askers:
        asker.start()
    try:
        data = random.randbytes(100_000)
        for tag in range(50):
            assert a.submit(data, tag=tag) == 0
        until(lambda: len(a.completed()) == 50, "50 completions", a, b)
    finally:
        stop.set()
        for asker in askers:
            asker.join()
    assert min(calls) > 0
