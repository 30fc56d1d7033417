# SPDX-License-Identifier: Apache-2.0
"""A process that may not have what an engine needs is told what, and keeps nothing of the attempt.

Each attempt is a process of its own, with one limit a little higher than the one before.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from native.build import is_sanitized

pytestmark = pytest.mark.rig

ATTEMPT = """
import os, resource, sys
from mrc import _native
from mrc.config import Config

def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

kind, extra = getattr(resource, sys.argv[1]), int(sys.argv[2])
pages = int(open("/proc/self/statm").read().split()[0])
used = held()[0] - 1 if kind == resource.RLIMIT_NOFILE else pages * resource.getpagesize()
before = held()
resource.setrlimit(kind, (used + extra, resource.getrlimit(kind)[1]))
engine = None
try:
    engine = _native.Engine(Config())
    engine.add_plane(0, "lo", None)
    print("made")
except (OSError, MemoryError) as error:
    print(error)
if engine is not None:
    engine.close()
resource.setrlimit(kind, (resource.getrlimit(kind)[1],) * 2)
assert held() == before, (held(), before)
"""


def attempts(limit: str, extras: range) -> list[str]:
    """What came of each attempt: `made`, or the error."""
    outcomes = []
    for extra in extras:
        command = [sys.executable, "-c", ATTEMPT, limit, str(extra)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        outcomes.append(done.stdout.strip())
    return outcomes


def test_an_engine_without_descriptors_says_so() -> None:
    outcomes = attempts("RLIMIT_NOFILE", range(1, 13))
    assert outcomes[-1] == "made"
    refused = outcomes[: outcomes.index("made")]
    assert len(refused) > 3
    assert all("Too many open files" in told or "ulimit -n" in told for told in refused)


if not is_sanitized():  # the address sanitizer takes terabytes of addresses

    def test_an_engine_without_memory_or_a_thread_says_so() -> None:
        mib = 1 << 20
        outcomes = attempts("RLIMIT_AS", range(0, 40 * mib, 4 * mib))
        assert outcomes[-1] == "made"
        refused = outcomes[: outcomes.index("made")]
        assert any("not enough memory" in told for told in refused)
        assert any("no thread can be started" in told for told in refused)
