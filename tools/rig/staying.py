# SPDX-License-Identifier: Apache-2.0
"""A rig with switches that stays: what `up` leaves behind for `status`, `order` and `down`.

`/run/mrc-rig/<prefix>` holds its `topology.toml` and, where the switches are a userspace fabric,
the `control` socket of that (`python -m tools.fabric`). A rig of bare planes needs none of it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrc.topology import Topology
from mrc.topology_file import load
from tools.fabric import Control, Settings
from tools.rig import names
from tools.rig.fabric_rig import FabricRig
from tools.rig.kernel_fabric import KernelFabric
from tools.rig.shell import RigError
from tools.rig.topology_site import TopologySite

FOLDER = Path("/run/mrc-rig")


def topology_file(prefix: str) -> Path:
    """The topology of the rig that stays."""
    return FOLDER / prefix / "topology.toml"


def control_socket(prefix: str) -> Path:
    """The control socket of its userspace fabric."""
    return FOLDER / prefix / "control"


def up(text: str, *, kernel: bool, prefix: str, settings: Settings) -> TopologySite:
    """Builds a rig of the topology `text`, which stays until `down`.

    Args:
        text: A `topology.toml`.
        kernel: Whether Linux itself is the switches; else the userspace fabric is.
        prefix: Of the namespaces' names.
        settings: Of the userspace fabric's switches.

    Raises:
        ConfigError, ValueError: The topology is wrong, or the rig cannot have its hosts' names.
        RigError, FabricError: It could not be built, or such a rig stays already; nothing of it is
            left behind.
    """
    if names.staying(prefix):
        raise RigError("ip netns add", f"there is such a rig already: {prefix}")
    file = topology_file(prefix)
    _forget(prefix)
    file.parent.mkdir(parents=True)
    try:
        file.write_text(text)
        site: TopologySite = (
            KernelFabric(load(file), prefix=prefix, stay=True)
            if kernel
            else FabricRig(file, settings, prefix=prefix, stay=True, control=control_socket(prefix))
        )
        site.start()
    except BaseException:
        _forget(prefix)
        raise
    return site


def down(prefix: str) -> list[str]:
    """Removes the rig that stays, and those of processes that are gone; returns the namespaces.

    Raises:
        RigError: One of them could not be removed.
    """
    stays = names.staying(prefix)
    names.remove(stays)
    _forget(prefix)
    return stays + names.clean(prefix)


def topology(prefix: str) -> Topology | None:
    """That of the rig that stays; None: it has bare planes, or there is none."""
    file = topology_file(prefix)
    return load(file) if names.staying(prefix) and file.exists() else None


@contextlib.contextmanager
def control(prefix: str) -> Iterator[Control]:
    """The fabric of the rig that stays.

    Raises:
        FabricError: It has none.
    """
    fabric = Control(control_socket(prefix))
    try:
        yield fabric
    finally:
        fabric.close()


def fabric_status(prefix: str) -> dict[str, Any] | None:
    """What its fabric says of itself; None: the rig has no userspace fabric."""
    if not control_socket(prefix).exists():
        return None
    with control(prefix) as fabric:
        return fabric.status()


def _forget(prefix: str) -> None:
    shutil.rmtree(FOLDER / prefix, ignore_errors=True)
