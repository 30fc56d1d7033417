# SPDX-License-Identifier: Apache-2.0
"""The command: measures, prints tables or JSON; 0 if all limits hold, 1 if not, 130 by Ctrl-C."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from tools.bench import MODULES
from tools.bench.lab import BenchError
from tools.bench.report import Options, Row, as_markdown, for_people, say
from tools.rig import RigError

MISSED = 1
NO_ROOT = 77
INTERRUPTED = 130


def environment() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "tcp_congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control")
        .read_text()
        .strip(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the result as JSON")
    form.add_argument("--markdown", action="store_true", help="the tables in Markdown")
    parser.add_argument("--trials", type=int, help="how often each measurement is repeated")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MODULES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    if arguments.trials is not None and arguments.trials < 1:
        parser.error("--trials is at least 1")
    return arguments


def _run(names: list[str], options: Options, form: str) -> int:
    found: dict[str, list[Row]] = {}
    errors: dict[str, str] = {}
    for name in names:
        say(f"{name} ...")
        try:
            found[name] = importlib.import_module(f"tools.bench.{name}").measure(options)
        except (BenchError, RigError, OSError, subprocess.SubprocessError) as error:
            errors[name] = str(error)
            print(f"{name} failed: {error}", file=sys.stderr)
            continue
        if form == "markdown":
            print(f"\n### {name}\n\n{as_markdown(found[name])}", flush=True)
        elif form == "people":
            print(f"\n{name}\n{for_people(found[name])}", flush=True)
    if form == "json":
        benches = {name: [row.json() for row in rows] for name, rows in found.items()}
        result = {"schema_version": 1, "quick": options.quick, "environment": environment()}
        print(json.dumps({**result, "benches": benches, "errors": errors}))
    held = all(row.ok for rows in found.values() for row in rows)
    return 0 if held and not errors else MISSED


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments()
    if os.geteuid() != 0:
        print("the benches make network namespaces: run them as root", file=sys.stderr)
        return NO_ROOT
    options = Options(quick=arguments.quick, trials=arguments.trials)
    try:
        form = "json" if arguments.json else "markdown" if arguments.markdown else "people"
        return _run(arguments.names or list(MODULES), options, form)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is removed", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
