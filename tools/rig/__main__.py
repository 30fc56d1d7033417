# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.rig`: a rig that stays, scenarios, and the removal of what killed runs left.

Ends with 0, with 1 when the kernel or a tool refused or a scenario's expectation is broken, with 2
when the arguments make no sense; `exec` ends as its program does.
"""

from __future__ import annotations

import argparse
import json
import os
import string
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.fabric import FabricError, Settings
from tools.rig import advice, listing, names, picture, runner, scenario, shell, staying
from tools.rig.rig import IPFamily, Rig
from tools.rig.site import Site

IP: dict[str, IPFamily] = {"4": 4, "6": 6, "ll": "ll"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        names.check_prefix(args.prefix)
        if args.command == "exec":
            netns = f"{args.prefix}-{args.host}"
            os.execvp("ip", ["ip", "netns", "exec", netns, args.program, *args.args])
        return COMMANDS[args.command](args)
    except (shell.RigError, FabricError) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.rig", description="Plays at hosts.")
    parser.add_argument("--prefix", default=names.PREFIX, help="of the namespaces' names")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_up(commands.add_parser("up", help="build a rig that stays, and print what to paste"))
    down = commands.add_parser("down", help="remove it, and what killed runs have left")
    status = commands.add_parser("status", help="list all rigs, and the one that stays in full")
    order = commands.add_parser("order", help="give its userspace fabric an order")
    order.add_argument("order", help="a JSON object, as python -m tools.fabric takes it")
    run = commands.add_parser("run", help="run a scenario in a rig of its own, and judge it")
    run.add_argument("scenario", help=f"FILE.toml, or one of {', '.join(scenario.named())}")
    run.add_argument("--picture", type=Path, metavar="FILE.png", help="draw it (matplotlib)")
    run.add_argument("--seed", type=int, help="of the fabric's fates, instead of the scenario's")
    run.add_argument("--short", action="store_true", help="its short form")
    inside = commands.add_parser("exec", help="run a program in a host")
    inside.add_argument("host")
    inside.add_argument("program")
    inside.add_argument("args", nargs=argparse.REMAINDER)
    clean = commands.add_parser("clean", help="remove the rigs of processes that are gone")
    for each in (down, status, run, clean):
        each.add_argument("--json", action="store_true", help="print it as one JSON object")
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--hosts", default="a,b", help="their names with commas, or how many")
    up.add_argument("--planes", type=int, default=4)
    up.add_argument("--rate", type=float, metavar="MBIT", help="of every link and direction")
    up.add_argument("--json", action="store_true", help="print it as one JSON object")
    bare = up.add_argument_group("planes that are bare cables")
    bare.add_argument("--mtu", type=int, default=4200, help="in bytes of an IP packet")
    bare.add_argument("--ip", choices=IP, default="6", help="the addresses: ll is link-local")
    switched = up.add_argument_group("planes of switches")
    switched.add_argument("--topology", type=Path, metavar="FILE.toml", help="hosts and all")
    switched.add_argument("--t0", type=int, help="how many a plane; the hosts in turn on each")
    switched.add_argument("--t1", type=int, help="how many a plane, each linked to every T0")
    switched.add_argument("--switches", choices=("userspace", "kernel"), default="userspace")


def _host_names(text: str) -> list[str]:
    """`a,b` as it is, `2` as the first letters."""
    if not text.isdecimal():
        return text.split(",")
    if not 2 <= int(text) <= len(string.ascii_lowercase):
        raise ValueError(f"{text} hosts have no letters: give their names")
    return list(string.ascii_lowercase[: int(text)])


def _topology(args: argparse.Namespace) -> str | None:
    """The text of the topology that the arguments describe; None: bare planes."""
    if args.topology is not None:
        try:
            text: str = args.topology.read_text()
        except OSError as error:
            raise ValueError(f"{args.topology}: {error.strerror}") from None
        return text
    if args.t0 is None and args.t1 is None:
        return None
    hosts = _host_names(args.hosts)
    if hosts != list(string.ascii_lowercase[: len(hosts)]):
        raise ValueError("hosts of other names than a, b, c, ... need a --topology")
    t0, t1 = (1 if count is None else count for count in (args.t0, args.t1))
    counts = {"planes": args.planes, "t0": t0, "t1": t1}
    if not all(1 <= count <= len(string.ascii_lowercase) for count in counts.values()):
        raise ValueError("there are 1 to 26 planes, T0 and T1 each")
    rate = f"{round((args.rate or 1000) * 1e6)}bit"
    return scenario.topology_text(**counts, hosts=len(hosts), port=rate, uplink=rate, delay="100us")


def _up(args: argparse.Namespace) -> int:
    began = time.monotonic()
    text = _topology(args)
    if text is None:
        site: Site = _bare(args)
    else:
        kernel = args.switches == "kernel"
        site = staying.up(text, kernel=kernel, prefix=args.prefix, settings=Settings())
    seconds = time.monotonic() - began
    if args.json:
        hosts = [
            {"name": host.label, "namespace": host.name, "addresses": host.addresses}
            for host in site.hosts
        ]
        file = None if text is None else str(staying.topology_file(args.prefix))
        print(json.dumps({"hosts": hosts, "topology": file, "built_s": round(seconds, 3)}))
    else:
        print(*advice.lines(site), sep="\n")
    return 0


def _bare(args: argparse.Namespace) -> Rig:
    rig = Rig(
        _host_names(args.hosts),
        args.planes,
        mtu=args.mtu,
        ip=IP[args.ip],
        prefix=args.prefix,
        stay=True,
    )
    rig.start()
    for plane in rig.planes:
        if args.rate is not None:
            plane.rate(args.rate)
    return rig


def _down(args: argparse.Namespace) -> int:
    return _tell_removed(args, staying.down(args.prefix))


def _clean(args: argparse.Namespace) -> int:
    return _tell_removed(args, names.clean(args.prefix))


def _tell_removed(args: argparse.Namespace, removed: list[str]) -> int:
    if args.json:
        print(json.dumps({"removed": removed}))
    else:
        for name in removed:
            print(f"removed {name}")
    return 0


def _order(args: argparse.Namespace) -> int:
    """Gives the fabric an order, and prints its answer."""
    order = json.loads(args.order)
    if not isinstance(order, dict) or "do" not in order:
        raise ValueError('an order is an object with a "do"')
    with staying.control(args.prefix) as fabric:
        print(json.dumps(fabric.order(order.pop("do"), order)))
    return 0


def _run(args: argparse.Namespace) -> int:
    """Runs a scenario; 1 if something was not as expected."""
    chosen = scenario.find(args.scenario, short=args.short)
    if args.picture is not None:
        picture.need_matplotlib()
    record = runner.run(chosen, seed=args.seed, prefix=args.prefix)
    if args.picture is not None:
        picture.draw(record, args.picture)
    verdicts = record.verdicts()
    if args.json:
        print(json.dumps(record.as_json()))
    else:
        print(f"{chosen.name}: {chosen.about}")
        print(*verdicts, *(f"error: {error}" for error in record.errors), sep="\n")
    return 0 if all(each.kept for each in verdicts) and not record.errors else 1


def _status(args: argparse.Namespace) -> int:
    found = listing.status(args.prefix)
    if args.json:
        print(json.dumps(found))
    else:
        for line in listing.for_people(found):
            print(line)
    return 0


COMMANDS = {
    "up": _up,
    "down": _down,
    "status": _status,
    "order": _order,
    "run": _run,
    "clean": _clean,
}


if __name__ == "__main__":
    sys.exit(main())
