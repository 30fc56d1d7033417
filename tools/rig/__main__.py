# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.rig`: a rig that stays, scenarios, and the removal of what killed runs left.

Ends with 0, with 1 when the kernel or a tool refused or a scenario's expectation is broken, with 2
when the arguments make no sense; `exec` ends as its program does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.fabric import FabricError
from tools.rig import names, picture, runner, scenario, shell
from tools.rig.rig import IPFamily, Rig

IP: dict[str, IPFamily] = {"4": 4, "6": 6, "ll": "ll"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "up":
            _up(args)
        elif args.command == "exec":
            netns = f"{args.prefix}-{args.host}"
            os.execvp("ip", ["ip", "netns", "exec", netns, args.program, *args.args])
        elif args.command == "down":
            names.remove(names.staying(args.prefix))
        elif args.command == "run":
            return _run(args)
        elif args.command == "status":
            _status(args.prefix)
        else:
            for name in names.clean(args.prefix):
                print(f"removed {name}")
    except (shell.RigError, FabricError) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.rig", description="Plays at hosts.")
    parser.add_argument("--prefix", default=names.PREFIX, help="of the namespaces' names")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build a rig that stays, and print what to paste")
    up.add_argument("--hosts", default="a,b", help="their names, with commas")
    up.add_argument("--planes", type=int, default=4)
    up.add_argument("--mtu", type=int, default=4200, help="in bytes of an IP packet")
    up.add_argument("--ip", choices=IP, default="6", help="the addresses: ll is link-local")
    up.add_argument("--rate", type=float, metavar="MBIT", help="of every plane and direction")
    commands.add_parser("down", help="remove it")
    commands.add_parser("status", help="list all rigs, and the planes of the one that stays")
    run = commands.add_parser("run", help="run a scenario in a rig of its own, and judge it")
    run.add_argument("scenario", help=f"FILE.toml, or one of {', '.join(scenario.named())}")
    run.add_argument("--json", action="store_true", help="print everything that was seen")
    run.add_argument("--picture", type=Path, metavar="FILE.png", help="draw it (matplotlib)")
    run.add_argument("--seed", type=int, help="of the fabric's fates, instead of the scenario's")
    run.add_argument("--short", action="store_true", help="its short form")
    inside = commands.add_parser("exec", help="run a program in a host")
    inside.add_argument("host")
    inside.add_argument("program")
    inside.add_argument("args", nargs=argparse.REMAINDER)
    commands.add_parser("clean", help="remove the rigs of processes that are gone")
    return parser


def _up(args: argparse.Namespace) -> None:
    rig = Rig(
        args.hosts.split(","),
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
    print(_advice(rig))


def _advice(rig: Rig) -> str:
    """What a person may want to paste next."""
    a, b = rig.hosts[:2]
    last = rig.planes[-1]
    p, hub, chain = last.interface, last.hub, f"netdev {last.interface} {a.label}_{b.label}"
    nft = f"ip netns exec {hub} nft"
    address = a.addresses[last.number]
    restore = f"ip -n {a.name} address replace {address} dev {p}"
    lines = [
        "# A transfer from one host to the other:",
        f"ip netns exec {b.name} mrc-recv --once /tmp",
        f"ip netns exec {a.name} mrc-send FILE {b.address(0)}",
        f"# {p} goes down at {a.label}, and {b.label} loses its carrier; up again:",
        f"ip -n {a.name} link set {p} down; ip -n {hub} link set {p}-{b.label} down",
        f"ip -n {hub} link set {p}-{b.label} up; ip -n {a.name} link set {p} up; {restore}",
        f"# {p} loses all frames from {a.label} to {b.label}; 5 % of them; none any more:",
        f"{nft} insert rule {chain} drop",
        f"{nft} insert rule {chain} numgen random mod 100 '<' 5 drop",
        f"{nft} 'flush chain {chain}; add rule {chain} fwd to {p}-{b.label}'",
        f"# {p} carries 200 Mb/s from {a.label}; as much as it can:",
        f"tc -n {a.name} qdisc replace dev {p} root tbf rate 200mbit burst 80000 limit 330000",
        f"tc -n {a.name} qdisc replace dev {p} root noqueue",
        "# What there is, and the end of it:",
        "python -m tools.rig" + _prefix_option(rig.prefix) + " status",
        "python -m tools.rig" + _prefix_option(rig.prefix) + " down",
    ]
    return "\n".join(lines)


def _prefix_option(prefix: str) -> str:
    return "" if prefix == names.PREFIX else f" --prefix {prefix}"


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


def _status(prefix: str) -> None:
    """Prints a line for each namespace, and for each interface of those that stay."""
    for name, pid in names.owned(prefix).items():
        alive = Path(f"/proc/{pid}").exists()
        print(f"{name}  {f'of process {pid}' if alive else 'left over'}")
    for name in names.staying(prefix):
        print(f"{name}  stays")
        for link in json.loads(shell.run(["ip", "-n", name, "-s", "-j", "address", "show"])):
            if link["ifname"] == "lo":
                continue
            addresses = " ".join(each["local"] for each in link["addr_info"])
            received, sent = (link["stats64"][way]["bytes"] for way in ("rx", "tx"))
            print(
                f"  {link['ifname']:8} {link['operstate']:14} mtu {link['mtu']:<5} "
                f"received {received} B, sent {sent} B  {addresses}"
            )


if __name__ == "__main__":
    sys.exit(main())
