# SPDX-License-Identifier: Apache-2.0
"""The process of a fabric: `python -m tools.fabric TOPOLOGY SOCKET [SETTING=VALUE...]`.

It joins the interfaces `p<plane>-<host>` of its network namespace, whose other ends have the link
addresses of `tools.rig.names.mac`, prints "ready", and obeys JSON lines on the Unix socket until it
is killed: {"do": "status"} and the other `_do_...` of `Control`. Each line is answered by one line:
{"error": "..."} if it could not be obeyed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import sys
from typing import Any

from mrc.errors import ConfigError
from mrc.topology_file import load
from tools.fabric._fabric import ffi, lib
from tools.fabric.network import RULES, Network
from tools.fabric.settings import Settings

ENTRANCE = 2**32 - 1
MS = 1_000_000
DROPS = (
    *("data_full", "control_full", "link_down", "silent", "rebooting"),
    *("no_route", "hop_limit", "malformed", "loss"),
)
RULE = (
    *("ev_mask", "ev_value", "loss", "loss_run", "corrupt", "duplicate", "reorder"),
    *("reorder_delay", "jitter"),
)
LINE_BYTES = 65536


def _integer(order: dict[str, Any], key: str, low: int, high: int) -> int:
    value = order.pop(key)
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{key} is {value!r}, not a number within {low}..{high}")
    return value


class Control:
    """Obeys orders; each `_do_<order>` takes the order's members out of it."""

    def __init__(self, network: Network, io: Any, *, realtime: bool) -> None:
        self._network = network
        self._io = io
        self._fabric = lib.packet_io_fabric(io)
        self._realtime = realtime

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one line; an order that is wrong in any way has changed nothing."""
        try:
            order = json.loads(line)
            if not isinstance(order, dict):
                raise ValueError("an order is an object")
            name = order.pop("do")
            method = getattr(self, f"_do_{name}", None)
            if method is None:
                raise ValueError(f"there is no order {name!r}")
            result: dict[str, Any] = method(order)
        except KeyError as error:
            return {"error": f"the order lacks {error.args[0]!r}, or there is no such thing"}
        except (ValueError, TypeError) as error:
            return {"error": str(error)}
        return result

    def _now(self) -> int:
        return int(lib.packet_io_now(self._io))

    def _port(self, order: dict[str, Any]) -> int:
        key = (order.pop("plane"), order.pop("node"), order.pop("next"))
        if key not in self._network.ports:
            raise ValueError(f"plane {key[0]!r} has no link from {key[1]!r} to {key[2]!r}")
        return self._network.ports[key]

    def _switch(self, order: dict[str, Any]) -> int:
        key = (order.pop("plane"), order.pop("node"))
        hosts = {host for _, host, _ in self._network.host_ports}
        if key not in self._network.nodes or key[1] in hosts:
            raise ValueError(f"plane {key[0]!r} has no switch {key[1]!r}")
        return self._network.nodes[key]

    def _do_link(self, order: dict[str, Any]) -> dict[str, Any]:
        lib.fabric_link_set(self._fabric, self._port(order), bool(order["up"]), self._now())
        return {}

    def _do_flap(self, order: dict[str, Any]) -> dict[str, Any]:
        """Down for `down_ms` of every `period_ms`; period 0 ends it."""
        period = _integer(order, "period_ms", 0, 10**6)
        down = _integer(order, "down_ms", 0, 10**6)
        if period and not 0 < down < period:
            raise ValueError("a link is down for a part of the period")
        port = self._port(order)
        lib.fabric_link_flap(self._fabric, port, period * MS, down * MS, self._now())
        return {}

    def _do_silence(self, order: dict[str, Any]) -> dict[str, Any]:
        node = self._switch(order)
        lib.fabric_node_silence(self._fabric, node, bool(order["on"]), self._now())
        return {}

    def _do_reboot(self, order: dict[str, Any]) -> dict[str, Any]:
        down = _integer(order, "down_ms", 1, 10**6)
        lib.fabric_node_reboot(self._fabric, self._switch(order), down * MS, self._now())
        return {}

    def _do_rule(self, order: dict[str, Any]) -> dict[str, Any]:
        """A rule (struct fabric_rule) in a slot: at a port, or at the entrance without a plane."""
        slot = _integer(order, "slot", 0, RULES - 1)
        rule = ffi.new("struct fabric_rule *")
        rule.port = self._port(order) if "plane" in order else ENTRANCE
        for key in list(order):
            if key not in RULE:
                raise ValueError(f"a rule has no {key!r}")
            setattr(rule, key, _integer(order, key, 0, 2**32 - 1))
        lib.fabric_rule_set(self._fabric, slot, rule, self._now())
        return {}

    def _do_counters(self, order: dict[str, Any]) -> dict[str, Any]:
        """Of every port that has seen a packet."""
        rows = []
        for (plane, node, next_), number in self._network.ports.items():
            counters = lib.fabric_counters(self._fabric, number)
            row = {
                field: int(getattr(counters, field))
                for field, _ in ffi.typeof("struct fabric_counters").fields
                if field != "dropped"
            } | dict(zip(DROPS, map(int, counters.dropped), strict=True))
            if any(row.values()):
                rows.append({"plane": plane, "node": node, "next": next_, **row})
        return {"ports": rows}

    def _do_status(self, order: dict[str, Any]) -> dict[str, Any]:
        counters = lib.packet_io_counters(self._io)
        down = [
            {"plane": plane, "node": node, "next": next_}
            for (plane, node, next_), number in self._network.ports.items()
            if not lib.fabric_link_is_up(self._fabric, number)
        ]
        return {
            "now_ns": self._now(),
            "realtime": self._realtime,
            "packets": int(lib.fabric_packets(self._fabric)),
            "too_long": int(counters.too_long),
            "not_sent": int(counters.not_sent),
            "out_of_packets": int(counters.out_of_packets),
            "down": down,
        }


class Orders:
    """The control socket: its listener and who is connected, behind one pollable descriptor."""

    def __init__(self, path: str, control: Control) -> None:
        self._control = control
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._clients: dict[int, tuple[socket.socket, bytes]] = {}

    def fileno(self) -> int:
        """Readable when `serve` has something to do."""
        return self._poll.fileno()

    def serve(self) -> None:
        """Does what is ready, without waiting."""
        for descriptor, _ in self._poll.poll(0):
            if descriptor == self._listener.fileno():
                client, _ = self._listener.accept()
                client.settimeout(1.0)  # a client that does not read must not stop the packets
                self._clients[client.fileno()] = (client, b"")
                self._poll.register(client, select.EPOLLIN)
            else:
                self._serve_client(descriptor)

    def _serve_client(self, descriptor: int) -> None:
        client, rest = self._clients[descriptor]
        try:
            got = client.recv(LINE_BYTES)
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                client.sendall(json.dumps(self._control.answer(line)).encode() + b"\n")
        except OSError:
            got = b""
        if not got or len(rest) > LINE_BYTES:
            self._poll.unregister(client)
            client.close()
            del self._clients[descriptor]
        else:
            self._clients[descriptor] = (client, rest)


def settings(words: list[str]) -> Settings:
    """Settings from SETTING=VALUE, the value as in JSON.

    Raises:
        ValueError: No such setting, or its value makes no sense.
    """
    known = {field.name for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            raise ValueError(f"there is no setting {key!r}; there are {', '.join(sorted(known))}")
        values[key] = json.loads(value)
    return Settings(**values)


def real_time() -> bool:
    """Asks to be served before others: whatever was due during a pause happens late."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        return False
    return True


def main(words: list[str]) -> int:
    """Runs a fabric until it is killed; 2 if its configuration is wrong."""
    if len(words) < 2:
        sys.stderr.write("python -m tools.fabric TOPOLOGY SOCKET [SETTING=VALUE...]\n")
        return 2
    try:
        network = Network(load(words[0]), settings(words[2:]))
    except (ConfigError, OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    io = lib.packet_io_new(network.config, len(network.host_ports))
    if io == ffi.NULL:
        sys.stderr.write("there is no memory for the fabric's packets\n")
        return 1
    for port in network.host_ports:
        interface = f"p{port[0]}-{port[1]}"
        code = lib.packet_io_add(io, interface.encode(), network.ports[port])
        if code < 0:
            sys.stderr.write(f"{interface}: {os.strerror(-code)}\n")
            return 1
    orders = Orders(words[1], Control(network, io, realtime=real_time()))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while (code := lib.packet_io_run(io, orders.fileno())) == 0:
        orders.serve()
    sys.stderr.write(f"poll: {os.strerror(-code)}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
