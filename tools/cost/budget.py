# SPDX-License-Identifier: Apache-2.0
"""The traffic that is measured, and what it may cost. `tests/test_cost.py` holds the core to it.

Who makes the core cheaper lowers the budget; who has to raise one says why.
"""

from __future__ import annotations

from typing import Final

from tools.cost.count import Traffic

STREAM: Final = Traffic(size=4 << 20, burst=15)
SINGLE: Final = Traffic(size=4 << 20, burst=1)
SMALL: Final = Traffic(size=64, burst=15)

TRAFFIC: Final = {"stream": STREAM, "single packets": SINGLE, "small messages": SMALL}

BUDGET: Final[dict[str, dict[str, float]]] = {
    "stream": {"sent": 332, "received": 450, "acknowledged": 50},
    "single packets": {"sent": 1900, "received": 912, "acknowledged": 113},
    "small messages": {"sent": 840, "received": 533, "acknowledged": 137},
}
"""Instructions a packet, by traffic and share: 5 % more than measured, for other compilers."""
