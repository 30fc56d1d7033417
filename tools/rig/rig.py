# SPDX-License-Identifier: Apache-2.0
"""Building and removing the rig."""

from __future__ import annotations

import atexit
import ipaddress
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Literal, Self

from tools.rig import names, shell
from tools.rig.host import Host
from tools.rig.plane import Plane, settle

IPFamily = Literal[4, 6, "ll"]

FIRST_IFINDEX = 100
"""Above what the kernel itself gives to the interfaces of a new namespace."""

HOST_SYSCTLS = {
    f"net/ipv6/conf/{scope}/{key}": 0
    for scope in ("all", "default")
    for key in ("accept_dad", "accept_ra", "autoconf", "router_solicitations")
} | {f"net/ipv4/conf/{scope}/rp_filter": 0 for scope in ("all", "default")}
"""No wait for duplicate addresses, no routers, and an answer may come by another plane."""

HUB_SYSCTLS = {"net/ipv6/conf/default/disable_ipv6": 1}
"""The cable itself says nothing."""

_numbers = itertools.count()
_open: list[Rig] = []


class Rig:
    """Hosts joined by planes, from `start` (or `with`) to `close`.

    However the process ends, the rig is removed: by `with`, at exit, at SIGTERM (which then
    ends the process by SystemExit(143), unless the program handles it), and after a SIGKILL by
    the next rig of that prefix that starts.

    Attributes:
        hosts: In the order of their names.
        planes: In order.
    """

    def __init__(
        self,
        hosts: Sequence[str] = ("a", "b"),
        planes: int = 4,
        *,
        mtu: int = 4200,
        ip: IPFamily = 6,
        prefix: str | None = None,
        keep_address: bool = False,
        direct: bool = False,
        stay: bool = False,
    ) -> None:
        """Says what is to be built.

        Args:
            hosts: Their labels, two to 250: a letter and up to seven more letters or digits.
            planes: How many, 1 to 250.
            mtu: Of the hosts' interfaces, in bytes of an IP packet.
            ip: 6 for fd00:<plane>::<host>/64, 4 for 10.<plane>.0.<host>/24 (planes from 0, hosts
                from 1), "ll" for IPv6 link-local addresses alone.
            prefix: Of the namespaces' names; "mrc" if None.
            keep_address: Whether IPv6 addresses survive a link that goes down
                (sysctl keep_addr_on_down).
            direct: Whether the interfaces of two hosts are one veth pair a plane, without the
                hub: somewhat faster, but nothing can be lost, corrupted or doubled.
            stay: Whether the rig outlives the process, under names without its id.

        Raises:
            ValueError: One of them makes no sense.
        """
        if not 1 <= planes <= 250 or not 2 <= len(hosts) <= 250:
            raise ValueError("a rig has 2 to 250 hosts and 1 to 250 planes")
        for label in hosts:
            if not names.LABEL.fullmatch(label) or label == names.HUB:
                raise ValueError(f"{label!r} cannot be the name of a host")
        if len(set(hosts)) != len(hosts) or (direct and len(hosts) != 2):
            raise ValueError("hosts have different names, and direct planes join two")
        self.prefix = prefix or names.PREFIX
        self._stem = self.prefix if stay else f"{self.prefix}-{os.getpid()}-{next(_numbers)}"
        self._stay = stay
        self._pid = os.getpid()
        self._keep_address = keep_address
        self._hub = None if direct else f"{self._stem}-{names.HUB}"
        self.hosts = tuple(
            Host(
                f"{self._stem}-{label}",
                label,
                number=number,
                addresses=[_address(ip, plane, number) for plane in range(planes)],
            )
            for number, label in enumerate(hosts, 1)
        )
        ids = itertools.count(FIRST_IFINDEX)
        self.planes = tuple(
            Plane(number, self.hosts, hub=self._hub, mtu=mtu, ids=ids) for number in range(planes)
        )

    def plane(self, number: int) -> Plane:
        """A plane by its number, from 0."""
        return self.planes[number]

    def _namespaces(self) -> list[str]:
        return [host.name for host in self.hosts] + ([self._hub] if self._hub else [])

    def start(self) -> None:
        """Removes what killed runs have left, and builds the rig.

        Raises:
            RigError: A tool refused (not root, for example), or a rig of that name stays;
                nothing is left behind.
        """
        names.clean(self.prefix)
        for name in set(names.listed()).intersection(self._namespaces()):
            raise shell.RigError(f"ip netns add {name}", "there is such a rig already")
        if not self._stay:
            _remember(self)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        shell.batch(f"netns add {name}" for name in self._namespaces())
        sysctls = HOST_SYSCTLS | {
            f"net/ipv6/conf/{scope}/keep_addr_on_down": int(self._keep_address)
            for scope in ("all", "default")
        }
        for host in self.hosts:
            shell.set_sysctls(host.name, sysctls)
        if self._hub is not None:
            shell.set_sysctls(self._hub, HUB_SYSCTLS)
        labels = [host.label for host in self.hosts]
        shell.batch(line for plane in self.planes for line in plane.links(labels))
        if self._hub is not None:
            script = "\n".join(plane.hub_rules() for plane in self.planes)
            shell.run(["ip", "netns", "exec", self._hub, "nft", "-f", "-"], script)
            shell.batch((line for p in self.planes for line in p.hub_lines()), netns=self._hub)
        for host in self.hosts:
            lines = [line for plane in self.planes for line in plane.host_lines(host.label)]
            shell.batch(["link set lo up", *lines], netns=host.name)
        settle(self.planes)

    def close(self) -> None:
        """Kills the hosts' processes and removes the namespaces; again does nothing.

        In a fork of the process that made the rig it does nothing either.

        Raises:
            RigError: A namespace could not be removed.
        """
        try:
            if os.getpid() == self._pid:
                for host in self.hosts:
                    host.kill()
                existing = set(names.listed())
                names.remove(name for name in self._namespaces() if name in existing)
        finally:
            _forget(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _address(ip: IPFamily, plane: int, host: int) -> str:
    """A host's address on a plane, with the prefix's length."""
    if ip == 4:
        return f"10.{plane}.0.{host}/24"
    if ip == 6:
        return str(ipaddress.ip_interface(f"fd00:{plane:x}::{host:x}/64"))
    if ip == "ll":  # what the kernel makes of the MAC
        return f"fe80::ff:fe00:{plane << 8 | host:x}/64"
    raise ValueError(f"ip is 4, 6 or 'll', not {ip!r}")


def _remember(rig: Rig) -> None:
    """Notes a rig that is to be closed when the process ends."""
    _open.append(rig)
    if len(_open) > 1:
        return
    atexit.register(_close_all)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _forget(rig: Rig) -> None:
    """Takes back what `_remember` has set, with the last rig."""
    if rig not in _open:
        return
    _open.remove(rig)
    if _open:
        return
    atexit.unregister(_close_all)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _close_all() -> None:
    while _open:
        _open[-1].close()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Lets every `with` and every atexit function of the program do its work."""
    sys.exit(128 + number)
