# SPDX-License-Identifier: Apache-2.0
"""The measurements: `python -m tools.bench`, or `make bench`.

Each module of MODULES measures one thing over the rig and returns rows with their limits; the
programs that it runs in the hosts are stream.py, echo.py, soak.py, bulk.py and mrc-perf.
"""

from __future__ import annotations

MODULES = ("speed", "peers", "latency", "shaped", "loss", "fabric", "failover", "endurance")
