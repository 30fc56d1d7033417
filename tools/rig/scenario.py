# SPDX-License-Identifier: Apache-2.0
"""Scenario files: a fabric, workloads beside a timeline of faults, and the shape to be seen.

    about = "What it shows, in a sentence"
    seconds = 12                # of the timeline
    short = 0.5                 # what `--short` multiplies all its times by (this is the default)

    [fabric]                    # hosts a, b, ... in turn on t0a, t0b, ...; each T0 has every T1
    hosts = 2
    planes = 8
    t0 = 2
    t1 = 4
    port = "20Mbit"             # of links to hosts
    uplink = "20Mbit"           # of links between T0 and T1
    delay = "100us"             # of every link

    [switches]                  # tools.fabric.Settings
    [config]                    # mrc.Config of every host

    [[workload]]                # kinds: see `workload.KINDS`
    kind = "bidirectional"
    hosts = ["a", "b"]          # all, if left out
    from = 0                    # seconds; till the end, if `to` is left out
    size = 1048576              # bytes of a message
    messages = 4                # of each flow; without end, if left out

    [[event]]                   # do: down, up, flap, loss of a link; down, up, silent, forward,
    at = 2                      # reboot of a switch
    do = "down"
    plane = 3                   # or a list
    link = "a-t0a"              # or switch = "t1a"

    [[expect]]                  # goodput during a time, as a ratio to that of another time
    during = [3, 4]
    to = [1, 2]
    between = [0.85, 0.90]
    worst = 0.2                 # of the slices of so many seconds the worst; the mean, if left out
    flows = ["a-b"]             # all, if left out

    [[expect]]                  # the same of the step times of a workload that is "training"
    steps = "median"            # or "longest"; to the median
    during = [2.5, 4]
    to = [0, 2]
    between = [0.9, 1.02]

Whatever is wrong is one ScenarioError of one line: "FILE: KEY: what".
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Final

from mrc.config import Config
from mrc.errors import ConfigError
from mrc.topology import Topology
from mrc.topology_file import parse
from tools.fabric import Settings
from tools.rig.workload import KINDS, Flow, WorkloadError

__all__ = ["Event", "Expectation", "Scenario", "ScenarioError", "find", "named"]

FOLDER: Final = Path(__file__).with_name("scenarios")

LINK_VERBS: Final = ("down", "up", "flap", "loss")
SWITCH_VERBS: Final = ("down", "up", "silent", "forward", "reboot")

STEP_KINDS: Final = ("median", "longest")

_MOST_SECONDS: Final = 600.0
_MTU: Final = 4200


class ScenarioError(ValueError):
    """A scenario file is wrong; one line says where."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happens to one link or switch.

    Attributes:
        at: Seconds from the timeline's start.
        do: One of `LINK_VERBS` but flap, which is many of down and up, or of `SWITCH_VERBS`.
        plane: Of the link or switch.
        link: Lower and upper node, or None.
        switch: Its name, or "".
        percent: Of packets lost on the link, each way.
        seconds: That the switch takes to reboot.
    """

    at: float
    do: str
    plane: int
    link: tuple[str, str] | None = None
    switch: str = ""
    percent: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        what = "-".join(self.link) if self.link else self.switch
        extent = f" {self.percent:g} %" if self.do == "loss" else ""
        return f"{what} of plane {self.plane} {self.do}{extent}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectation:
    """Goodput of `flows`, or the time of steps, as a ratio to that during another time.

    Attributes:
        during: From and to, seconds.
        to: The time to compare with.
        between: The least and the largest ratio.
        worst: Seconds of the slices of `during` of which the worst counts; 0: its mean.
        flows: Names; none: all.
        steps: Instead of goodput, of training steps: the "median" or the "longest" time to the
            median; "": goodput.
    """

    during: tuple[float, float]
    to: tuple[float, float]
    between: tuple[float, float]
    worst: float = 0.0
    flows: tuple[str, ...] = ()
    steps: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario as read.

    Attributes:
        name: Of the file.
        about: What it shows.
        seconds: Of the timeline.
        topology: `topology.toml` as text.
        switches: What the fabric is set to.
        config: `mrc.Config` arguments of every host.
        flows: Who sends to whom, and when.
        events: In order of time.
        expectations: What must be seen.
    """

    name: str
    about: str
    seconds: float
    topology: str
    switches: Settings
    config: dict[str, Any]
    flows: tuple[Flow, ...]
    events: tuple[Event, ...]
    expectations: tuple[Expectation, ...]


