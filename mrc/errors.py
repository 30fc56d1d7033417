# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the library."""

from __future__ import annotations


class MRCError(Exception):
    """Base of everything that this library raises on purpose."""


class ProtocolError(MRCError, ValueError):
    """Bytes or values that are not MRC: the message says what is wrong where."""
