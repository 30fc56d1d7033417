# SPDX-License-Identifier: Apache-2.0
"""Scenario files: each comes with the rig whole, and whatever is wrong is one line with its key."""

from __future__ import annotations

import pytest

from tools.rig import scenario

GOOD = """
about = "A link goes down"
seconds = 4
[fabric]
hosts = 4
planes = 2
t0 = 2
t1 = 2
port = "20Mbit"
uplink = "20Mbit"
[[workload]]
kind = "bidirectional"
hosts = ["a", "b"]
[[event]]
at = 2
do = "down"
plane = [0, 1]
link = "t0a-t1b"
[[expect]]
during = [2.5, 3.5]
to = [1, 2]
between = [0.9, 1.1]
"""


def test_times_of_the_short_form_are_shorter_all_alike() -> None:
    whole = scenario.read(GOOD, "x.toml")
    short = scenario.read(GOOD, "x.toml", short=True)
    assert (whole.seconds, short.seconds) == (4, 2)
    assert [event.at for event in short.events] == [1, 1]
    assert short.expectations[0].during == (1.25, 1.75)
    assert [flow.end for flow in short.flows] == [2, 2]


def test_an_event_of_several_planes_befalls_each() -> None:
    events = scenario.read(GOOD, "x.toml").events
    assert [(event.plane, event.link) for event in events] == [
        (0, ("t0a", "t1b")),
        (1, ("t0a", "t1b")),
    ]


def test_a_flap_is_down_and_up_so_many_times() -> None:
    flap = 'do = "flap"\ntimes = 2\nperiod = 0.5\ndown = 0.1'
    text = GOOD.replace('do = "down"', flap).replace("[0, 1]", "0")
    events = scenario.read(text, "x.toml").events
    assert [(event.at, event.do) for event in events] == [
        (2, "down"),
        (2.1, "up"),
        (2.5, "down"),
        (2.6, "up"),
    ]


@pytest.mark.parametrize(
    ("kind", "flows"),
    [
        ("bidirectional", {"a-b", "b-a"}),
        ("incast", {"b-a", "c-a", "d-a"}),
        ("ring", {"a-b", "b-c", "c-d", "d-a"}),
        ("permutation", {"a-d", "b-a", "c-b", "d-c"}),
    ],
)
def test_a_workload_is_these_flows(kind: str, flows: set[str]) -> None:
    hosts = 'hosts = ["a", "b"]'
    text = GOOD.replace("bidirectional", kind)
    text = text if kind == "bidirectional" else text.replace(hosts, "")
    assert {flow.name for flow in scenario.read(text, "x.toml").flows} == flows


def test_a_flow_of_a_permutation_never_stays_under_one_t0() -> None:
    text = GOOD.replace('hosts = ["a", "b"]', "").replace("bidirectional", "permutation")
    for hosts in (2, 4, 6, 8):
        read = scenario.read(text.replace("hosts = 4", f"hosts = {hosts}"), "x.toml")
        assert all((ord(f.source) - ord(f.destination)) % 2 for f in read.flows)


@pytest.mark.parametrize("name", scenario.named())
@pytest.mark.parametrize("short", [False, True])
def test_every_scenario_of_the_rig_can_be_read(name: str, short: bool) -> None:
    read = scenario.find(name, short=short)
    assert read.expectations
    assert all(each.during[1] <= read.seconds for each in read.expectations)
    assert all(event.at <= read.seconds for event in read.events)


