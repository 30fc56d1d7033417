# SPDX-License-Identifier: Apache-2.0
"""Which interfaces a command takes as planes and why not the others: `--verbose`, `--dry-run`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mrc.cli.common import Result, planes_from, say
from mrc.cli.worker import Worker

if TYPE_CHECKING:
    from mrc.planes import Discovery, LocalPlane

__all__ = ["explain_planes"]


def _words(plane: LocalPlane) -> str:
    interface = plane.interface
    named = f" ({plane.id})" if plane.id else ""
    address = f"{interface.address}/{interface.prefix}" if interface.address else "no address"
    parts = [
        f"plane {plane.number}{named}: {interface.name}",
        *([f"on {interface.parent}"] if interface.parent else []),
        address,
        f"MTU {interface.mtu}",
        "up" if interface.up else "down",
    ]
    return ", ".join(parts)


def _lines(found: Discovery) -> list[str]:
    """One for each interface."""
    return [
        *(_words(plane) for plane in found.planes),
        *(f"no plane: {name}, {why}" for name, why in found.excluded.items()),
    ]


async def explain_planes(arguments: argparse.Namespace, result: Result) -> None:
    """Says of every interface what it would be used for; `--dry-run` has it in the JSON too.

    Needs no capability.

    Raises:
        ConfigError: A named interface does not exist, or is named twice.
        OSError: The kernel does not tell.
    """
    if not (arguments.verbose or arguments.dry_run):
        return
    from mrc.planes import discover  # noqa: PLC0415  (not for --help)

    worker = Worker("mrc-planes")
    found = await worker.submit(discover, planes_from(arguments))
    worker.close()
    for line in _lines(found):
        say(arguments.command, line)
    if arguments.dry_run:
        result["dry_run"] = True
        result["planes"] = {
            plane.interface.name: {
                "id": plane.id,
                "parent": plane.interface.parent,
                "address": str(plane.interface.address or ""),
                "mtu_bytes": plane.interface.mtu,
                "up": plane.interface.up,
            }
            for plane in found.planes
        }
        result["excluded"] = found.excluded
