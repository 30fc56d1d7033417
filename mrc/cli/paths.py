# SPDX-License-Identifier: Apache-2.0
"""`mrc-paths`: the paths to a host, as the topology file has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from mrc.cli.common import CommandError, ExitCode, Parser, Result, run, write_out
from mrc.planes import discover
from mrc.topology import Host, Path, Topology
from mrc.topology_file import DEFAULT_FILE, load


def _here(topology: Topology) -> Host:
    """The host of the topology that this machine is."""
    for plane in discover(dad_timeout=0.0).planes:
        address = plane.interface.address
        if address is not None and (host := topology.host_of(address)) is not None:
            return host
    names = ", ".join(host.name for host in topology.hosts)
    raise CommandError(
        ExitCode.USAGE, f"no address of this machine is in the topology; say --from, one of {names}"
    )


def _object(topology: Topology, path: Path) -> dict[str, Any]:
    return {
        "ev": topology.ev(path),
        "plane": path.plane,
        "uplink": path.uplink,
        "hops": list(path.hops),
        "usids": list(path.usids),
        "address": str(path.address),
        "seen": [str(address) for address in path.seen],
    }


def _text(topology: Topology, paths: Iterable[Path]) -> str:
    rows = [("EV", "PLANE", "PATH", "ADDRESS")]
    rows += [
        (f"{topology.ev(path):#06x}", str(path.plane), str(path), str(path.address))
        for path in paths
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


async def _paths(arguments: argparse.Namespace, result: Result) -> None:
    topology = load(arguments.topology)
    destination = topology.find_host(arguments.host)
    source = _here(topology) if arguments.source is None else topology.find_host(arguments.source)
    paths = topology.paths(source.name, destination.name)
    result |= {"from": source.name, "to": destination.name, "routing": topology.routing}
    result["paths"] = [_object(topology, path) for path in paths]
    if not arguments.json:
        write_out(_text(topology, paths))


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("mrc-paths", "List the paths to a host: EV, plane, hops, destination address.")
    made.add_argument("host", metavar="HOST", help="its name in the topology, or an address of it")
    made.add_argument(
        "--from",
        dest="source",
        metavar="HOST",
        help="where the paths begin (default: the host that has an address of this machine)",
    )
    made.add_argument(
        "--topology",
        default=DEFAULT_FILE,
        metavar="FILE",
        help=f"the fabric (default: {DEFAULT_FILE})",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(parser(), _paths, argv)
