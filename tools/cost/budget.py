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
    "stream": {"sent": 640, "received": 790, "acknowledged": 224},
    "single packets": {"sent": 1930, "received": 1022, "acknowledged": 551},
    "small messages": {"sent": 828, "received": 802, "acknowledged": 434},
}
"""Instructions a packet, by traffic and share: 5 % more than measured, for other compilers."""
