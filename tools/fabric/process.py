# SPDX-License-Identifier: Apache-2.0
"""Starting a fabric in a network namespace, and speaking to it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.fabric.settings import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 10.0
"""Seconds that the process has to begin and to answer in."""


class FabricError(RuntimeError):
    """The fabric could not be started, or has refused an order."""


class Control:
    """A fabric's control socket.

    Orders name a port by plane, node and the next node; chances are in millionths, times of rules
    in ns. Each raises FabricError when the fabric refuses it or is gone.
    """

    def __init__(self, path: Path) -> None:
        """Connects to it.

        Raises:
            FabricError: No fabric listens there.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise FabricError(f"{path}: {error.strerror}") from error
        self._lines = self._socket.makefile("r")

    def order(self, name: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Sends one order (`python -m tools.fabric`) and returns the answer."""
        line = json.dumps({"do": name, **(members or {})})
        try:
            self._socket.sendall(f"{line}\n".encode())
            answer: dict[str, Any] = json.loads(self._lines.readline() or '{"error": "it is gone"}')
        except OSError as error:
            raise FabricError(f"{line}: {error}") from error
        if "error" in answer:
            raise FabricError(f"{line}: {answer['error']}")
        return answer

    def link(self, plane: int, node: str, next_: str, *, up: bool) -> None:
        """Takes a link down or brings it up, in both directions."""
        self.order("link", {"plane": plane, "node": node, "next": next_, "up": up})

    def silence(self, plane: int, node: str, *, on: bool) -> None:
        """Makes a switch forward nothing while its links stay up, or forward again."""
        self.order("silence", {"plane": plane, "node": node, "on": on})

    def reboot(self, plane: int, node: str, *, down_ms: int) -> None:
        """Takes a switch away with its links, for a time."""
        self.order("reboot", {"plane": plane, "node": node, "down_ms": down_ms})

    def rule(
        self, slot: int, values: dict[str, int], *, port: tuple[int, str, str] | None = None
    ) -> None:
        """Puts a rule of `values` (struct fabric_rule) into a slot, 0..63; {} empties it.

        Args:
            slot: Which; several rules apply together.
            values: Chances and times.
            port: Where: (plane, node, next node); None: where packets leave their host, once each.
        """
        where = dict(zip(("plane", "node", "next"), port, strict=True)) if port else {}
        self.order("rule", {"slot": slot, **where, **values})

    def counters(self) -> dict[tuple[int, str, str], dict[str, int]]:
        """The counters of every port that has seen a packet, by (plane, node, next node)."""
        rows = self.order("counters")["ports"]
        return {(row.pop("plane"), row.pop("node"), row.pop("next")): row for row in rows}

    def total(self, counter: str) -> int:
        """The sum of one counter over all ports."""
        return sum(row[counter] for row in self.counters().values())

    def status(self) -> dict[str, Any]:
        """Time, packets inside, links that are down, and what the interfaces refused."""
        return self.order("status")

    def close(self) -> None:
        """Hangs up; again does nothing."""
        self._lines.close()
        self._socket.close()


class Fabric(Control):
    """A fabric that runs from its construction to `close`."""

    def __init__(
        self, netns: str, topology: Path, settings: Settings, *, control: Path | None = None
    ) -> None:
        """Starts it; its interfaces `p<plane>-<host>` exist.

        Args:
            netns: Where those are.
            topology: The file.
            settings: Of its switches.
            control: Where its control socket is to be; None: in a temporary folder. It goes on
                running when this process ends, but for `close`.

        Raises:
            FabricError: It ended at once: topology, settings or interfaces are wrong.
        """
        self._folder = None
        path = control
        if path is None:
            self._folder = tempfile.TemporaryDirectory(prefix="mrc-fabric-")
            path = Path(self._folder.name, "control")
        words = [
            f"{key}={json.dumps(value)}" for key, value in dataclasses.asdict(settings).items()
        ]
        command = [sys.executable, "-m", "tools.fabric", str(topology), str(path), *words]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", netns, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=control is not None,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            said = self._process.communicate()[1]
            self._end()
            raise FabricError(said.strip())
        try:
            super().__init__(path)
        except FabricError:
            self._end()
            raise

    def close(self) -> None:
        """Ends the process; again does nothing."""
        super().close()
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._folder is not None:
            self._folder.cleanup()
