# SPDX-License-Identifier: Apache-2.0
"""The fabric that tests of topologies share.

a, c ─ t0a ─┬─ t1a ─┬─ t0b ─ b        in each of two planes
            └─ t1b ─┘
"""

from __future__ import annotations

TWO_BY_TWO = """\
planes = 2
block = "fc00::/32"
addresses = "fd00::/16"

[[tiers]]
switches = ["t0a", "t0b"]
usid = 0x100
down = { rate = "1Gbit", delay = "100us" }

[[tiers]]
switches = ["t1a", "t1b"]
usid = 0x200
down = { rate = "2.5Gbit", delay = "1ms" }

[hosts]
a = { t0 = "t0a", usid = 0x300 }
b = { t0 = "t0b", usid = 0x301 }
c = { t0 = "t0a", usid = 0x302 }
"""
