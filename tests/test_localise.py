# SPDX-License-Identifier: Apache-2.0
"""The fault that is named is the one that was made, and what works is never blamed."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topologies import TWO_BY_TWO

from mrc.localise import Element, elements, localise
from mrc.topology import Path, Topology
from mrc.topology_file import parse

THREE_BY_THREE = parse(
    """\
planes = 2
block = "fc00::/32"
addresses = "fd00::/16"
[[tiers]]
switches = ["t0a", "t0b", "t0c"]
usid = 0x100
down = { rate = "1Gbit", delay = "1us" }
[[tiers]]
switches = ["t1a", "t1b", "t1c"]
usid = 0x200
down = { rate = "1Gbit", delay = "1us" }
[hosts]
a = { t0 = "t0a", usid = 0x300 }
b = { t0 = "t0b", usid = 0x301 }
c = { t0 = "t0c", usid = 0x302 }
d = { t0 = "t0a", usid = 0x303 }
"""
)


def every_path(topology: Topology) -> list[Path]:
    names = [host.name for host in topology.hosts]
    return [path for pair in permutations(names, 2) for path in topology.paths(*pair)]


ALL = every_path(THREE_BY_THREE)
ELEMENTS = sorted({element for path in ALL for element in elements(path)})


def split(paths: list[Path], dead: set[Element]) -> tuple[list[Path], list[Path]]:
    good = [path for path in paths if dead.isdisjoint(elements(path))]
    return good, [path for path in paths if path not in good]


def test_a_path_crosses_its_switches_and_links_whichever_way_it_is_gone() -> None:
    there, *_ = THREE_BY_THREE.paths("a", "b")
    back, *_ = THREE_BY_THREE.paths("b", "a")
    assert set(elements(there)) == set(elements(back))
    assert list(map(str, elements(there))) == [
        *("switch t0a", "switch t1a", "switch t0b"),
        *("link a-t0a", "link t0a-t1a", "link t0b-t1a", "link b-t0b"),
    ]


@pytest.mark.parametrize("dead", [each for each in ELEMENTS if each.plane == 0], ids=str)
def test_one_dead_element_is_found_and_alone_where_every_host_was_heard(dead: Element) -> None:
    good, bad = split(ALL, {dead})
    (fault,) = localise(good, bad)
    assert dead in fault.elements
    assert set(fault.ways) == set(bad)
    # A switch cannot be told from the only link of the only host that it leads to.
    assert len(fault.elements) == 1 or {"b", "c"} & set().union(
        *(each.nodes for each in fault.elements)
    )


def test_between_two_hosts_a_dead_middle_is_one_fault_of_three_elements() -> None:
    paths = parse(TWO_BY_TWO).paths("a", "b")
    good, bad = split(paths, {Element(1, ("t1b",))})
    (fault,) = localise(good, bad)
    assert str(fault) == "link t0a-t1b or link t0b-t1b or switch t1b of plane 1"


@given(
    paths=st.sets(st.sampled_from(ALL), min_size=1),
    dead=st.sets(st.sampled_from(ELEMENTS), max_size=4),
)
def test_what_works_is_never_blamed_and_all_that_fails_is_explained(
    paths: set[Path], dead: set[Element]
) -> None:
    good, bad = split(sorted(paths, key=ALL.index), dead)
    faults = localise(good, bad)
    innocent = {element for path in good for element in elements(path)}
    assert all(innocent.isdisjoint(fault.elements) for fault in faults)
    assert {path for fault in faults for path in fault.ways} == set(bad)
    assert sum(len(fault.ways) for fault in faults) == len(bad)


@given(bad=st.sets(st.sampled_from(ALL), max_size=20))
def test_the_order_of_the_paths_does_not_matter(bad: set[Path]) -> None:
    good = [path for path in ALL if path not in bad]
    listed = sorted(bad, key=ALL.index)
    assert localise(good, listed) == localise(good[::-1], listed[::-1])


def test_a_bad_path_of_good_elements_alone_is_explained_by_none() -> None:
    there, *_ = THREE_BY_THREE.paths("a", "b")
    assert localise([there], [there]) == []
