# SPDX-License-Identifier: Apache-2.0
"""How the rig speaks to the kernel: iproute2, nftables and ethtool, and sysctls by setns()."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

NAMESPACES = Path("/run/netns")
TIMEOUT = 30.0
"""Seconds after which a tool is taken to hang; all of them answer within milliseconds."""


class RigError(RuntimeError):
    """The kernel or one of its tools refused; the command and its stderr tell.

    Attributes:
        command: What was run, with its input if it read a script.
        stderr: What it said.
    """

    def __init__(self, command: str, stderr: str) -> None:
        super().__init__(f"{command}: {stderr.strip()}")
        self.command = command
        self.stderr = stderr


def run(command: Sequence[str], script: str = "") -> str:
    """Runs a tool to its end, `script` on its stdin, and returns its stdout.

    Raises:
        RigError: It is not installed, failed, or did not end within `TIMEOUT`.
    """
    shown = " ".join(command) + (f" <<< {script.strip()!r}" if script else "")
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RigError(shown, str(error)) from error
    if done.returncode != 0:
        raise RigError(shown, done.stderr)
    return done.stdout


def batch(lines: Iterable[str], *, netns: str | None = None) -> None:
    """Runs lines of iproute2's `ip`, all in one process: the first that fails ends it.

    Raises:
        RigError: A line failed; the lines before it stay done.
    """
    script = "".join(f"{line}\n" for line in lines)
    if script:
        run(["ip", *(["-n", netns] if netns else []), "-batch", "-"], script)


def running(netns: str) -> set[str]:
    """The interfaces that carry frames: up, with a carrier, and the kernel has noticed it."""
    links = json.loads(run(["ip", "-n", netns, "-j", "link", "show"]))
    return {link["ifname"] for link in links if link["operstate"] == "UP"}


def _enter(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))


def inside(netns: str, function: Callable[[], Result]) -> Result:
    """Calls a function in a namespace, from a thread that enters it and ends.

    Raises:
        Exception: Whatever the function raised; FileNotFoundError without such a namespace.
    """
    outcome: Future[Result] = Future()

    def call() -> None:
        try:
            _enter(NAMESPACES / netns)
            outcome.set_result(function())
        except BaseException as error:  # it belongs to the caller's thread
            outcome.set_exception(error)

    thread = threading.Thread(target=call, name=f"in {netns}")
    thread.start()
    thread.join()
    return outcome.result()


def set_sysctls(netns: str, values: Mapping[str, int]) -> None:
    """Writes sysctls (`net/ipv6/...`) in a namespace.

    Raises:
        RigError: The namespace or a sysctl does not exist, or a value was refused.
    """

    def write() -> None:
        for key, value in values.items():
            Path("/proc/sys", key).write_text(f"{value}\n")

    try:
        inside(netns, write)
    except OSError as error:
        raise RigError(f"sysctl in {netns}", str(error)) from error
