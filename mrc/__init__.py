# SPDX-License-Identifier: Apache-2.0
"""Multipath Reliable Connection: one connection over several network planes.

    async with mrc.connect("b.example") as connection:
        await connection.send(b"hello")

`listen` takes connections in, `connect` makes them, an `Endpoint` shares planes between several. A
`Connection` carries messages and one-sided writes, and tells how its planes do. `Config` has every
setting, `mrc.errors` the tree of the exceptions.

`mrc.verbs` is the synchronous layer, `mrc.wire` takes packets apart and makes them, `mrc.dissect`
does so for scapy; each is imported by its own name. Works on asyncio and on uvloop.
"""

from mrc.config import Config
from mrc.connection import (
    Completion,
    Connecting,
    Connection,
    MemoryRegion,
    Message,
    connect,
)
from mrc.endpoint import Endpoint
from mrc.errors import (
    AfterForkError,
    CapabilityError,
    ConcurrencyError,
    ConfigError,
    ConnectionClosed,
    ConnectionClosedOK,
    ConnectionLost,
    ConnectRefused,
    ConnectTimeout,
    HandshakeError,
    MessageTooLarge,
    MRCError,
    ProtocolError,
    RemoteAccessError,
)
from mrc.events import (
    ConnectionStats,
    Event,
    EVInfo,
    PathBad,
    PathGood,
    PathStats,
    PlaneInfo,
    PlaneLost,
    PlaneRecovered,
)
from mrc.link import PairedPlane
from mrc.listener import Listener, listen
from mrc.memory import RemoteRegion

__version__ = "0.1.0"

__all__ = [
    "AfterForkError",
    "CapabilityError",
    "Completion",
    "ConcurrencyError",
    "Config",
    "ConfigError",
    "ConnectRefused",
    "ConnectTimeout",
    "Connecting",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedOK",
    "ConnectionLost",
    "ConnectionStats",
    "EVInfo",
    "Endpoint",
    "Event",
    "HandshakeError",
    "Listener",
    "MRCError",
    "MemoryRegion",
    "Message",
    "MessageTooLarge",
    "PairedPlane",
    "PathBad",
    "PathGood",
    "PathStats",
    "PlaneInfo",
    "PlaneLost",
    "PlaneRecovered",
    "ProtocolError",
    "RemoteAccessError",
    "RemoteRegion",
    "__version__",
    "connect",
    "listen",
]


def __dir__() -> list[str]:
    return __all__
