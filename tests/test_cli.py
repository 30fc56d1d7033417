# SPDX-License-Identifier: Apache-2.0
"""The commands without a network: arguments, JSON, exit codes, names, and whole transfers between
two ends of a connection that is two queues.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli import common, perf, progress, recv, send, source, store, transfer
from mrc.cli.common import CommandError, ExitCode
from mrc.cli.progress import Counter
from mrc.cli.traffic import PlaneTraffic, planes_json
from mrc.connection import Connection, Message
from mrc.errors import (
    CapabilityError,
    ConfigError,
    ConnectionClosedOK,
    ConnectionLost,
    ConnectRefused,
    ConnectTimeout,
    HandshakeError,
    ProtocolError,
)

MAINS = {"mrc-send": send.main, "mrc-recv": recv.main, "mrc-perf": perf.main}


class Pipe:
    """One end of a connection between two coroutines."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue(8)
        self.other: Pipe
        self.closed = False
        self.peer = "fake"
        self.sent_bytes = 0

    async def send(self, data: Any, *, imm: int | None = None) -> None:
        if self.closed or self.other.closed:
            raise ConnectionClosedOK("closed")
        self.sent_bytes += len(data)
        await self.other.inbox.put(Message(bytes(data), imm))

    async def post_send(self, data: Any, *, imm: int | None = None) -> asyncio.Future[None]:
        await self.send(data, imm=imm)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def recv(self) -> Message:
        while True:
            if not self.inbox.empty():
                return self.inbox.get_nowait()
            if self.closed or self.other.closed:
                raise ConnectionClosedOK("closed")
            await asyncio.sleep(0.001)

    async def close(self, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        self.closed = True

    def paths(self) -> tuple[Any, ...]:
        return ()

    async def events(self) -> AsyncIterator[Any]:
        nothing: tuple[Any, ...] = ()
        for event in nothing:
            yield event


def pipes() -> tuple[Connection, Connection]:
    one, other = Pipe(), Pipe()
    one.other, other.other = other, one
    return cast(Connection, one), cast(Connection, other)


def counts() -> dict[str, Any]:
    zero: dict[str, Any] = {"files": 0, "bytes": 0, "bytes_resumed": 0, "seconds": 0.0}
    return zero | {"gbps": 0.0, "planes": {}, "path_events": [], "transfers": []}


Outcome = tuple[BaseException | None, BaseException | None, dict[str, Any], dict[str, Any]]


def move(
    paths: list[Path | str],
    to: Path | store.Store,
    *,
    overwrite: bool = False,
    resume: bool = False,
    meddle: Callable[[Connection], None] = lambda connection: None,
) -> Outcome:
    """Sends paths; returns the sender's and the receiver's error and result."""

    async def both() -> Outcome:
        ours, theirs = pipes()
        meddle(ours)
        target = (
            store.DirectoryStore(str(to), overwrite=overwrite, resume=resume)
            if isinstance(to, Path)
            else to
        )
        sent, received = counts(), counts()
        items, _ = source.collect([str(path) for path in paths])
        errors = await asyncio.gather(
            send.send(ours, items, sent),
            recv.receive(theirs, target, received),
            return_exceptions=True,
        )
        return errors[0], errors[1], sent, received

    async def bounded() -> Outcome:
        return await asyncio.wait_for(both(), 30)

    return asyncio.run(bounded())


def content(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


# Transfers.


@pytest.mark.parametrize("size", [0, 1, transfer.BLOCK, 2 * transfer.BLOCK + 7, 9 << 22])
def test_a_file_arrives_with_its_bytes_mode_and_time(tmp_path: Path, box: Path, size: int) -> None:
    path = tmp_path / "a file\n"
    path.write_bytes(content(size))
    path.chmod(0o640)
    os.utime(path, ns=(1, 1_234_567_890_123_456_789))
    assert move([path], box)[:2] == (None, None)
    there = box / path.name
    assert there.read_bytes() == content(size)
    assert there.stat().st_mode & 0o7777 == 0o640
    assert there.stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert [each.name for each in box.iterdir()] == [path.name]


def test_a_directory_arrives_with_all_in_it_but_links(tmp_path: Path, box: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / os.fsdecode(b"\xff.txt")).write_bytes(b"x")
    (tree / "top").write_bytes(b"y")
    (tree / "link").symlink_to("/etc/passwd")
    _, skipped = source.collect([str(tree)])
    assert skipped == [str(tree / "link")]
    sender, receiver, sent, received = move([tree], box)
    assert (sender, receiver) == (None, None)
    assert sent["files"] == received["files"] == 2
    found = {path.relative_to(box).as_posix() for path in box.rglob("*")}
    names = {"tree", "tree/empty", "tree/deep", "tree/deep/er", "tree/top"}
    assert found == names | {"tree/deep/er/" + os.fsdecode(b"\xff.txt")}


def test_a_target_that_exists_is_refused_with_a_hint_and_left_alone(
    tmp_path: Path, box: Path
) -> None:
    (tmp_path / "f").write_bytes(b"new")
    (box / "f").write_bytes(b"old")
    sender, receiver, _, _ = move([tmp_path / "f"], box)
    assert "--overwrite" in str(sender)
    assert "--resume" in str(receiver)
    assert common.exit_code(cast(BaseException, sender)) == ExitCode.LOST
    assert (box / "f").read_bytes() == b"old"
    assert move([tmp_path / "f"], box, overwrite=True)[:2] == (None, None)
    assert (box / "f").read_bytes() == b"new"


def test_resume_sends_only_what_is_missing(tmp_path: Path, box: Path) -> None:
    data = content(10 << 20)
    (tmp_path / "f").write_bytes(data)
    (box / ("f" + transfer.PART_SUFFIX)).write_bytes(data[: 7 << 20])
    sender, receiver, sent, received = move([tmp_path / "f"], box, resume=True)
    assert (sender, receiver) == (None, None)
    assert sent["bytes"] == received["bytes"] == 3 << 20
    assert sent["bytes_resumed"] == 7 << 20
    assert (box / "f").read_bytes() == data


def test_resume_of_a_changed_file_starts_again(tmp_path: Path, box: Path) -> None:
    data = content(5 << 20)
    (tmp_path / "f").write_bytes(data)
    (box / ("f" + transfer.PART_SUFFIX)).write_bytes(content(6 << 20, seed=2))
    sender, receiver, sent, _ = move([tmp_path / "f"], box, resume=True)
    assert (sender, receiver) == (None, None)
    assert sent["bytes"] == len(data)
    assert (box / "f").read_bytes() == data


def test_resume_skips_a_whole_file_and_refuses_another_of_that_name(
    tmp_path: Path, box: Path
) -> None:
    (tmp_path / "f").write_bytes(b"same")
    (box / "f").write_bytes(b"same")
    sender, receiver, sent, _ = move([tmp_path / "f"], box, resume=True)
    assert (sender, receiver, sent["bytes"]) == (None, None, 0)
    (box / "f").write_bytes(b"else")
    sender, receiver, _, _ = move([tmp_path / "f"], box, resume=True)
    assert "another file" in str(sender)
    assert (box / "f").read_bytes() == b"else"


def test_a_shrinking_file_is_an_error_on_both_sides_and_gets_no_name(
    tmp_path: Path, box: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content(24 << 20))

    def shrink(connection: Connection) -> None:
        post = connection.post_send

        async def truncating(data: Any, *, imm: int | None = None) -> Any:
            os.truncate(path, 16 << 20)
            return await post(data, imm=imm)

        connection.post_send = truncating  # type: ignore[method-assign]

    sender, receiver, _, _ = move([path], box, meddle=shrink)
    assert "shrank from 25165824 to 16777216 bytes" in str(sender)
    assert "shrank" in str(receiver)
    assert common.exit_code(cast(BaseException, sender)) == ExitCode.LOCAL_IO
    assert common.exit_code(cast(BaseException, receiver)) == ExitCode.LOST
    assert not (box / "f").exists()


def test_a_flipped_bit_is_an_integrity_error_on_both_sides_and_leaves_nothing(
    tmp_path: Path, box: Path
) -> None:
    (tmp_path / "f").write_bytes(content(1000))

    def corrupt(connection: Connection) -> None:
        post = connection.post_send

        async def flipping(data: Any, *, imm: int | None = None) -> Any:
            return await post(bytes([data[0] ^ 1]) + bytes(data[1:]), imm=imm)

        connection.post_send = flipping  # type: ignore[method-assign]

    sender, receiver, _, _ = move([tmp_path / "f"], box, meddle=corrupt)
    assert common.exit_code(cast(BaseException, sender)) == ExitCode.INTEGRITY
    assert common.exit_code(cast(BaseException, receiver)) == ExitCode.INTEGRITY
    assert list(box.iterdir()) == []


class Full(store.DiscardStore):
    """A disk with room for little."""

    def open(self, entry: transfer.Entry) -> store.Target:
        class Target(store.DiscardTarget):
            def write(self, data: memoryview) -> None:
                error = OSError(28, "No space left on device")
                raise store.write_error(entry.name, error, 0, entry.size)

        return Target()


def test_a_full_disk_is_told_to_both_sides_with_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content(60 << 20))
    sender, receiver, _, _ = move([tmp_path / "f"], Full())
    assert str(receiver) == "f: No space left on device (wrote 0 of 62914560 bytes)"
    assert str(receiver) in str(sender)
    assert common.exit_code(cast(BaseException, receiver)) == ExitCode.LOCAL_IO
    assert common.exit_code(cast(BaseException, sender)) == ExitCode.LOST


def test_files_to_a_descriptor_come_one_behind_the_other(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 100_000)
    read, write = os.pipe()
    os.set_blocking(write, False)
    with subprocess.Popen(["wc", "-c"], stdin=read, stdout=subprocess.PIPE) as counter:
        os.close(read)
        assert move([tmp_path / "a", tmp_path / "b"], store.StreamStore(write))[:2] == (None, None)
        os.close(write)
        assert counter.communicate()[0].strip() == b"200000"


def test_two_receivers_do_not_write_one_file(box: Path) -> None:
    entry = transfer.Entry(kind="file", name="f", size=3, mode=0o600, mtime_ns=0)
    files = store.DirectoryStore(str(box), overwrite=False, resume=False)
    first = files.open(entry)
    with pytest.raises(CommandError, match="another mrc-recv"):
        files.open(entry)
    first.start(0)
    first.write(memoryview(b"abc"))
    (box / "f").write_bytes(b"came meanwhile")
    with pytest.raises(CommandError, match="exists"):
        first.commit()
    first.abandon(keep=False)
    assert [path.name for path in box.iterdir()] == ["f"]


# Names.

BAD_NAMES = [
    *("", "/etc/passwd", "..", "../x", "a/../../x", "a//b", "a/", ".", "./a", "a\0b", "x" * 4097),
    *("f.mrc-part", "f.mrc-part/x"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_would_leave_the_directory_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        transfer.check_name(name)
    with pytest.raises(ProtocolError):
        transfer.Entry(kind="file", name=name, size=0, mode=0, mtime_ns=0)


@given(st.text(max_size=30))
def test_an_accepted_name_stays_inside(name: str) -> None:
    try:
        parts = transfer.check_name(name)
    except ProtocolError:
        return
    joined = os.path.normpath(os.path.join("/root/box", *parts))
    assert joined == "/root/box/" + name


def test_a_link_in_the_directory_leads_nowhere(tmp_path: Path, box: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (box / "link").symlink_to(outside)
    (box / "leaf").symlink_to(outside / "leaf")
    (box / ("part" + transfer.PART_SUFFIX)).symlink_to(outside / "part")
    files = store.DirectoryStore(str(box), overwrite=True, resume=False)

    def entry(name: str) -> transfer.Entry:
        return transfer.Entry(kind="file", name=name, size=0, mode=0o600, mtime_ns=0)

    with pytest.raises(CommandError, match="would leave the directory"):
        files.open(entry("link/x"))
    with pytest.raises(CommandError, match="would leave the directory"):
        files.make_directory(entry("link"))
    with pytest.raises(OSError, match="symbolic links"):
        files.open(entry("part"))
    target = files.open(entry("leaf"))
    target.start(0)
    target.commit()
    assert not (box / "leaf").is_symlink()
    assert list(outside.iterdir()) == []


def test_setuid_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    path.chmod(0o4755)
    assert source.collect([str(path)])[0][0].entry.mode == 0o755
    with pytest.raises(ProtocolError):
        transfer.Entry(kind="file", name="f", size=0, mode=0o4755, mtime_ns=0)


def test_text_of_the_peer_cannot_command_the_terminal() -> None:
    failure = transfer.Failure(kind="io", message="\x1b]0;owned\x07\n\u202e")
    assert str(transfer.PeerFailed(failure)).isprintable()


# The format.

CONTROLS: list[transfer.Control] = [
    transfer.Hello(files=2, bytes=None),
    transfer.Entry(kind="file", name="a/\udcff", size=1 << 40, mode=0o644, mtime_ns=5),
    transfer.Go(offset=0, sha256="0" * 64),
    transfer.Start(offset=7),
    transfer.End(size=0, sha256="f" * 64),
    transfer.Stored(),
    transfer.Done(),
    transfer.Failure(kind="io", message="no"),
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_a_control_message_is_read_back_as_it_was(control: transfer.Control) -> None:
    assert transfer.decode(transfer.encode(control)) == control


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "control message of"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "unknown type"),
        (b'{"type": ["hello"]}', "unknown type"),
        (b'{"type": "start"}', "fields of start"),
        (b'{"type": "start", "offset": -1}', "start.offset"),
        (b'{"type": "start", "offset": true}', "start.offset"),
        (b'{"type": "start", "offset": 1.5}', "start.offset"),
        (b'{"type": "start", "offset": NaN}', "start.offset"),
        (b'{"type": "start", "offset": null}', "start.offset"),
        (b'{"type": "start", "offset": 1e999}', "start.offset"),
        (b'{"type": "start", "offset": 1, "x": 1}', "fields of start"),
        (b'{"type": "end", "size": 1, "sha256": "zz"}', "hexadecimal"),
        (b'{"type": "hello", "protocol": "mrc-perf", "version": 1, "size": 4}', "mrc-perf 1, not"),
        (b'{"type": "failure", "kind": "x", "message": ""}', "kind"),
    ],
)
def test_what_is_no_control_message_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        transfer.decode(data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_no_value_of_a_field_is_accepted_that_its_type_excludes(value: Any) -> None:
    data = json.dumps({"type": "start", "offset": value}).encode()
    try:
        control = transfer.decode(data)
    except ProtocolError:
        return
    assert type(control) is transfer.Start
    assert type(control.offset) is int
    assert control.offset >= 0


def run_dialogue(play: Callable[[Connection], Coroutine[Any, Any, Any]], box: Path) -> Any:
    """Lets a test play the sender; returns the receiver's error."""

    async def both() -> Any:
        ours, theirs = pipes()
        files = store.DirectoryStore(str(box), overwrite=False, resume=False)
        receiver = asyncio.ensure_future(recv.receive(theirs, files, counts()))
        await asyncio.gather(play(ours), return_exceptions=True)
        return (await asyncio.gather(receiver, return_exceptions=True))[0]

    return asyncio.run(both())


def test_more_data_than_announced_is_refused(box: Path) -> None:
    async def play(connection: Connection) -> None:
        channel = transfer.Channel(connection)
        await channel.say(transfer.Hello())
        await channel.expect(transfer.Hello)
        await channel.say(transfer.Entry(kind="file", name="f", size=3, mode=0, mtime_ns=0))
        await channel.expect(transfer.Go)
        await channel.say(transfer.Start(offset=0))
        await connection.send(b"four")
        await channel.expect(transfer.Stored)

    error = run_dialogue(play, box)
    assert isinstance(error, ProtocolError)
    assert "longer than announced" in str(error)
    assert not (box / "f").exists()


def test_a_sender_that_leaves_before_the_end_is_an_error(box: Path) -> None:
    async def play(connection: Connection) -> None:
        await transfer.Channel(connection).say(transfer.Hello())
        await asyncio.sleep(0.05)
        await connection.close()

    assert isinstance(run_dialogue(play, box), ConnectionClosedOK)


def test_a_client_of_mrc_perf_is_told_that_this_is_no_server(box: Path) -> None:
    answers: list[str] = []

    async def play(connection: Connection) -> None:
        hello = {"type": "hello", "protocol": "mrc-perf", "version": 1}
        await connection.send(json.dumps(hello).encode(), imm=transfer.CONTROL)
        answers.append(bytes((await connection.recv()).data).decode())

    error = run_dialogue(play, box)
    assert isinstance(error, ProtocolError)
    assert "the peer speaks mrc-perf 1, not mrc-transfer 1" in answers[0]


# mrc-perf.


@pytest.mark.parametrize("words", [[], ["--bidirectional"], ["--latency"]])
def test_both_sides_of_a_measurement_agree(words: list[str]) -> None:
    arguments = perf.parser().parse_args(["host", "--size", "1K", *words])
    plan = perf._plan_of(arguments)

    async def both() -> dict[str, Any]:
        ours, theirs = pipes()
        result: dict[str, Any] = {}
        work = perf._latency if plan.latency else perf._throughput

        async def client() -> dict[str, Any]:
            await perf._say(
                ours,
                "hello",
                protocol="mrc-perf",
                version=1,
                latency=plan.latency,
                size=plan.size,
                window=plan.window,
                bidirectional=plan.bidirectional,
            )
            await perf._expect(ours, "ready")
            report = await work(ours, plan, 0.1, result)
            assert report["messages"] == result["messages"] > 0
            return report

        report, _ = await asyncio.gather(client(), perf._answer(theirs))
        result["cpu_s_per_gb"] = perf._cpu_per_gb(report, 0.5, result["bytes"])
        return result

    result = asyncio.run(both())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["goodput_gbps"] > 0
    assert (result.get("goodput_reverse_gbps", 0) > 0) == plan.bidirectional
    assert result["cpu_s_per_gb"]["local"] > 0
    if plan.latency:
        trips = result["rtt_us"]
        assert 0 < trips["p50"] <= trips["p99"] <= trips["p999"]


def test_percentiles_of_nothing_are_null_and_of_one_are_it() -> None:
    assert perf.percentiles([]) == {"p50": None, "p99": None, "p999": None}
    assert perf.percentiles([1e-3]) == {"p50": 1000.0, "p99": 1000.0, "p999": 1000.0}
    assert perf.percentiles([k / 1e6 for k in range(1000)])["p99"] == 990.0


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"type": "hello"},
        {"type": "hello", "protocol": "mrc-transfer", "version": 1},
        {"type": "hello", "protocol": "mrc-perf", "version": 2},
        {"type": "hello", "protocol": "mrc-perf", "version": 1, "latency": 1},
    ],
)
def test_a_hello_that_is_none_of_ours_is_refused(hello: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        perf._plan(hello)


# Arguments, JSON, exit codes.


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("mrc-send", [], "required"),
        ("mrc-send", ["only"], "required"),
        ("mrc-send", ["-", "-", "host"], "named twice"),
        ("mrc-send", ["-", "host", "--mtu", "1000"], "--mtu"),
        ("mrc-send", ["-", "host", "--planes", ","], "--planes"),
        ("mrc-send", ["-", "host", "--udp-port", "0"], "udp_port"),
        ("mrc-send", ["-", "host", "--timeout", "nan"], "--timeout"),
        ("mrc-send", ["/", "host"], "empty"),
        ("mrc-recv", ["--discard", "dir"], "--discard and DIR"),
        ("mrc-recv", ["--resume", "--overwrite"], "--resume and --overwrite"),
        ("mrc-recv", ["-"], "--json and -"),
        ("mrc-recv", ["--listen", "1:2:3:x"], "--listen"),
        ("mrc-perf", ["host", "--latency", "--bidirectional"], "--latency and --bidirectional"),
        ("mrc-perf", ["server", "--size", "1"], "server and --size"),
        ("mrc-perf", ["host", "--size", "1X"], "--size"),
        ("mrc-perf", ["host", "--size", "2G"], "size"),
        ("mrc-perf", ["host", "--window", "0"], "window"),
        ("mrc-perf", ["host", "--dur", "1"], "unrecognized"),
    ],
)
def test_a_usage_error_exits_2_with_one_line_and_one_json_object(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS[command]([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["command"], result["exit_code"]) == (command, 2)
    assert message in result["error"]
    assert err == f"{command}: {result['error']}\n"


def test_a_missing_file_exits_6_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert send.main(["/nowhere/f", "host", "--json"]) == 6
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "/nowhere/f: No such file or directory"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CapabilityError("say setcap"), 77),
        (ConfigError("planes: x"), 2),
        (ConnectTimeout("x"), 3),
        (ConnectRefused("x"), 3),
        (HandshakeError("x"), 3),
        (ConnectionLost("peer silent"), 4),
        (ConnectionClosedOK("x"), 4),
        (ProtocolError("x"), 4),
        (transfer.PeerFailed(transfer.Failure(kind="io", message="x")), 4),
        (transfer.PeerFailed(transfer.Failure(kind="integrity", message="x")), 5),
        (OSError(28, "No space left on device"), 6),
        (RuntimeError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_every_error_has_its_exit_code_one_line_and_valid_json(
    error: Exception, code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(arguments: argparse.Namespace, result: common.Result) -> None:
        result["bytes"] = 7
        raise error

    parser = common.Parser("mrc-x", "")
    common.add_common_arguments(parser)
    assert common.run(parser, work, words) == code
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert err.startswith("mrc-x: ")
    if words:
        result = json.loads(out)
        assert (result["exit_code"], result["bytes"]) == (code, 7)
        assert result["error"]
    else:
        assert out == ""


INTERRUPTED = """
import asyncio, os, signal, sys
from mrc.cli import common
async def work(arguments, result):
    result["bytes"] = 7
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        raise ConnectionError("met while cleaning up")
parser = common.Parser("mrc-x", "")
common.add_common_arguments(parser)
sys.exit(common.run(parser, work, ["--json"]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_with_its_code_and_valid_json(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["bytes"]) == (code, 7)
    assert "Traceback" not in done.stderr


def test_a_reader_of_the_json_that_has_gone_is_no_traceback() -> None:
    code = "import sys; from mrc.cli import send; sys.exit(send.main(['--json']))"
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 4791)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("[fd00::1]", ("fd00::1", 4791)),
        ("fd00::1", ("fd00::1", 4791)),
        ("fe80::1%eth0", ("fe80::1%eth0", 4791)),
        ("host", ("host", 4791)),
        (":0", (None, 0)),
    ],
)
def test_where_to_listen_is_read_in_every_form(text: str, expected: tuple[str, int]) -> None:
    assert common.listen_address(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("7", 7), ("4K", 4096), ("4KiB", 4096), ("4KB", 4000), ("1G", 1 << 30)]
)
def test_a_size_says_which_thousand_it_means(text: str, expected: int) -> None:
    assert common.size_in_bytes(text) == expected


@pytest.mark.parametrize(
    ("words", "port", "expected"),
    [
        ([], 4791, "mrc-send FILE fd00::1"),
        ([], 5000, "mrc-send FILE '[fd00::1]:5000'"),
        (["--udp-port", "7"], 4791, "mrc-send --udp-port 7 FILE fd00::1"),
        (["--listen", "10.0.0.9:1"], 1, "mrc-send FILE 10.0.0.9:1"),
    ],
)
def test_the_receiver_prints_the_exact_line_to_paste(
    words: list[str], port: int, expected: str
) -> None:
    planes = cast(Any, [SimpleNamespace(address="fe80::1"), SimpleNamespace(address="fd00::1")])
    assert recv.send_line(recv.parser().parse_args(words), port, planes) == expected


# For people.


def plane(name: str, size: int) -> PlaneTraffic:
    return PlaneTraffic(
        name=name,
        state="up",
        reason="",
        bytes_sent=size,
        bytes_received=0,
        retransmitted=1,
        lost=2,
        outages=0,
        rtt_us=3.0,
    )


def test_the_json_of_planes_has_shares_that_add_up_and_no_nan() -> None:
    rows = planes_json([plane("a", 1), plane("b", 3)])
    assert rows["b"] == {"bytes": 3, "share": 0.75, "retransmitted": 1, "lost": 2}
    assert planes_json([plane("a", 0)], rtt=True)["a"]["share"] == 0.0
    assert common.ratio(1, 0) is None
    assert common.ratio(float("inf"), 1) is None


def test_progress_shows_rate_time_left_and_planes() -> None:
    counter = Counter(1 << 30)
    counter.done = 1 << 29
    text = progress.line(counter, 64 << 20, [("a", "up", 32 << 20), ("b", "out", 0.0)])
    assert text == " 50 %  512.00 MiB of 1.00 GiB  0.54 Gb/s  0:08 left  | a 0.27  b out"
    assert progress.line(Counter(), 0, []).startswith("0 B")


def test_the_table_of_planes_is_readable() -> None:
    lines = progress.plane_table([plane("a", 1_000_000), plane("bb", 3_000_000)], 1.0).splitlines()
    assert lines[0].split() == [
        *("plane", "bytes", "share", "Gb/s", "lost", "retransmitted", "outages", "state"),
    ]
    assert lines[2].split() == ["bb", "3,000,000", "75.0", "%", "0.02", "2", "1", "0", "up"]
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (1 << 52, "4096.00 TiB")]
)
def test_a_quantity_has_its_unit(count: int, text: str) -> None:
    assert progress.quantity(count) == text


def test_a_duration_is_a_clock() -> None:
    assert [progress.duration(s) for s in (7.4, 61, 3723)] == ["0:07", "1:01", "1:02:03"]


class Terminal(io.StringIO):
    """Knows when it was written to often enough."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.enough = enough
        self.reached = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.enough -= 1
        if self.enough == 0:
            self.reached.set()
        return super().write(text)


def test_on_a_terminal_the_line_is_redrawn_and_gone_at_the_end() -> None:
    counter = Counter(1000)
    counter.done = 500

    async def work() -> str:
        stream = Terminal(2)
        async with progress.Progress(counter, lambda: (plane("a", 1),), stream) as shown:
            await stream.reached.wait()
        shown.show("the end")
        return stream.getvalue()

    nothing, *drawn, last = asyncio.run(asyncio.wait_for(work(), 30)).split("\r")
    assert nothing == ""
    assert len(drawn) == 2
    assert all(text.startswith(" 50 %") and text.endswith("\x1b[K") for text in drawn)
    assert last == "\x1b[Kthe end\n"


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for main in MAINS.values():
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        out = " ".join(capsys.readouterr().out.split())
        for code in ExitCode:
            assert f" {int(code)}" in out


def test_nothing_is_drawn_in_a_pipe(tmp_path: Path, box: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with (tmp_path / "log").open("w+") as log:
        saved, sys.stderr = sys.stderr, log
        try:
            assert move([tmp_path / "f"], box)[:2] == (None, None)
        finally:
            sys.stderr = saved
        log.seek(0)
        assert log.read() == ""
