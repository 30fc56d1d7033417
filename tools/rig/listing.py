# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.rig status`: every rig's namespaces, and the one that stays in full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.rig import names, shell, staying


def status(prefix: str) -> dict[str, Any]:
    """What there is.

    Returns:
        `rigs`: of each namespace of a process's rig its `process`, and whether it is `left_over`.
        `staying`: of each namespace of the rig that stays its `node` ("t1a of plane 0") and its
        `interfaces`. `topology`: its file, or None. `fabric`: what its userspace fabric says of
        itself, or None.

    Raises:
        RigError, FabricError: The kernel refused, or the fabric has died.
    """
    nodes = _nodes(prefix)
    file = staying.topology_file(prefix)
    return {
        "rigs": [
            {"namespace": name, "process": pid, "left_over": not Path(f"/proc/{pid}").exists()}
            for name, pid in names.owned(prefix).items()
        ],
        "staying": [
            {
                "namespace": name,
                "node": nodes.get(name.removeprefix(f"{prefix}-"), ""),
                "interfaces": list(_interfaces(name)),
            }
            for name in names.staying(prefix)
        ],
        "topology": str(file) if file.exists() else None,
        "fabric": staying.fabric_status(prefix),
    }


def _nodes(prefix: str) -> dict[str, str]:
    """Of each label of the rig that stays, what people call it."""
    topology = staying.topology(prefix)
    if topology is None:
        return {}
    switches = [name for tier in topology.tiers for name in tier.switches]
    return {
        names.switch(plane, number): f"{name} of plane {plane}"
        for plane in range(topology.planes)
        for number, name in enumerate(switches)
    }


def _interfaces(netns: str) -> Iterator[dict[str, Any]]:
    for link in json.loads(shell.run(["ip", "-n", netns, "-s", "-j", "address", "show"])):
        if link["ifname"] == "lo":
            continue
        yield {
            "name": link["ifname"],
            "state": link["operstate"],
            "mtu_bytes": link["mtu"],
            "received_bytes": link["stats64"]["rx"]["bytes"],
            "sent_bytes": link["stats64"]["tx"]["bytes"],
            "addresses": [each["local"] for each in link["addr_info"]],
        }


def for_people(found: dict[str, Any]) -> Iterator[str]:
    """The same in lines."""
    for rig in found["rigs"]:
        whose = "left over" if rig["left_over"] else f"of process {rig['process']}"
        yield f"{rig['namespace']}  {whose}"
    for each in found["staying"]:
        yield f"{each['namespace']}  stays" + (f", {each['node']}" if each["node"] else "")
        for link in each["interfaces"]:
            yield (
                f"  {link['name']:8} {link['state']:14} mtu {link['mtu_bytes']:<5} received "
                f"{link['received_bytes']} B, sent {link['sent_bytes']} B  "
                f"{' '.join(link['addresses'])}"
            )
    if found["fabric"] is not None:
        down = [
            f"{port['node']}-{port['next']} of plane {port['plane']}"
            for port in found["fabric"]["down"]
        ]
        yield f"fabric  {found['fabric']['packets']} packets inside; down: {', '.join(down) or '-'}"
