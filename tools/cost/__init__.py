# SPDX-License-Identifier: Apache-2.0
"""What the core costs, in instructions: repeatable, and alike on all machines of an architecture.

`transfer.c` lets two endpoints carry writes and callgrind counts their instructions. `count.py`
measures, `budget.py` says what each share of the work may cost, `python -m tools.cost` prints it
function by function.
"""
