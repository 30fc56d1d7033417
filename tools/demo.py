# SPDX-License-Identifier: Apache-2.0
"""`make demo`: one file over four planes between two hosts, one plane pulled out on the way.

Two network namespaces, four veth planes of 1 Gb/s between them, mrc-recv in one and mrc-send in
the other as ordinary processes. Plane 2 goes down at one third of the file and up at two thirds.
Ends with 0 if the file arrived whole and the planes did what they should. Needs root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mrc.cli.progress import quantity, table  # noqa: E402
from tools.rig import Host, Rig, RigError  # noqa: E402

RATE_MBIT: Final = 1000
PULLED: Final = 2
LIMIT: Final = 50.0
"""Seconds for the transfer."""

_DIRECTORY_OF_COMMANDS: Final = {
    name: f"import sys; from mrc.cli.{name[4:]} import main; sys.exit(main())"
    for name in ("mrc-send", "mrc-recv")
}


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def random_file(path: Path, size: int) -> str:
    """Writes random bytes; returns their SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        left = size
        while left:
            block = os.urandom(min(left, 16 << 20))
            digest.update(block)
            file.write(block)
            left -= len(block)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def command(host: Host, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Starts one of the commands in a host, with the very code of this tree."""
    say(f"  host {host.label} $ {' '.join(words)}")
    program = [sys.executable, "-c", _DIRECTORY_OF_COMMANDS[words[0]], *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return host.popen(program, env=environment, stdout=subprocess.PIPE, **options)


def target_of(line: str) -> str:
    """The host that the receiver's line to paste names."""
    match = re.search(r"mrc-send FILE (\S+)$", line)
    if match is None:
        raise RuntimeError(f"mrc-recv said: {line.strip()}")
    return match[1]


def wait_for_receiver(process: subprocess.Popen[str]) -> str:
    """Reads what the receiver says until it waits; returns its line to paste."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "mrc-send" in line and "waiting" in line:
            return line.strip()
    raise RuntimeError("mrc-recv ended: " + "".join(said))


class Show:
    """The transfer as it goes: pulls the plane out, puts it back, draws a line of progress."""

    def __init__(self, rig: Rig, part: Path, size: int) -> None:
        self._rig = rig
        self._part = part
        self._size = size
        self._steps: list[tuple[float, str, Callable[[], None]]] = [
            (1 / 3, "down", lambda: rig.plane(PULLED).down("b")),
            (2 / 3, "up", lambda: rig.plane(PULLED).up("b")),
        ]

    def _arrived(self) -> int:
        try:
            return self._part.stat().st_size
        except FileNotFoundError:
            return 0

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Until the sender ends.

        Raises:
            RuntimeError: It takes too long.
        """
        terminal = sys.stdout.isatty()
        launched = started = time.monotonic()
        while process.poll() is None:
            now = time.monotonic()
            done = self._arrived() / self._size
            if not done:
                started = now  # so that the times are those of the transfer, as in the table
            if self._steps and done >= self._steps[0][0]:
                _, what, act = self._steps.pop(0)
                act()
                say(f"\r{now - started:6.2f} s  {done:4.0%}  plane p{PULLED} goes {what}")
            elif terminal:
                print(f"\r{now - started:6.2f} s  {done:4.0%} ", end="", flush=True)
            if now - launched > LIMIT:
                raise RuntimeError(f"not done after {LIMIT:.0f} s")
            time.sleep(0.01)


def changes(events: Sequence[dict[str, Any]], plane: str) -> str:
    """What happened to a plane, with the times."""
    words = {"plane_lost": "down", "plane_recovered": "up"}
    return ", ".join(
        f"{words[event['event']]} {event['time_s']:.2f} s"
        + (f" ({event['reason']})" if event.get("reason") else "")
        for event in events
        if event["plane"] == plane and event["event"] in words
    )


def report(sent: dict[str, Any]) -> str:
    """The table of the planes, as the sender saw them."""
    head = ("plane", "bytes", "share", "lost", "retransmitted", "state changes")
    rows = [
        (
            name,
            quantity(counts["bytes"]),
            f"{100 * counts['share']:.1f} %",
            f"{counts['lost']:,}",
            f"{counts['retransmitted']:,}",
            changes(sent["path_events"], name) or "-",
        )
        for name, counts in sent["planes"].items()
    ]
    legend = (
        "lost: packets sent on this plane that did not arrive; retransmitted: packets lost on any"
        "\nplane that were sent again on this one. Times are seconds of the transfer."
    )
    return f"{table([head, *rows])}\n{legend}"


def verdict(sent: dict[str, Any]) -> list[str]:
    """What the planes did not do that they should."""
    wrong = []
    name = f"p{PULLED}"
    kinds = [event["event"] for event in sent["path_events"] if event["plane"] == name]
    if "plane_lost" not in kinds:
        wrong.append(f"{name} was not seen to go down")
    elif "plane_recovered" not in kinds[kinds.index("plane_lost") :]:
        wrong.append(f"{name} was not seen to come back")
    wrong.extend(
        f"{plane} carried nothing"
        for plane, counts in sent["planes"].items()
        if not counts["bytes"]
    )
    return wrong


def output(process: subprocess.Popen[str]) -> dict[str, Any]:
    """A command's JSON, once it has ended.

    Raises:
        RuntimeError: It failed.
    """
    out, err = process.communicate(timeout=LIMIT)
    result: dict[str, Any] = json.loads(out)
    if process.returncode or result["error"]:
        raise RuntimeError(f"{result['command']}: {result['error']} {err or ''}")
    return result


def demonstrate(rig: Rig, folder: Path, size: int) -> int:
    """The demo itself; returns the exit code."""
    source, inbox = folder / "random.bin", folder / "inbox"
    inbox.mkdir()
    say(f"{quantity(size)} of random data")
    checksum = random_file(source, size)
    a, b = rig.hosts
    for plane in rig.planes:
        plane.rate(RATE_MBIT)
    say(f"two hosts, {len(rig.planes)} planes of {RATE_MBIT / 1000:g} Gb/s between them")
    receiver = command(b, ["mrc-recv", "--once", "--json", str(inbox)], stderr=subprocess.PIPE)
    target = target_of(wait_for_receiver(receiver))
    sender = command(a, ["mrc-send", "--json", str(source), target], stderr=subprocess.PIPE)
    show = Show(rig, inbox / (source.name + ".mrc-part"), size)
    show.watch(sender)
    sent, received = output(sender), output(receiver)
    same = sha256_of(inbox / source.name) == checksum
    seconds, gbps = sent["seconds"], sent["gbps"]
    say(f"\r{quantity(received['bytes'])} in {seconds:.1f} s, {gbps:.2f} Gb/s\n\n{report(sent)}\n")
    say(f"SHA-256 {checksum[:16]}...: {'equal' if same else 'DIFFERS'}")
    wrong = verdict(sent) + ([] if same else ["the file is another"])
    for line in wrong:
        say(f"failed: {line}")
    return 1 if wrong else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Runs the demo; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the file (default 1024)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("the demo makes network namespaces: run it as root", file=sys.stderr)
        return 77
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="mrc-demo-") as folder, Rig(planes=4) as rig:
            return demonstrate(rig, Path(folder), arguments.mib << 20)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is removed", file=sys.stderr)
        return 130
    except (RuntimeError, RigError, subprocess.TimeoutExpired) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
