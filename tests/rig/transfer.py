# SPDX-License-Identifier: Apache-2.0
"""One message from host to host, sent and checked by the programs of steered.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.rig.host import Host

HERE = Path(__file__).resolve()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent.parent.parent)}
STEERED = str(HERE.with_name("steered.py"))


class Transfer:
    """One message of `size` bytes from host `source` to host `destination`, under way.

    `settings` are words NAME=VALUE for mrc.Config; the value is JSON.
    """

    def __init__(
        self, source: Host, destination: Host, topology: Path | str, size: int, *settings: str
    ) -> None:
        words = [str(topology), destination.address(0), str(size), *settings]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
        listening = destination.popen([sys.executable, STEERED, "server", *words], **streams)
        assert listening.stdout is not None
        if listening.stdout.readline() != '"listening"\n':
            pytest.fail(listening.communicate(timeout=10)[1])
        self._client = source.popen([sys.executable, STEERED, "client", *words], **streams)

    def is_right(self, *, timeout: float = 60) -> bool:
        """Waits for the end; whether every byte arrived in its place."""
        out, err = self._client.communicate(timeout=timeout)
        assert self._client.returncode == 0, err
        return bool(json.loads(out)["right"])
