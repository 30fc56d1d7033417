# SPDX-License-Identifier: Apache-2.0
"""Prints what the core costs, in instructions a packet, function by function.

With names, only those: of traffic ("stream", "single packets", "small messages"), or of a share of
the work ("sent", "received", "acknowledged").
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.cost.budget import BUDGET, TRAFFIC
from tools.cost.count import SHARES, Cost, CountError, build, count


def _table(cost: Cost, least: float) -> str:
    rows = [
        (instructions / cost.packets, f"{file}: {function}" if file else function)
        for (file, function), instructions in cost.functions.most_common()
    ]
    rows += [
        (instructions / cost.packets, f"(not counted) {function}")
        for function, instructions in cost.library.most_common()
    ]
    return "\n".join(f"{each:10.1f}  {name}" for each, name in rows if each >= least)


def main() -> int:
    """Runs the command; returns its exit code: 0, or 1 when nothing could be counted."""
    parser = argparse.ArgumentParser(prog="python -m tools.cost", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *TRAFFIC, *SHARES], metavar="NAME")
    parser.add_argument("--least", type=float, default=1, help="instructions to be worth a line")
    arguments = parser.parse_args()
    names = set(arguments.names)
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = build(Path(folder))
            for traffic in [each for each in TRAFFIC if each in names] or TRAFFIC:
                for share in [each for each in SHARES if each in names] or SHARES:
                    cost = count(program, TRAFFIC[traffic], share)
                    budget = BUDGET[traffic][share]
                    print(f"{traffic}, {share}: {cost.each:.1f} of {budget:g}", end="")
                    print(f", {cost.sacks} SACKs for {cost.packets}" if cost.sacks else "")
                    print(_table(cost, arguments.least), end="\n\n")
    except CountError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
