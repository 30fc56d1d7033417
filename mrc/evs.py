# SPDX-License-Identifier: Apache-2.0
"""The entropy values of one queue pair: the paths they name, which are denied, what is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mrc._native import EV_STATES
from mrc.denial import Denial, are_denied
from mrc.events import EVInfo
from mrc.localise import Fault, localise
from mrc.planes import Address
from mrc.topology import Path

if TYPE_CHECKING:
    from mrc.hub import Hub

__all__ = ["EntropyValues"]

_IN_USE: Final = {"good", "skip"}


class EntropyValues:
    """Those of a queue pair that is connected."""

    def __init__(self, hub: Hub, qp: int, addresses: Sequence[Address]) -> None:
        """Denies at once what is denied to all queue pairs.

        Args:
            hub: Its.
            qp: Its number.
            addresses: Of the peer's planes.
        """
        self._hub = hub
        self._qp = qp
        self._addresses = tuple(addresses)
        self._denied: frozenset[Denial] = frozenset()
        if hub.denied:
            self.enforce()

    def _path(self, ev: int) -> Path | None:
        return self._hub.path_of(self._addresses, ev)

    def hops(self, ev: int) -> tuple[str, ...] | None:
        """Names of the nodes of the path that an EV names; None: no topology says."""
        path = self._path(ev)
        return None if path is None else path.hops

    def list(self) -> tuple[EVInfo, ...]:
        """Each of them as it is now."""
        return tuple(
            EVInfo(
                ev=each["ev"],
                plane=self._hub.plane_name(each["plane"]),
                hops=self.hops(each["ev"]),
                state=EV_STATES[each["state"]],
            )
            for each in self._hub.engine.evs(self._qp)
        )

    def deny(self, what: int | str, *, denied: bool) -> None:
        """Denies an EV, a link or a switch to this queue pair, or gives it back.

        Raises:
            ConfigError: There is no such thing.
        """
        meant = self._hub.denial(what)
        self._denied = self._denied | {meant} if denied else self._denied - {meant}
        self.enforce()

    def enforce(self) -> None:
        """Tells the engine which are DENIED now: here, and to all queue pairs."""
        engine = self._hub.engine
        states = {each["ev"]: EV_STATES[each["state"]] for each in engine.evs(self._qp)}
        told = are_denied(states, self._hub.denied | self._denied, self._path)
        for ev, is_denied in told.items():
            if is_denied != (states[ev] == "denied"):
                engine.deny_ev(self._qp, ev, denied=is_denied)

    def faults(self) -> tuple[Fault, ...]:
        """Which links or switches explain the paths that are assumed bad, most paths first."""
        good, bad = [], []
        for each in self._hub.engine.evs(self._qp):
            path, state = self._path(each["ev"]), EV_STATES[each["state"]]
            if path is not None and state in _IN_USE:
                good.append(path)
            elif path is not None and state == "assumed bad":
                bad.append(path)
        return tuple(localise(good, bad))
