# SPDX-License-Identifier: Apache-2.0
"""The hosts of the tests that make none of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.probed import heal
from rig.talker import MBIT
from topologies import TWO_BY_TWO

from tools.rig import Rig
from tools.rig.fabric_rig import FabricRig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Two planes that are slow enough for a middle of a transfer."""
    with Rig(planes=2) as rig:
        for plane in rig.planes:
            plane.rate(MBIT)
        yield rig


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The topology of `fabric`."""
    made = tmp_path_factory.mktemp("fabric") / "topology.toml"
    made.write_text(TWO_BY_TWO)
    return str(made)


@pytest.fixture(scope="session")
def shared_fabric(file: str) -> Iterator[FabricRig]:
    with FabricRig(Path(file)) as rig:
        yield rig


@pytest.fixture
def fabric(shared_fabric: FabricRig) -> Iterator[FabricRig]:
    """A fabric of two planes that nothing is wrong with."""
    yield shared_fabric
    heal(shared_fabric)
