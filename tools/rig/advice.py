# SPDX-License-Identifier: Apache-2.0
"""What a person may want to paste once a rig stays: a transfer, faults, and the end of it."""

from __future__ import annotations

import json

from tools.rig import names, staying
from tools.rig.fabric_rig import FabricRig
from tools.rig.kernel_fabric import KernelFabric
from tools.rig.rig import Rig
from tools.rig.site import Site
from tools.rig.topology_site import TopologySite


def lines(site: Site) -> list[str]:
    """The lines, comments among them."""
    if isinstance(site, Rig):
        told = _transfer(site, "") + _plane_faults(site)
    else:
        assert isinstance(site, FabricRig | KernelFabric)
        told = _transfer(site, f" --topology {staying.topology_file(site.prefix)}")
        told += _fabric_faults(site) if isinstance(site, FabricRig) else _switch_faults(site)
    command = _command(site.prefix)
    return [*told, "# What there is, and the end of it:", f"{command} status", f"{command} down"]


def _command(prefix: str) -> str:
    return "python -m tools.rig" + ("" if prefix == names.PREFIX else f" --prefix {prefix}")


def _transfer(site: Site, options: str) -> list[str]:
    a, b = site.hosts[:2]
    return [
        "# A transfer from one host to the other:",
        f"ip netns exec {b.name} mrc-recv --once{options} /tmp",
        f"ip netns exec {a.name} mrc-send{options} FILE {b.address(0)}",
    ]


def _plane_faults(rig: Rig) -> list[str]:
    a, b = rig.hosts[:2]
    last = rig.planes[-1]
    p, hub, chain = last.interface, last.hub, f"netdev {last.interface} {a.label}_{b.label}"
    nft = f"ip netns exec {hub} nft"
    address = a.addresses[last.number]
    restore = f"ip -n {a.name} address replace {address} dev {p}"
    return [
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
    ]


def _fabric_faults(rig: FabricRig) -> list[str]:
    lower, upper = _inner_link(rig)

    def order(**members: object) -> str:
        return f"{_command(rig.prefix)} order '{json.dumps(members)}'"

    link = {"plane": 0, "node": lower, "next": upper}
    switch = {"plane": 0, "node": upper}
    return [
        f"# The link {lower}-{upper} of plane 0 goes down, and up again:",
        order(do="link", **link, up=False),
        order(do="link", **link, up=True),
        f"# {upper} of plane 0 forwards nothing, silently; and forwards again; it reboots:",
        order(do="silence", **switch, on=True),
        order(do="silence", **switch, on=False),
        order(do="reboot", **switch, down_ms=2000),
        f"# {lower} loses 5 % of what it sends to {upper}; none any more:",
        order(do="rule", slot=0, **link, loss=50_000),
        order(do="rule", slot=0),
    ]


def _switch_faults(fabric: KernelFabric) -> list[str]:
    lower, upper = _inner_link(fabric)
    port = f"ip -n {fabric.netns(lower, 0)} link set {fabric.port_name(lower, upper)}"
    return [
        f"# The link {lower}-{upper} of plane 0 goes down for good; {upper} of plane 0 is gone:",
        f"{port} down",
        f"ip netns delete {fabric.netns(upper, 0)}",
    ]


def _inner_link(site: TopologySite) -> tuple[str, str]:
    """A link between two switches."""
    hosts = {host.label for host in site.hosts}
    return next(
        (cable.lower, cable.upper) for cable in site.topology.cables() if cable.lower not in hosts
    )
