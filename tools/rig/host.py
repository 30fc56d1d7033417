# SPDX-License-Identifier: Apache-2.0
"""A host of the rig: a network namespace, its addresses, and the processes that run in it."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.rig import shell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counters:
    """What an interface has carried since it was made; a GSO frame is one packet."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int


class Host:
    """One host, made by `Rig`.

    Attributes:
        name: Its network namespace, as `ip netns` lists it.
        label: What the rig calls it: "a".
        number: 1 for the first host; the last part of its addresses.
        addresses: For each plane its address with the prefix's length.
    """

    def __init__(self, name: str, label: str, *, number: int, addresses: Sequence[str]) -> None:
        self.name = name
        self.label = label
        self.number = number
        self.addresses = list(addresses)
        self._processes: list[subprocess.Popen[Any]] = []

    @property
    def netns_path(self) -> Path:
        """The namespace as a file, for setns() and for pyroute2."""
        return shell.NAMESPACES / self.name

    def interface(self, plane: int) -> str:
        """The name of the plane's interface, the same in every host: "p0"."""
        if not 0 <= plane < len(self.addresses):
            raise IndexError(f"the rig has no plane {plane}")
        return f"p{plane}"

    def address(self, plane: int) -> str:
        """The host's address on a plane; a link-local one with its zone: "fe80::1%p0"."""
        interface = self.interface(plane)
        address = self.addresses[plane].split("/")[0]
        return f"{address}%{interface}" if address.startswith("fe80:") else address

    def command(self, args: Sequence[str]) -> list[str]:
        """The command that runs `args` in this host: `ip netns exec NAME ...`."""
        return ["ip", "netns", "exec", self.name, *args]

    def popen(self, args: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in the host; the rig kills its process group when it closes.

        `ip netns exec` becomes the program, so `.pid` is the program's own, and a program that
        does not exist ends with code 255 or 1 instead of an exception.

        Args:
            args: The program and its arguments.
            options: As for `subprocess.Popen`; text and a session of its own are the defaults.
        """
        options.setdefault("start_new_session", True)
        options.setdefault("text", True)
        process: subprocess.Popen[Any] = subprocess.Popen(self.command(args), **options)
        self._processes.append(process)
        return process

    def run(
        self,
        args: Sequence[str],
        *,
        timeout: float = 30.0,
        check: bool = True,
        input: str | bytes | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a program in the host to its end, both outputs captured unless told otherwise.

        Args:
            args: The program and its arguments.
            timeout: Seconds after which its whole process group is killed.
            check: Whether a non-zero code is an error.
            input: What it reads from stdin.
            options: As for `popen`.

        Raises:
            subprocess.TimeoutExpired: It took longer than `timeout`.
            shell.RigError: It ended with another code than 0, and `check` is set.
        """
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
        process = self.popen(args, **options)
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        finally:
            _end(process)
            self._processes.remove(process)
        if check and process.returncode != 0:
            said = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr
            raise shell.RigError(
                " ".join(self.command(args)), f"ended with code {process.returncode}: {said or ''}"
            )
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Opens a socket that belongs to the host, for use anywhere in this process.

        Raises:
            OSError: The kernel refused.
        """
        return shell.inside(self.name, lambda: socket.socket(family, kind, protocol))

    def counters(self) -> dict[int, Counters]:
        """The counters of every plane whose interface exists (`ip -s link`)."""
        text = shell.run(["ip", "-n", self.name, "-s", "-j", "link", "show"])
        links = {link["ifname"]: link["stats64"] for link in json.loads(text)}
        return {
            plane: Counters(
                rx_bytes=links[name]["rx"]["bytes"],
                tx_bytes=links[name]["tx"]["bytes"],
                rx_packets=links[name]["rx"]["packets"],
                tx_packets=links[name]["tx"]["packets"],
            )
            for plane in range(len(self.addresses))
            if (name := self.interface(plane)) in links
        }

    def groups(self) -> set[tuple[str, str]]:
        """The IPv6 multicast groups that its interfaces have joined (`ip maddress`)."""
        text = shell.run(["ip", "-n", self.name, "-6", "-j", "maddress", "show"])
        return {
            (interface["ifname"], group["address"])
            for interface in json.loads(text)
            for group in interface["maddr"]
        }

    def solicited_group(self, plane: int) -> tuple[str, str] | None:
        """The group it must have joined to be found on a plane (RFC 4291, 2.7.1); IPv4 has none."""
        address = ipaddress.ip_interface(self.addresses[plane])
        if address.version == 4:
            return None
        group = int(ipaddress.IPv6Address("ff02::1:ff00:0")) | int(address.ip) & 0xFFFFFF
        return (self.interface(plane), str(ipaddress.IPv6Address(group)))

    def kill(self) -> None:
        """Kills what `popen` started, by process group, and waits for it."""
        while self._processes:
            _end(self._processes.pop())


def _end(process: subprocess.Popen[Any]) -> None:
    """Kills a process that still runs, with its group if it leads one, and closes its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
