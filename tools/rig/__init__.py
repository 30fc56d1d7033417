# SPDX-License-Identifier: Apache-2.0
"""The rig: hosts and the planes between them on one machine, from network namespaces.

    host a  p0 ──────── p0-a  hub  p0-b ──────── p0  host b       one veth pair on either side
            p1 ──────── p1-a       p1-b ──────── p1

    with Rig(planes=4) as rig:
        rig.plane(2).loss(1.0)
        rig.hosts[0].run(["ping", "-c", "1", rig.hosts[1].address(2)])

The hub is the cable: nftables forwards each frame from port to port there, and loses, corrupts
or doubles it on the way. It has to be a namespace of its own, because a packet socket that takes
every protocol is served before an ingress rule of the same interface can drop the frame, and an
egress rule that drops one tells the sender (ENOBUFS). Needs root, iproute2, nftables, ethtool.
With `FabricRig` (tools.rig.fabric_rig) the switches of a topology stand there instead.
"""

from __future__ import annotations

from tools.rig.host import Counters, Host
from tools.rig.plane import Plane
from tools.rig.rig import Rig
from tools.rig.shell import RigError

__all__ = ["Counters", "Host", "Plane", "Rig", "RigError"]
