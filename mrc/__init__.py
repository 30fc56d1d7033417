# SPDX-License-Identifier: Apache-2.0
"""Multipath Reliable Connection: one connection over several network planes."""

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
    PathBad,
    PathGood,
    PathStats,
    PlaneInfo,
    PlaneLost,
    PlaneRecovered,
)
from mrc.listener import Listener, listen
from mrc.memory import RemoteRegion

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
    "Endpoint",
    "Event",
    "HandshakeError",
    "Listener",
    "MRCError",
    "MemoryRegion",
    "Message",
    "MessageTooLarge",
    "PathBad",
    "PathGood",
    "PathStats",
    "PlaneInfo",
    "PlaneLost",
    "PlaneRecovered",
    "ProtocolError",
    "RemoteAccessError",
    "RemoteRegion",
    "connect",
    "listen",
]
