# SPDX-License-Identifier: Apache-2.0
"""Files from mrc-send to mrc-recv over a connection that is two queues: what arrives, what is
refused, and what both sides are told.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from cli_pipes import pipes
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli import common, recv, send, source, store, transfer
from mrc.cli.common import CommandError, ExitCode
from mrc.connection import Connection
from mrc.errors import ConnectionClosedOK, ProtocolError


def counts() -> dict[str, Any]:
    zero: dict[str, Any] = {"files": 0, "bytes": 0, "bytes_resumed": 0, "seconds": 0.0}
    zero |= {"gbps": 0.0, "planes": {}, "path_events": [], "path_events_omitted": 0}
    return zero | {"file_list": [], "transfers": []}


Outcome = tuple[BaseException | None, BaseException | None, dict[str, Any], dict[str, Any]]


def move(
    paths: list[Path | str] | source.Found,
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
        found = (
            paths
            if isinstance(paths, source.Found)
            else source.collect([str(path) for path in paths])
        )
        errors = await asyncio.gather(
            send.send(ours, found, sent),
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
    skipped = source.collect([str(tree)]).skipped
    assert [(each.path, each.reason) for each in skipped] == [
        (str(tree / "link"), "a symbolic link")
    ]
    sender, receiver, sent, received = move([tree], box)
    assert (sender, receiver) == (None, None)
    assert sent["files"] == received["files"] == 2
    found = {path.relative_to(box).as_posix() for path in box.rglob("*")}
    names = {"tree", "tree/empty", "tree/deep", "tree/deep/er", "tree/top"}
    assert found == names | {"tree/deep/er/" + os.fsdecode(b"\xff.txt")}


def tree_with_everything(tree: Path) -> None:
    tree.mkdir()
    (tree / "kept").write_bytes(b"x")
    os.mkfifo(tree / "fifo")
    (tree / "link").symlink_to("kept")
    (tree / ("half" + transfer.PART_SUFFIX)).write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tree / "socket"))


def test_what_cannot_be_sent_is_counted_said_and_makes_the_exit_code_6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree_with_everything(tmp_path / "tree")
    monkeypatch.chdir(tmp_path)
    assert send.main(["tree", "host", "--dry-run", "--json"]) == ExitCode.LOCAL_IO
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["files"], result["skipped"]) == (1, 4)
    assert {each["path"]: each["reason"].split(" is ")[-1] for each in result["skipped_list"]} == {
        "tree/fifo": "a FIFO",
        "tree/link": "a symbolic link",
        "tree/socket": "a socket",
        "tree/half.mrc-part": "one of files that are not whole",
    }
    assert result["error"] == "not all was sent: 4 skipped, see above"
    assert "skipped tree/socket: a socket" in err


def test_a_file_that_went_away_is_skipped_and_the_rest_arrives(tmp_path: Path, box: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in "abc":
        (tmp_path / "tree" / name).write_bytes(name.encode())
    found = source.collect([str(tmp_path / "tree")])
    (tmp_path / "tree" / "b").unlink()
    (tmp_path / "tree" / "c").unlink()
    (tmp_path / "tree" / "c").symlink_to("/etc/passwd")
    assert move(found, box)[:2] == (None, None)
    assert [path.name for path in (box / "tree").iterdir()] == ["a"]
    assert [Path(each.path).name for each in found.skipped] == ["b", "c"]


def test_a_name_as_long_as_names_can_be_arrives(tmp_path: Path, box: Path) -> None:
    names = {"n" * 255, "n" * 254 + "m", "\u00e4" * 127}
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    assert move([tmp_path / name for name in sorted(names)], box)[:2] == (None, None)
    assert {path.name: path.read_bytes().decode() for path in box.iterdir()} == {
        name: name for name in names
    }


def test_a_file_that_says_it_is_empty_is_read_to_its_end(box: Path) -> None:
    assert move(["/proc/version"], box)[:2] == (None, None)
    assert (box / "version").read_bytes() == Path("/proc/version").read_bytes() != b""


@pytest.mark.parametrize(("busy", "quiet"), [(True, False), (True, True), (False, False)])
def test_a_sender_says_that_it_waits_only_for_a_receiver_that_does_not_answer(
    box: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    busy: bool,
    quiet: bool,
) -> None:
    monkeypatch.setattr(send, "_PATIENCE", 0.05)
    found = source.Found()

    async def both() -> None:
        ours, theirs = pipes()
        sending = asyncio.ensure_future(send.send(ours, found, counts(), quiet=quiet))
        files = store.DirectoryStore(str(box), overwrite=False, resume=False)
        if busy:
            await asyncio.sleep(0.2)
        await asyncio.gather(sending, recv.receive(theirs, files, counts()))
        await asyncio.sleep(0.1)

    asyncio.run(both())
    assert ("waiting for the receiver" in capsys.readouterr().err) == (busy and not quiet)


def test_the_json_has_name_size_and_checksum_of_every_file(tmp_path: Path, box: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    _, _, sent, received = move([tmp_path / "a", tmp_path / "b"], box)
    digests = {name: hashlib.sha256(name.encode() * 1000).hexdigest() for name in "ab"}
    assert sent["file_list"] == [
        {"name": name, "size_bytes": 1000, "sha256": digest} for name, digest in digests.items()
    ]
    assert received["file_list"] == sent["file_list"]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path, box: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content(24 << 20))

    def grow(connection: Connection) -> None:
        post = connection.post_send

        async def growing(data: Any, *, imm: int | None = None) -> Any:
            with path.open("ab") as file:
                file.write(b"more")
            return await post(data, imm=imm)

        connection.post_send = growing  # type: ignore[method-assign]

    found = source.collect([str(path)])
    assert move(found, box, meddle=grow)[:2] == (None, None)
    assert found.changed == ["log"]
    assert (box / "log").read_bytes() == content(24 << 20)
    with pytest.raises(CommandError, match="1 changed") as caught:
        send._complain(found)
    assert caught.value.exit_code == ExitCode.FAILED


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
    joined = os.path.normpath(os.path.join("/srv/box", *parts))
    assert joined == "/srv/box/" + name


def test_a_link_in_the_directory_leads_nowhere(tmp_path: Path, box: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (box / "link").symlink_to(outside)
    (box / "leaf").symlink_to(outside / "leaf")
    (box / ("part" + transfer.PART_SUFFIX)).symlink_to(outside / "part")
    files = store.DirectoryStore(str(box), overwrite=True, resume=False)

    def entry(name: str) -> transfer.Entry:
        return transfer.Entry(kind="file", name=name, size=0, mode=0o600, mtime_ns=0)

    with pytest.raises(CommandError, match="link is no directory"):
        files.open(entry("link/x"))
    with pytest.raises(CommandError, match="link is no directory"):
        files.make_directory(entry("link"))
    with pytest.raises(CommandError, match=r"part\.mrc-part is no file of ours"):
        files.open(entry("part"))
    target = files.open(entry("leaf"))
    target.start(0)
    target.commit()
    assert not (box / "leaf").is_symlink()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_fifo_or_device_is_never_replaced(box: Path, overwrite: bool) -> None:
    os.mkfifo(box / "null")
    files = store.DirectoryStore(str(box), overwrite=overwrite, resume=False)
    entry = transfer.Entry(kind="file", name="null", size=0, mode=0o600, mtime_ns=0)
    with pytest.raises(CommandError, match="null exists and is no file but a device"):
        files.open(entry)
    assert (box / "null").is_fifo()


def test_setuid_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    path.chmod(0o4755)
    assert source.collect([str(path)]).items[0].entry.mode == 0o755
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


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
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


def test_what_comes_from_standard_input_is_of_today() -> None:
    before = time.time_ns()
    (item,) = source.collect(["-"]).items
    assert before <= item.entry.mtime_ns <= time.time_ns()
