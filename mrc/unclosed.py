# SPDX-License-Identifier: Apache-2.0
"""Warnings of what a program forgot to close: they point to the line that made it."""

from __future__ import annotations

import sys
import warnings
from typing import Final, NamedTuple

__all__ = ["Site", "here", "warn"]

_NOT_THE_PROGRAM: Final = frozenset(("mrc", "asyncio", "uvloop"))


class Site(NamedTuple):
    """A line of a program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def here() -> Site:
    """The line of the program that called the library."""
    frame = site = sys._getframe(1)
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_THE_PROGRAM:
        if frame.f_back is None:
            break
        site = frame = frame.f_back
    return Site(site.f_code.co_filename, site.f_lineno)


def warn(what: object, made: Site) -> None:
    """Warns that `what`, made there, was not closed.

    Shown as of that line, since the line that drops the last reference says nothing.
    """
    message = f"{what!r} made at {made} was not closed"
    warnings.warn_explicit(message, ResourceWarning, made.file, made.line)