def named() -> dict[str, str]:
    """The scenarios that come with the rig, and what each shows."""
    return {
        path.stem: tomllib.loads(path.read_text())["about"] for path in sorted(FOLDER.glob("*"))
    }


def find(name: str, *, short: bool = False) -> Scenario:
    """Reads a scenario of the rig by its name, or any by its file's.

    Raises:
        ScenarioError: It is wrong, or there is none.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = path.read_text()
    except OSError as error:
        raise ScenarioError(f"{name}: {error.strerror}; there are {', '.join(named())}") from None
    return read(text, path.name, short=short)


def read(text: str, name: str, *, short: bool = False) -> Scenario:
    """Reads a scenario; `name` is what complaints call the file.

    Raises:
        ScenarioError: It is wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return _Reader(name).scenario(document, short=short)


class _Reader:
    """Takes a scenario out of a document; every complaint names the file and the key."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._scale = 1.0
        self._seconds = 0.0
        self._topology: Topology

    def error(self, key: str, message: str) -> ScenarioError:
        return ScenarioError(f"{self._name}: {key}: {message}")

    def known(self, table: Any, key: str, needed: tuple[str, ...], more: tuple[str, ...]) -> None:
        """Refuses what is no table, lacks a key that is needed, or has one that nobody knows."""
        if not isinstance(table, dict):
            raise self.error(key, "must be a table")
        place = f"{key}." if key else ""
        for each in needed:
            if each not in table:
                raise self.error(f"{place}{each}", "is missing")
        for each in table:
            if each not in needed + more:
                raise self.error(f"{place}{each}", f"unknown; known: {', '.join(needed + more)}")

    def number(self, value: Any, key: str, low: float, high: float) -> float:
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            raise self.error(key, f"must be a number {low:g}..{high:g}, not {value!r}")
        return float(value)

    def count(self, value: Any, key: str, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(key, f"must be a whole number {low}..{high}, not {value!r}")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be a text, not {value!r}")
        return value

    def time(self, value: Any, key: str) -> float:
        """A time of the timeline, scaled."""
        return self._scale * self.number(value, key, 0, self._seconds)

    def span(self, value: Any, key: str) -> tuple[float, float]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.error(key, f"must be [from, to], not {value!r}")
        start, end = (self.time(each, key) for each in value)
        if start >= end:
            raise self.error(key, f"{value[0]} is not before {value[1]}")
        return start, end

    def tables(self, document: dict[str, Any], key: str) -> list[tuple[str, Any]]:
        tables = document.get(key, [])
        if not isinstance(tables, list):
            raise self.error(key, f"must be written [[{key}]]")
        return [(f"{key}[{number}]", table) for number, table in enumerate(tables)]

    def scenario(self, document: dict[str, Any], *, short: bool) -> Scenario:
        self.known(
            document,
            "",
            ("about", "seconds", "fabric", "workload"),
            ("short", "switches", "config", "event", "expect"),
        )
        scale = self.number(document.get("short", 0.5), "short", 0.01, 1)
        self._scale = scale if short else 1.0
        self._seconds = self.number(document["seconds"], "seconds", 0.1, _MOST_SECONDS)
        topology = self.fabric(document["fabric"])
        flows = self.workloads(document)
        events = [
            event
            for key, table in self.tables(document, "event")
            for event in self.events(table, key)
        ]
        return Scenario(
            name=self._name.removesuffix(".toml"),
            about=self.text(document["about"], "about"),
            seconds=self._seconds * self._scale,
            topology=topology,
            switches=self.switches(document.get("switches", {})),
            config=self.config(document.get("config", {})),
            flows=flows,
            events=tuple(sorted(events, key=lambda event: event.at)),
            expectations=tuple(
                self.expectation(table, key, flows)
                for key, table in self.tables(document, "expect")
            ),
        )

    def fabric(self, table: Any) -> str:
        counts = ("hosts", "planes", "t0", "t1")
        self.known(table, "fabric", (*counts, "port", "uplink"), ("delay",))
        hosts, planes, t0, t1 = (
            self.count(table[key], f"fabric.{key}", 1, most)
            for key, most in zip(counts, (26, 16, 26, 26), strict=True)
        )
        text = topology_text(
            hosts=hosts,
            planes=planes,
            t0=t0,
            t1=t1,
            port=table["port"],
            uplink=table["uplink"],
            delay=table.get("delay", "100us"),
        )
        try:
            self._topology = parse(text, "")
        except ConfigError as error:
            raise self.error("fabric", str(error).split(": ", 1)[1]) from None
        return text

    def switches(self, table: Any) -> Settings:
        self.known(table, "switches", (), tuple(f.name for f in dataclasses.fields(Settings)))
        try:
            return Settings(**table)
        except (ValueError, TypeError) as error:
            raise self.error("switches", str(error)) from None

    def config(self, table: Any) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.error("config", "must be a table")
        if "topology" in table:
            raise self.error("config.topology", "the rig's own is taken")
        try:
            Config(**table)
        except ConfigError as error:
            raise self.error("config", str(error)) from None
        return dict(table)

    def workloads(self, document: dict[str, Any]) -> tuple[Flow, ...]:
        names = [host.name for host in self._topology.hosts]
        flows: list[Flow] = []
        for key, table in self.tables(document, "workload"):
            self.known(table, key, ("kind",), ("hosts", "from", "to", "size", "messages"))
            if table["kind"] not in KINDS:
                raise self.error(f"{key}.kind", f"{table['kind']!r} is none of {', '.join(KINDS)}")
            hosts = table.get("hosts", names)
            if not isinstance(hosts, list) or not set(hosts) <= set(names):
                raise self.error(f"{key}.hosts", f"must be of {', '.join(names)}")
            given: dict[str, Any] = {
                "start": self.time(table.get("from", 0), f"{key}.from"),
                "end": self.time(table.get("to", self._seconds), f"{key}.to"),
                "size": self.count(table.get("size", 1 << 20), f"{key}.size", 1, 1 << 24),
                "messages": self.count(table.get("messages", 0), f"{key}.messages", 0, 1 << 20),
            }
            try:
                flows += [Flow(**pair._asdict(), **given) for pair in KINDS[table["kind"]](hosts)]
            except WorkloadError as error:
                raise self.error(f"{key}.hosts", str(error)) from None
        if not flows:
            raise self.error("workload", "nobody sends anything")
        names = [flow.name for flow in flows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise self.error("workload", f"two flows are {sorted(twice)[0]}")
        return tuple(flows)

    def events(self, table: Any, key: str) -> list[Event]:
        """One event of the file: one of each plane, and of each flap."""
        optional = ("link", "switch", "percent", "seconds", "times", "period", "down")
        self.known(table, key, ("at", "do", "plane"), optional)
        if ("link" in table) == ("switch" in table):
            raise self.error(key, "names either a link or a switch")
        verbs = LINK_VERBS if "link" in table else SWITCH_VERBS
        if table["do"] not in verbs:
            raise self.error(f"{key}.do", f"{table['do']!r} is none of {', '.join(verbs)}")
        planes = table["plane"] if isinstance(table["plane"], list) else [table["plane"]]
        last = self._topology.planes - 1
        given: dict[str, Any] = {"at": self.time(table["at"], f"{key}.at"), "do": table["do"]}
        given |= self.place(table, key)
        if table["do"] == "loss":
            percent = self.need(table, key, "percent")
            given["percent"] = self.number(percent, f"{key}.percent", 0, 100)
        if table["do"] == "reboot":
            seconds = self.need(table, key, "seconds")
            given["seconds"] = self._scale * self.number(seconds, f"{key}.seconds", 0.001, 60)
        events = [
            Event(plane=self.count(plane, f"{key}.plane", 0, last), **given) for plane in planes
        ]
        if table["do"] != "flap":
            return events
        return [each for event in events for each in self.flaps(event, table, key)]

    def need(self, table: dict[str, Any], key: str, name: str) -> Any:
        if name not in table:
            raise self.error(f"{key}.{name}", f"is missing, as {table['do']!r} needs it")
        return table[name]

    def place(self, table: dict[str, Any], key: str) -> dict[str, Any]:
        """The link or the switch that an event is about."""
        cables = {(cable.lower, cable.upper) for cable in self._topology.cables()}
        if "switch" in table:
            switches = sorted({upper for _, upper in cables})
            if table["switch"] not in switches:
                raise self.error(
                    f"{key}.switch", f"{table['switch']!r} is none of {', '.join(switches)}"
                )
            return {"switch": table["switch"]}
        link = tuple(self.text(table["link"], f"{key}.link").split("-"))
        if link not in cables:
            raise self.error(
                f"{key}.link", f"there is no {table['link']!r}; links are like 'a-t0a', 't0a-t1a'"
            )
        return {"link": link}

    def flaps(self, event: Event, table: dict[str, Any], key: str) -> list[Event]:
        """Down and up, so many times."""
        times = self.count(self.need(table, key, "times"), f"{key}.times", 1, 1000)
        period = self._scale * self.number(self.need(table, key, "period"), f"{key}.period", 0, 60)
        down = self._scale * self.number(self.need(table, key, "down"), f"{key}.down", 0, 60)
        if not 0 < down < period:
            raise self.error(f"{key}.down", "must be a part of the period")
        starts = [event.at + period * number for number in range(times)]
        return [
            dataclasses.replace(event, at=at, do=do)
            for start in starts
            for at, do in ((start, "down"), (start + down, "up"))
        ]

    def expectation(self, table: Any, key: str, flows: tuple[Flow, ...]) -> Expectation:
        self.known(table, key, ("during", "to", "between"), ("worst", "flows", "steps"))
        between = table["between"]
        if not isinstance(between, list) or len(between) != 2:
            raise self.error(f"{key}.between", f"must be [least, most], not {between!r}")
        low, high = (self.number(each, f"{key}.between", 0, 100) for each in between)
        names = {flow.name for flow in flows}
        chosen = table.get("flows", [])
        if not isinstance(chosen, list) or not set(chosen) <= names:
            raise self.error(f"{key}.flows", f"must be of {', '.join(sorted(names))}")
        steps = table.get("steps", "")
        if "steps" in table and (steps not in STEP_KINDS or "worst" in table or "flows" in table):
            kinds = ", ".join(STEP_KINDS)
            raise self.error(f"{key}.steps", f"{steps!r} is none of {kinds}, or not of goodput")
        if steps and not any(flow.trains for flow in flows):
            raise self.error(f"{key}.steps", "nobody trains")
        return Expectation(
            during=self.span(table["during"], f"{key}.during"),
            to=self.span(table["to"], f"{key}.to"),
            between=(low, high),
            worst=self.number(table.get("worst", 0), f"{key}.worst", 0, 60),
            flows=tuple(chosen),
            steps=steps,
        )


def topology_text(
    *, hosts: int, planes: int, t0: int, t1: int, port: object, uplink: object, delay: object
) -> str:
    """A `topology.toml`: hosts a, b, ... in turn on T0s t0a, t0b, ..., over T1s t1a, t1b, ..."""

    def letters(count: int) -> str:
        return "abcdefghijklmnopqrstuvwxyz"[:count]

    def tier(stem: str, count: int, usid: int, rate: object) -> str:
        switches = ", ".join(f'"{stem}{letter}"' for letter in letters(count))
        return (
            f"[[tiers]]\nswitches = [{switches}]\nusid = {usid:#x}\n"
            f'down = {{ rate = "{rate}", delay = "{delay}" }}\n'
        )

    lines = [
        f'planes = {planes}\nblock = "fc00::/32"\naddresses = "fd00::/16"\nmtu = {_MTU}',
        tier("t0", t0, 0x100, port) + tier("t1", t1, 0x200, uplink) + "[hosts]",
        *(
            f'{letter} = {{ t0 = "t0{letters(t0)[number % t0]}", usid = {0x300 + number:#x} }}'
            for number, letter in enumerate(letters(hosts))
        ),
    ]
    return "\n".join(lines) + "\n"
