# SPDX-License-Identifier: Apache-2.0
"""The userspace switch fabric: every switch and link of `topology.toml` in one process.

    host a  p0 ═══ p0-a ┐                        ┌ p0-b ═══ p0  host b      one veth pair a port
            p1 ═══ p1-a ┴ t0a ─ t1a, t1b ─ t0b ─ ┴ p1-b ═══ p1              of a host; the rest is
                                                                            in memory
Only hosts see interfaces. `python -m tools.fabric` is the process; `Fabric` starts it in a network
namespace and speaks to its control socket. What switches do is csrc/fabric, in C.
"""

from __future__ import annotations

from tools.fabric.process import Control, Fabric, FabricError
from tools.fabric.settings import Settings

__all__ = ["Control", "Fabric", "FabricError", "Settings"]