WRONG = {
    "no TOML": ("seconds = 4", "seconds = = 4", "x.toml: Invalid value (at line 3, column 11)"),
    "a key is missing": ("seconds = 4", "", "x.toml: seconds: is missing"),
    "an unknown key": (
        "seconds = 4",
        "seconds = 4\nspeed = 1",
        "x.toml: speed: unknown; known: about, seconds, fabric, workload, "
        "short, switches, config, event, expect",
    ),
    "too long": ("seconds = 4", "seconds = 4000", "x.toml: seconds: must be a number 0.1..600, "),
    "no number": ("seconds = 4", 'seconds = "4"', "x.toml: seconds: must be a number 0.1..600, "),
    "too many planes": (
        "planes = 2",
        "planes = 17",
        "x.toml: fabric.planes: must be a whole number 1..16, not 17",
    ),
    "half a plane": ("planes = 2", "planes = 2.5", "x.toml: fabric.planes: must be a whole number"),
    "no rate": ('port = "20Mbit"', 'port = "fast"', "x.toml: fabric: tiers.0.down.rate must be"),
    "an unknown setting": ("[fabric]", "[config]\nev = 3\n[fabric]", "x.toml: config: there is no"),
    "a topology of its own": (
        "[fabric]",
        '[config]\ntopology = "t"\n[fabric]',
        "x.toml: config.topology: the rig's own is taken",
    ),
    "no such switch setting": (
        "[fabric]",
        "[switches]\nmark = 3\n[fabric]",
        "x.toml: switches.mark: unknown",
    ),
    "marks upside down": (
        "[fabric]",
        "[switches]\nmark_from = 3\nmark_to = 2\n[fabric]",
        "x.toml: switches: mark_to, 2, is below mark_from, 3",
    ),
    "no such workload": (
        "bidirectional",
        "gossip",
        "x.toml: workload[0].kind: 'gossip' is none of stream, ",
    ),
    "an unknown host": ('["a", "b"]', '["a", "z"]', "x.toml: workload[0].hosts: must be of a, "),
    "one host": ('["a", "b"]', '["a"]', "x.toml: workload[0].hosts: two hosts, not 1"),
    "two flows of one name": (
        "[[event]]",
        '[[workload]]\nkind = "stream"\nhosts = ["a", "b"]\n[[event]]',
        "x.toml: workload: two flows are a-b",
    ),
    "after the end": ("at = 2", "at = 5", "x.toml: event[0].at: must be a number 0..4, not 5"),
    "no such verb": ('"down"', '"explode"', "x.toml: event[0].do: 'explode' is none of down, up, "),
    "no such link": (
        "t0a-t1b",
        "t0a-t0b",
        "x.toml: event[0].link: there is no 't0a-t0b'; links are like 'a-t0a', 't0a-t1a'",
    ),
    "no such switch": (
        'link = "t0a-t1b"',
        'switch = "t2a"',
        "x.toml: event[0].switch: 't2a' is none of t0a, t0b, t1a, t1b",
    ),
    "neither link nor switch": ('link = "t0a-t1b"', "", "x.toml: event[0]: names either a link"),
    "no such plane": ("[0, 1]", "2", "x.toml: event[0].plane: must be a whole number 0..1, not 2"),
    "a loss of nothing": (
        '"down"',
        '"loss"',
        "x.toml: event[0].percent: is missing, as 'loss' needs it",
    ),
    "a flap of a whole period": (
        'do = "down"',
        'do = "flap"\ntimes = 1\nperiod = 1\ndown = 1',
        "x.toml: event[0].down: must be a part of the period",
    ),
    "time runs backwards": ("to = [1, 2]", "to = [2, 1]", "x.toml: expect[0].to: 2 is not before"),
    "no such flow": (
        "between",
        'flows = ["a-c"]\nbetween',
        "x.toml: expect[0].flows: must be of a-b, b-a",
    ),
    "steps of no kind": (
        "between = [0.9",
        'steps = "mean"\nbetween = [0.9',
        "x.toml: expect[0].steps: 'mean' is none of median, longest, or not of goodput",
    ),
    "steps of nobody": (
        "between = [0.9",
        'steps = "median"\nbetween = [0.9',
        "x.toml: expect[0].steps: nobody trains",
    ),
    "no limits": ("[0.9, 1.1]", "0.9", "x.toml: expect[0].between: must be [least, most], not 0.9"),
}


@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_a_scenario_that_is_wrong_is_refused_in_one_line_with_file_and_key(
    old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(scenario.ScenarioError) as caught:
        scenario.read(GOOD.replace(old, new, 1), "x.toml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_scenario_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(scenario.ScenarioError, match=r"no-such: No such file.*paper-f9a"):
        scenario.find("no-such")
