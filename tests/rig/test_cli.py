# SPDX-License-Identifier: Apache-2.0
"""The commands over real packets: what a person sees when things go well, and when they do not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tools.rig import Host, Rig

pytestmark = pytest.mark.rig

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LIMIT = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with Rig(planes=4) as rig:
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    """Two hosts with four planes that nothing is wrong with."""
    yield shared
    for host in shared.hosts:
        host.kill()
    for plane in shared.planes:
        plane.rate(None)


class Command:
    """One of the commands, running in a host."""

    def __init__(
        self, host: Host, *words: str, prefix: tuple[str, ...] = (), **options: Any
    ) -> None:
        module = f"mrc.cli.{words[0].removeprefix('mrc-')}"
        code = f"import sys; from {module} import main; sys.exit(main())"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        self.process = host.popen(
            [*prefix, sys.executable, "-c", code, *words[1:]], env=ENVIRONMENT, **options
        )
        self.said: list[str] = []

    def wait_until_it_says(self, text: str) -> str:
        assert self.process.stderr is not None
        impatience = threading.Timer(LIMIT, self.process.kill)  # ends the loop below
        impatience.start()
        try:
            for line in self.process.stderr:
                self.said.append(line)
                if text in line:
                    return str(line).strip()
        finally:
            impatience.cancel()
        pytest.fail(f"never said {text!r}: {self.said}")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def end(self, code: int) -> str:
        """Waits for it; returns what it wrote to standard output."""
        try:
            out, err = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"no end: {self.said} {self.process.communicate()}")
        self.said.append(err or "")
        assert self.process.returncode == code, (self.process.returncode, self.said, out)
        assert "Traceback" not in "".join(self.said)
        return out or ""

    def result(self, code: int = 0) -> dict[str, Any]:
        """Its JSON, which is all of its output."""

        def refuse(text: str) -> None:
            pytest.fail(f"{text} in the JSON")

        result: dict[str, Any] = json.loads(self.end(code), parse_constant=refuse)
        assert result["exit_code"] == code
        assert (result["error"] is None) == (code == 0)
        return result

    @property
    def errors(self) -> str:
        return "".join(self.said)


def receive(rig: Rig, to: Path | str, *words: str, **options: Any) -> Command:
    json_too = () if str(to) == "-" else ("--json",)
    command = Command(rig.hosts[1], "mrc-recv", str(to), "--once", *json_too, *words, **options)
    command.wait_until_it_says("waiting; on the other host: mrc-send FILE fd00::2")
    return command


def send(rig: Rig, *words: str | Path, **options: Any) -> Command:
    target = rig.hosts[1].address(0)
    return Command(
        rig.hosts[0], "mrc-send", "--json", *(str(word) for word in words), target, **options
    )


def content(size: int) -> bytes:
    return hashlib.shake_128(b"mrc").digest(size)


def slow(rig: Rig, mbit: float = 150) -> None:
    """So that there is a middle of a transfer."""
    for plane in rig.planes:
        plane.rate(mbit)


def wait_for_size(path: Path, size: int) -> None:
    deadline = time.monotonic() + LIMIT
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < deadline, f"{path} does not grow"
        time.sleep(0.005)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def part_of(inbox: Path, name: str = "f") -> Path:
    return inbox / f"{name}.mrc-part"


def test_a_file_crosses_all_planes_and_the_summaries_agree(
    rig: Rig, tmp_path: Path, inbox: Path
) -> None:
    (tmp_path / "f").write_bytes(content(40 * MIB))
    receiver = receive(rig, inbox)
    sender = send(rig, tmp_path / "f")
    sent, received = sender.result(), receiver.result()
    assert (inbox / "f").read_bytes() == content(40 * MIB)
    assert sent["bytes"] == received["bytes"] == 40 * MIB
    assert sent["gbps"] > 0
    for result in (sent, received):
        planes = result["planes"]
        assert set(planes) == {"p0", "p1", "p2", "p3"}
        assert sum(plane["share"] for plane in planes.values()) == pytest.approx(1, abs=1e-3)
        assert all(plane["bytes"] > 0 for plane in planes.values())
    assert "planes: p0 to fd00::2, p1 to fd00:1::2" in sender.errors


def test_a_directory_arrives_as_it_was(rig: Rig, tmp_path: Path, inbox: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(20):
        path = tree / f"d{number % 3}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number * 10_000))
    (tree / "empty").mkdir()
    receiver = receive(rig, inbox)
    assert send(rig, tree).result()["files"] == 20
    receiver.result()
    subprocess.run(["diff", "-r", tree, inbox / "tree"], check=True)


def test_standard_input_comes_out_of_standard_output(rig: Rig) -> None:
    data = content(9 * MIB + 1)
    receiver = receive(rig, "-", stdout=subprocess.PIPE)
    sender = send(rig, "-", stdin=subprocess.PIPE)
    taken: list[bytes] = []
    output = cast(Any, receiver.process.stdout).buffer
    reader = threading.Thread(target=lambda: taken.append(output.read()))
    reader.start()
    source = cast(Any, sender.process.stdin)
    source.buffer.write(data)
    source.close()
    sender.process.stdin = None
    assert sender.result()["bytes"] == len(data)
    reader.join(LIMIT)
    receiver.process.wait(LIMIT)
    assert taken == [data]


def test_off_a_terminal_the_result_is_one_line_on_standard_error(
    rig: Rig, tmp_path: Path, inbox: Path
) -> None:
    (tmp_path / "f").write_bytes(content(MIB))
    receiver = Command(rig.hosts[1], "mrc-recv", str(inbox), "--once")
    receiver.wait_until_it_says("waiting")
    sender = Command(rig.hosts[0], "mrc-send", str(tmp_path / "f"), rig.hosts[1].address(0))
    assert (sender.end(0), receiver.end(0)) == ("", "")
    result = r"1 file, 1\.00 MiB in \d+\.\d s, \d\.\d\d Gb/s over p0.*; SHA-256 verified"
    assert re.fullmatch(rf"mrc-send: planes: .*\nmrc-send: sent {result}\n", sender.errors)
    assert re.search(rf"\nmrc-recv: received from \[fd00::1\]:\d+: {result}\n$", receiver.errors)
    assert "\r" not in sender.errors + receiver.errors


def test_quiet_says_nothing_but_what_goes_wrong(rig: Rig, tmp_path: Path, inbox: Path) -> None:
    (tmp_path / "f").write_bytes(content(MIB))
    receiver = Command(rig.hosts[1], "mrc-recv", str(inbox), "-q")
    target, path = rig.hosts[1].address(0), str(tmp_path / "f")
    deadline = time.monotonic() + LIMIT
    while (sender := Command(rig.hosts[0], "mrc-send", "-q", path, target)).process.wait() == 3:
        assert time.monotonic() < deadline  # it does not say when it is ready
        sender.end(3)
    sender.end(0)
    assert sender.errors == ""
    again = Command(rig.hosts[0], "mrc-send", "-q", path, target)
    again.end(4)
    assert again.errors.startswith("mrc-send: the peer says: f exists")
    receiver.interrupt()
    receiver.end(130)
    assert [line.partition(" exists")[1] for line in receiver.errors.splitlines()] == [
        " exists",
        "",
    ]


def test_a_target_that_exists_exits_1_with_hints_and_never_asks(
    rig: Rig, tmp_path: Path, inbox: Path
) -> None:
    """Case E81: standard input is no terminal, and is not read."""
    (tmp_path / "f").write_bytes(b"new")
    (inbox / "f").write_bytes(b"old")
    receiver = receive(rig, inbox, stdin=subprocess.PIPE)
    sender = send(rig, tmp_path / "f", stdin=subprocess.PIPE)
    hint = "f exists: mrc-recv --overwrite replaces it, mrc-recv --resume completes it"
    assert receiver.result(1)["error"] == hint
    assert sender.result(4)["error"] == f"the peer says: {hint}"
    assert (inbox / "f").read_bytes() == b"old"


def test_what_is_skipped_makes_the_exit_code_6_and_the_rest_arrives(
    rig: Rig, tmp_path: Path, inbox: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "kept").write_bytes(b"x")
    os.mkfifo(tree / "fifo")
    receiver = receive(rig, inbox)
    sender = send(rig, tree)
    result = sender.result(6)
    assert (result["files"], result["skipped"]) == (1, 1)
    assert receiver.result()["files"] == 1
    assert (inbox / "tree" / "kept").read_bytes() == b"x"


def test_two_senders_at_once_are_served_in_turn(rig: Rig, tmp_path: Path, inbox: Path) -> None:
    slow(rig)
    receiver = Command(rig.hosts[1], "mrc-recv", str(inbox), "--json")
    receiver.wait_until_it_says("waiting")
    for name in "ab":
        (tmp_path / name).write_bytes(content(32 * MIB))
    senders = [send(rig, tmp_path / name) for name in "ab"]
    assert [sender.result()["bytes"] for sender in senders] == [32 * MIB] * 2
    receiver.interrupt()
    result = receiver.result(130)
    assert result["files"] == 2
    assert {each["sha256"] for each in result["file_list"]} == {
        hashlib.sha256(content(32 * MIB)).hexdigest()
    }


def test_a_port_that_is_taken_is_named(rig: Rig) -> None:
    first = Command(rig.hosts[1], "mrc-perf", "server", "--listen", "[fd00::2]:99")
    first.wait_until_it_says("waiting")
    second = Command(rig.hosts[1], "mrc-recv", "--listen", "[fd00::2]:99", "--json")
    assert second.result(6)["error"] == "cannot listen on fd00::2 port 99: Address already in use"
    first.interrupt()
    first.end(130)


def test_discard_checks_and_keeps_nothing(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content(MIB))
    receiver = Command(rig.hosts[1], "mrc-recv", "--discard", "--once", "--json", cwd=tmp_path)
    receiver.wait_until_it_says("waiting")
    send(rig, tmp_path / "f").result()
    assert receiver.result()["bytes"] == MIB
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_without_once_it_serves_on_until_interrupted(rig: Rig, tmp_path: Path, inbox: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(content(MIB))
    (inbox / "b").write_bytes(b"in the way")
    receiver = Command(rig.hosts[1], "mrc-recv", str(inbox), "--json")
    receiver.wait_until_it_says("waiting")
    send(rig, tmp_path / "a").result()
    assert "--overwrite" in send(rig, tmp_path / "b").result(4)["error"]
    os.unlink(inbox / "b")
    send(rig, tmp_path / "b").result()
    receiver.interrupt()
    result = receiver.result(130)
    assert result["files"] == 2
    assert [bool(each.get("error")) for each in result["transfers"]] == [False, True, False]


def test_resume_after_a_kill_sends_only_the_rest(rig: Rig, tmp_path: Path, inbox: Path) -> None:
    size = 32 * MIB
    (tmp_path / "f").write_bytes(content(size))
    slow(rig)
    receiver = receive(rig, inbox)
    sender = send(rig, tmp_path / "f")
    wait_for_size(part_of(inbox), 7 * size // 10)
    receiver.interrupt(signal.SIGKILL)
    assert sender.result(4)["error"].startswith("connection lost: peer crashed")
    assert not (inbox / "f").exists()
    receiver = receive(rig, inbox, "--resume")
    sent = send(rig, tmp_path / "f").result()
    receiver.result()
    assert sent["bytes"] < 0.31 * size
    assert sent["bytes"] + sent["bytes_resumed"] == size
    assert (inbox / "f").read_bytes() == content(size)
    assert not part_of(inbox).exists()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_a_clear_error_on_both_sides(
    rig: Rig, tmp_path: Path, tiny_disk: Callable[[str], Path]
) -> None:
    (tmp_path / "f").write_bytes(content(64 * MIB))
    disk = tiny_disk("size=6m")
    receiver = receive(rig, disk)
    sender = send(rig, tmp_path / "f")
    reason = receiver.result(6)["error"]
    assert reason == f"f: No space left on device (wrote {6 * MIB} of {64 * MIB} bytes)"
    assert sender.result(4)["error"] == f"the peer says: {reason}"
    assert [path.name for path in disk.iterdir()] == ["f.mrc-part"]
    assert len(sender.errors.splitlines()) == 2  # the planes and the reason


def test_a_directory_that_cannot_be_written_is_a_clear_error_on_both_sides(
    rig: Rig, tmp_path: Path, tiny_disk: Callable[[str], Path]
) -> None:
    (tmp_path / "f").write_bytes(content(MIB))
    receiver = receive(rig, tiny_disk("ro"))
    sender = send(rig, tmp_path / "f")
    assert receiver.result(6)["error"] == "f: Read-only file system"
    assert sender.result(4)["error"] == "the peer says: f: Read-only file system"


def test_a_shrinking_file_is_a_clear_error_on_both_sides(
    rig: Rig, tmp_path: Path, inbox: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content(64 * MIB))
    slow(rig)
    receiver = receive(rig, inbox)
    sender = send(rig, path)
    wait_for_size(part_of(inbox), 4 * MIB)
    os.truncate(path, 5 * MIB)
    assert "the file shrank from 67108864 to" in sender.result(6)["error"]
    assert "the file shrank" in receiver.result(4)["error"]
    assert not (inbox / "f").exists()


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_an_interrupt_on_either_side_ends_both_cleanly(
    rig: Rig, tmp_path: Path, inbox: Path, who: str
) -> None:
    (tmp_path / "f").write_bytes(content(64 * MIB))
    slow(rig)
    receiver = receive(rig, inbox)
    sender = send(rig, tmp_path / "f")
    wait_for_size(part_of(inbox), 2 * MIB)
    one, other = (sender, receiver) if who == "sender" else (receiver, sender)
    one.interrupt()
    assert one.result(130)["error"] == "interrupted"
    error = other.result(4)["error"]
    assert error.startswith(("the peer says: interrupted", "connection lost: aborted (by "))
    assert not (inbox / "f").exists()


def test_an_interrupted_wait_ends_at_once(rig: Rig, inbox: Path) -> None:
    receiver = receive(rig, inbox)
    receiver.interrupt(signal.SIGTERM)
    assert receiver.result(143)["error"] == "terminated"
    receiver = receive(rig, inbox)
    sender = send(rig, "-", stdin=subprocess.PIPE)
    sender.wait_until_it_says("planes:")
    sender.interrupt()
    sender.result(130)
    receiver.result(4)


@pytest.fixture
def readable_python(tmp_path: Path) -> tuple[str, ...]:
    """What runs a command as nobody, if that user can read this interpreter and tree."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    code = "import sys, mrc.cli.recv"
    done = subprocess.run(
        [*nobody, sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=False
    )
    return nobody if done.returncode == 0 else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.parametrize(
    "words", [["mrc-recv", "--discard"], ["mrc-send", "/etc/passwd", "fd00::2"], ["mrc-perf", "x"]]
)
def test_without_the_capability_one_line_says_what_to_do(
    rig: Rig, words: list[str], readable_python: tuple[str, ...]
) -> None:
    command = Command(rig.hosts[0], *words, "--json", prefix=readable_python)
    error = command.result(77)["error"]
    # The three ways to be granted it.
    assert error.startswith("raw sockets need CAP_NET_RAW: run as root")
    assert "setcap cap_net_raw" in error
    assert "AmbientCapabilities=CAP_NET_RAW" in error
    assert command.errors == f"{words[0]}: {error}\n"


@pytest.mark.parametrize("words", [["mrc-send", "/etc/passwd"], ["mrc-perf"]])
def test_a_closed_port_exits_3_with_valid_json(rig: Rig, words: list[str]) -> None:
    target = f"[{rig.hosts[1].address(0)}]:9"
    error = Command(rig.hosts[0], *words, target, "--json").result(3)["error"]
    assert "nobody listens" in error


def test_another_protocol_on_the_port_exits_3(rig: Rig) -> None:
    server = rig.hosts[1].socket(socket.AF_INET6, socket.SOCK_STREAM)
    server.bind((rig.hosts[1].address(0), 0))
    server.listen()

    def answer() -> None:
        client, _ = server.accept()
        with client:
            client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            client.recv(1000)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    target = f"[{rig.hosts[1].address(0)}]:{server.getsockname()[1]}"
    command = Command(rig.hosts[0], "mrc-send", "--json", "/etc/passwd", target)
    assert command.result(3)["error"]
    thread.join(LIMIT)
    server.close()


def test_a_wrong_command_at_the_other_end_is_said(rig: Rig, tmp_path: Path) -> None:
    receiver = Command(rig.hosts[1], "mrc-recv", "--discard", "--once", "--json")
    receiver.wait_until_it_says("waiting")
    client = Command(rig.hosts[0], "mrc-perf", rig.hosts[1].address(0), "--json")
    assert "the peer speaks mrc-perf 1, not mrc-transfer 1" in client.result(4)["error"]
    receiver.result(4)
    server = Command(rig.hosts[1], "mrc-perf", "server", "--once", "--json")
    server.wait_until_it_says("waiting")
    (tmp_path / "f").write_bytes(b"")
    error = send(rig, tmp_path / "f").result(4)["error"]
    assert "the peer speaks mrc-transfer 1, not mrc-perf 1" in error
    server.result(4)


@pytest.mark.parametrize("words", [[], ["--bidirectional"], ["--latency"]])
def test_perf_measures_and_says_it_in_valid_json(rig: Rig, words: list[str]) -> None:
    server = Command(rig.hosts[1], "mrc-perf", "server", "--once", "--json")
    server.wait_until_it_says("waiting")
    words = ["mrc-perf", rig.hosts[1].address(0), "--duration", "0.5", "--json", *words]
    result = Command(rig.hosts[0], *words).result()
    assert server.result()["clients"] == 1
    assert result["goodput_gbps"] > 0
    assert result["messages_per_s"] > 0
    assert set(result["planes"]) == {"p0", "p1", "p2", "p3"}
    assert set(result["planes"]["p0"]) == {"bytes", "share", "retransmitted", "rtt_us", "state"}
    assert result["cpu_s_per_gb"]["local"] > 0
    assert result["cpu_s_per_gb"]["peer"] > 0
    if "--latency" in words:
        assert 0 < result["rtt_us"]["p50"] <= result["rtt_us"]["p999"]
    check_units(result)
    directions = ["", "_reverse"] if "--bidirectional" in words else [""]
    for direction in directions if "--latency" not in words else []:
        assert result[f"goodput{direction}_gbps"] > 0
        intervals = result[f"goodput{direction}_interval_gbps"]
        assert 0 <= intervals["min"] <= intervals["p50"] <= intervals["p99"]


UNITS = ("_gbps", "_per_s", "_us", "_s", "_bytes", "_messages", "_per_gb")
COUNTS = {
    *("schema_version", "exit_code", "messages", "messages_reverse", "bytes", "bytes_reverse"),
    *("seconds", "share", "retransmitted", "path_events_omitted", "ev"),
}


def check_units(value: Any, unit: str = "") -> None:
    """Every number is a count, or its key or that of what it stands in ends with a unit."""
    if isinstance(value, dict):
        for key, inner in value.items():
            named = key in COUNTS or key.endswith(UNITS)
            check_units(inner, key if named else unit)
    elif isinstance(value, list):
        for inner in value:
            check_units(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        assert unit, value


def test_a_measurement_ends_near_its_duration_whatever_the_size(rig: Rig) -> None:
    slow(rig)
    server = Command(rig.hosts[1], "mrc-perf", "server")
    server.wait_until_it_says("waiting")
    seconds: dict[str, float] = {}
    for size in ("64K", "1G"):
        words = ["mrc-perf", rig.hosts[1].address(0), "--size", size, "--duration", "1", "--json"]
        client = Command(rig.hosts[0], *words)
        client.wait_until_it_says("planes:")
        started = time.monotonic()
        result = client.result()
        seconds[size] = time.monotonic() - started
        assert result["cut_off"] == (size == "1G")
        assert result["goodput_gbps"] > 0
    # At 4 x 150 Mb/s one such message would take 14 s.
    assert seconds["1G"] < 4 * seconds["64K"]
    server.interrupt()
    server.end(130)
    assert "aborted" not in server.errors


def test_an_interrupted_measurement_is_valid_json(rig: Rig) -> None:
    server = Command(rig.hosts[1], "mrc-perf", "server", "--once", "--json")
    server.wait_until_it_says("waiting")
    client = Command(rig.hosts[0], "mrc-perf", rig.hosts[1].address(0), "--json")
    client.wait_until_it_says("planes:")
    time.sleep(1)
    client.interrupt()
    result = client.result(130)
    assert result["planes"]
    assert result["goodput_gbps"] > 0
    server.result(4)


def test_the_demo_shows_a_plane_going_and_coming(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py", "--mib", "192"],
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SHA-256" in done.stdout
    assert "equal" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("p2 "))
    assert row.count("down") == 1
    assert "up" in row
