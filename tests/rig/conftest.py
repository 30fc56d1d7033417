# SPDX-License-Identifier: Apache-2.0
"""The hosts of the tests that make none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig.talker import MBIT

from tools.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Two planes that are slow enough for a middle of a transfer."""
    with Rig(planes=2) as rig:
        for plane in rig.planes:
            plane.rate(MBIT)
        yield rig
