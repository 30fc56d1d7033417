# SPDX-License-Identifier: Apache-2.0
"""`mrc-paths`: what it lists, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from topologies import TWO_BY_TWO

from mrc.cli import paths


@pytest.fixture
def file(tmp_path: Path) -> str:
    made = tmp_path / "fabric.toml"
    # Addresses that this machine does not have.
    made.write_text(TWO_BY_TWO.replace("fd00::/16", "fdf7::/16"))
    return str(made)


def test_the_paths_are_a_table_for_people(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert paths.main(["c", "--from", "a", "--topology", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "EV      PLANE  PATH     ADDRESS",
        "0x0000  0      a t0a c  fc00:0:100:302::",
        "0x1000  1      a t0a c  fc00:0:1100:1302::",
    ]


def test_the_paths_are_an_object_for_programs(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["b", "--from", "a", "--topology", file, "--json"]
    assert paths.main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["from"], result["to"], result["exit_code"]) == ("a", "b", 0)
    assert result["routing"] == "srv6"
    assert len(result["paths"]) == 4
    assert result["paths"][3] == {
        "ev": 0x1001,
        "plane": 1,
        "uplink": 1,
        "hops": ["a", "t0a", "t1b", "t0b", "b"],
        "usids": [0x1100, 0x1201, 0x1101, 0x1301],
        "address": "fc00:0:1100:1201:1101:1301::",
        "seen": [
            "fc00:0:1100:1201:1101:1301::",
            "fc00:0:1201:1101:1301::",
            "fc00:0:1101:1301::",
            "fc00:0:1301::",
        ],
    }


def test_paths_that_an_ev_names_by_a_bit_field_have_the_hosts_address(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Path(file)
    made.write_text('routing = "stev"\n' + made.read_text())
    assert paths.main(["b", "--from", "a", "--topology", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "EV      PLANE  PATH             ADDRESS",
        "0x0000  0      a t0a t1a t0b b  fdf7::2",
        "0x0800  0      a t0a t1b t0b b  fdf7::2",
        "0x1000  1      a t0a t1a t0b b  fdf7:1::2",
        "0x1800  1      a t0a t1b t0b b  fdf7:1::2",
    ]


def test_hosts_may_be_named_by_an_address(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert paths.main(["fdf7:1::2", "--from", "fdf7::1", "--topology", file, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["from"], result["to"]) == ("a", "b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--from", "a"], "no host 'x'; it has a, b, c"),
        (["fd00:9::2", "--from", "a"], "no host of the topology has the address fd00:9::2"),
        (["a", "--from", "a"], "no path leads from host 'a' to itself"),
        (["b"], "no address of this machine is in the topology; say --from, one of a, b, c"),
    ],
    ids=["unknown host", "unknown address", "itself", "not here"],
)
def test_hosts_that_are_not_there_are_a_usage_error(
    file: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paths.main([*words, "--topology", file]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_file_is_a_usage_error_and_a_missing_one_a_local_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.toml"
    assert paths.main(["b", "--topology", str(file)]) == 6
    file.write_text("planes = 0")
    assert paths.main(["b", "--topology", str(file)]) == 2
    assert f"mrc-paths: {file}:1: there is no 'block'\n" in capsys.readouterr().err
