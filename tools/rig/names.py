# SPDX-License-Identifier: Apache-2.0
"""The names of the rig's namespaces: who owns one, which are left over, how they are removed.

A rig of a running process is `<prefix>-<pid>-<n>-<label>`: once that process is gone, whatever
became of it, its namespaces are leftovers. A rig that stays is `<prefix>-<label>`.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tools.rig.shell import NAMESPACES, RigError, run

PREFIX = "mrc"
HUB = "hub"
"""The label of the namespace in the middle; no host may have it."""

LABEL = re.compile(r"[a-z][a-z0-9]{0,7}")
"""A host's label; short, because an interface's name has 15 bytes, `p255-` being five."""

SWITCH = re.compile(r"p\d+s\d+")
"""The label of a switch that is a namespace of its own (`switch`); no host may have it."""


def mac(plane: int, host: int) -> str:
    """The link address of a host's interface in one plane; hosts are numbered from 1."""
    return f"02:00:00:00:{plane:02x}:{host:02x}"


def switch(plane: int, number: int) -> str:
    """The label of a switch that is a namespace of its own; switches are numbered from 0."""
    return f"p{plane}s{number}"


_numbers = itertools.count()


def stem(prefix: str) -> str:
    """What the names of this process's next rig begin with."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def check_prefix(prefix: str) -> None:
    """Refuses what namespaces' and folders' names cannot begin with.

    Raises:
        ValueError: It is no word.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", prefix):
        raise ValueError(f"{prefix!r} cannot be the prefix of a rig: take letters and digits")


def check_labels(labels: Sequence[str]) -> None:
    """Refuses what hosts cannot be called.

    Raises:
        ValueError: One is too long or has other characters, or two are the same.
    """
    for label in labels:
        if not LABEL.fullmatch(label) or label == HUB or SWITCH.fullmatch(label):
            raise ValueError(f"{label!r} cannot be the name of a host")
    if len(set(labels)) != len(labels):
        raise ValueError("hosts have different names")


def listed() -> list[str]:
    """The names of all network namespaces of the machine, in order."""
    return sorted(path.name for path in NAMESPACES.glob("*"))


def staying(prefix: str) -> list[str]:
    """The namespaces of the rig that stays, if there is one."""
    whole = re.compile(rf"{re.escape(prefix)}-{LABEL.pattern}")
    return [name for name in listed() if whole.fullmatch(name)]


def owned(prefix: str) -> dict[str, int]:
    """The namespaces of processes' rigs, each with its process id."""
    whole = re.compile(rf"{re.escape(prefix)}-(\d+)-\d+-{LABEL.pattern}")
    return {name: int(found[1]) for name in listed() if (found := whole.fullmatch(name))}


def remove(names: Iterable[str]) -> None:
    """Removes namespaces with all that runs inside; one that is gone already is no error.

    Raises:
        RigError: `ip` refused for another reason.
    """
    for name in names:
        try:
            for pid in map(int, run(["ip", "netns", "pids", name]).split()):
                if pid != os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            run(["ip", "netns", "delete", name])
        except RigError:
            # Another run may have been tidying up at the same time.
            if (NAMESPACES / name).exists():
                raise


def clean(prefix: str = PREFIX) -> list[str]:
    """Removes the rigs whose process is gone, and returns their namespaces.

    Raises:
        RigError: One of them could not be removed.
    """
    leftovers = [name for name, pid in owned(prefix).items() if not Path(f"/proc/{pid}").exists()]
    remove(leftovers)
    return leftovers
