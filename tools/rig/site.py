# SPDX-License-Identifier: Apache-2.0
"""The life of a rig: its namespaces are removed however the process that made them ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

from tools.rig import names, shell
from tools.rig.host import Host

_open: list[Site] = []


class Site:
    """Hosts in namespaces, and whatever joins them, from `start` (or `with`) to `close`.

    However the process ends, the rig is removed: by `with`, at exit, at SIGTERM (which then
    ends the process by SystemExit(143), unless the program handles it), and after a SIGKILL by
    the next rig of that prefix that starts. One that stays outlives the process.

    Attributes:
        prefix: Of the namespaces' names.
        hosts: In the order of their names.
    """

    def __init__(self, prefix: str | None, *, stay: bool) -> None:
        """Names it.

        Args:
            prefix: "mrc" if None.
            stay: Whether the rig outlives the process, under names without its id.
        """
        self.prefix = prefix or names.PREFIX
        self._stem = self.prefix if stay else names.stem(self.prefix)
        self._stay = stay
        self._pid = os.getpid()
        self.hosts: tuple[Host, ...] = ()

    def _namespaces(self) -> list[str]:
        """All of its namespaces: made by `_build`, removed by `close`."""
        return [host.name for host in self.hosts]

    def _build(self) -> None:
        """Makes namespaces and all that is in them."""
        shell.batch(f"netns add {name}" for name in self._namespaces())

    def start(self) -> None:
        """Removes what killed runs have left, and builds the rig.

        Raises:
            RigError: A tool refused (not root, for example), or a rig of that name stays;
                nothing is left behind.
        """
        names.clean(self.prefix)
        if self._stay and names.staying(self.prefix):
            raise shell.RigError("ip netns add", f"there is such a rig already: {self.prefix}")
        if not self._stay:
            _remember(self)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kills the hosts' processes and removes the namespaces; again does nothing.

        In a fork of the process that made the rig it does nothing either.

        Raises:
            RigError: A namespace could not be removed.
        """
        try:
            if os.getpid() == self._pid:
                for host in self.hosts:
                    host.kill()
                existing = set(names.listed())
                names.remove(name for name in self._namespaces() if name in existing)
        finally:
            _forget(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _remember(site: Site) -> None:
    """Notes one that is to be closed when the process ends."""
    _open.append(site)
    if len(_open) > 1:
        return
    atexit.register(_close_all)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _forget(site: Site) -> None:
    """Takes back what `_remember` has set, with the last one."""
    if site not in _open:
        return
    _open.remove(site)
    if _open:
        return
    atexit.unregister(_close_all)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _close_all() -> None:
    while _open:
        _open[-1].close()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Lets every `with` and every atexit function of the program do its work."""
    sys.exit(128 + number)
