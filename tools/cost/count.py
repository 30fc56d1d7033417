# SPDX-License-Identifier: Apache-2.0
"""Counts the core's instructions with callgrind.

The C library's are left out: it has other routines for other processors, and what the core asks of
it is to copy and clear. So are payload copies and ICRCs, by the core's own `headers_only`.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CSRC: Final = ROOT / "csrc"
TRANSFER: Final = Path(__file__).with_name("transfer.c")

DRIVERS: Final = {"engine", "engine_calls", "netlink_watch", "plane_socket"}
"""Files of csrc/ that are no part of the core."""

CFLAGS: Final = ["-std=c11", "-O2", "-g", "-ffp-contract=off"]
PACKETS: Final = 6_400
LIMIT: Final = 120
"""Seconds after which a run has failed."""

SHARES: Final = {
    "sent": ("share_post", "share_send", "share_complete"),
    "received": ("share_receive", "share_answer"),
    "acknowledged": ("share_sack",),
}
"""The functions of transfer.c that make each share: a data packet sent from the call that posts it
to its completion, one received with the SACKs it causes, and SACKs taken in."""

TOGGLE: Final = "share_*"


class CountError(Exception):
    """Nothing could be counted: no valgrind, no compiler, or a run that failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """What is carried.

    Attributes:
        size: Bytes of a message; 4096 of them are a packet.
        burst: Most packets of a frame.
    """

    size: int
    burst: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a share of the work cost.

    Attributes:
        packets: Data packets sent, received, or newly acknowledged.
        sacks: SACKs made or taken in; 0 for what is sent.
        functions: Instructions by (file, function) of the source, also where it was inlined.
        library: Instructions by function of the C library; not in `total`.
    """

    packets: int
    sacks: int
    functions: Counter[tuple[str, str]]
    library: Counter[str]

    @property
    def total(self) -> int:
        """Instructions of the core."""
        return self.functions.total()

    @property
    def each(self) -> float:
        """Instructions a packet."""
        return self.total / self.packets


def is_available() -> bool:
    """Whether there is a valgrind, and a gcc."""
    return shutil.which("valgrind") is not None and shutil.which("gcc") is not None


def _run(*command: str | Path) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=LIMIT
        )
    except subprocess.CalledProcessError as error:
        raise CountError(f"{command[0]} failed:\n{error.stderr}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CountError(f"{command[0]}: {error}") from error
    return done.stdout


def build(folder: Path) -> Path:
    """Compiles the core with transfer.c into `folder`; returns the program.

    Raises:
        CountError: It does not compile.
    """
    core = [path for path in sorted(CSRC.glob("*.c")) if path.stem not in DRIVERS]
    program = folder / "transfer"
    _run("gcc", *CFLAGS, f"-I{CSRC}", TRANSFER, *core, "-o", program)
    return program


@cache
def _functions(path: Path) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of every function of a C file, by the tree's own style."""
    found = []
    start, name = 0, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if opening := re.match(r"(?:\w[\w *]*?[ *])(\w+)\(", line):
            start, name = number, opening.group(1)
        if name and (line == "}" or re.search(r"\{.*\}$", line)):
            found.append((start, number, name))
            name = ""
    return tuple(found)


def _function_at(path: Path, line: int) -> str:
    return next((name for start, end, name in _functions(path) if start <= line <= end), "?")


def _lines(profile: str) -> Iterator[tuple[str, str, str, int, int]]:
    """Object, function, file, line and instructions of each line of a callgrind profile."""
    thing = function = file = ""
    is_call = False
    for text in profile.splitlines():
        key, _, value = text.partition("=")
        if key == "ob":
            thing = value
        elif key in {"fl", "fi", "fe"}:
            file = value
        elif key == "fn":
            function = value
        elif key == "calls":
            is_call = True  # the next line is what the call cost, which is told of the callee
        elif re.fullmatch(r"\d+ \d+", text):
            line, instructions = map(int, text.split())
            if not is_call:
                yield thing, function, file, line, instructions
            is_call = False


def _counts(output: str) -> Counter[str]:
    """What transfer.c reports, between its first report and its last."""
    before, after = (
        Counter({name: int(value) for name, value in map(str.split, part.splitlines())})
        for part in output.strip().split("\n\n")
    )
    after.subtract(before)
    return after


def count(program: Path, traffic: Traffic, share: str) -> Cost:
    """What a share of the work costs with this traffic.

    Raises:
        CountError: There is no valgrind, or the run failed.
    """
    profile = program.with_suffix(".callgrind")
    output = _run(
        "valgrind",
        "--tool=callgrind",
        "--compress-strings=no",
        "--compress-pos=no",
        "--zero-before=begin",
        *(f"--toggle-collect={function}" for function in SHARES[share]),
        f"--callgrind-out-file={profile}",
        program,
        *(str(each) for each in (traffic.size, traffic.burst, PACKETS)),
    )
    counts = _counts(output)
    if counts["retransmitted"] != 0:
        raise CountError("packets were lost where nothing loses any")
    functions: Counter[tuple[str, str]] = Counter()
    library: Counter[str] = Counter()
    for thing, function, file, line, instructions in _lines(profile.read_text()):
        if thing == str(program):
            path = Path(file)
            where = _function_at(path, line) if path.is_file() else function
            functions[path.name, where] += instructions
        else:
            library[function] += instructions
    sacks = {"sent": "", "received": "sacks_sent", "acknowledged": "sacks_received"}[share]
    return Cost(packets=counts[share], sacks=counts[sacks], functions=functions, library=library)
