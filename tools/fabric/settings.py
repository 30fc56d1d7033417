# SPDX-License-Identifier: Apache-2.0
"""What a fabric's switches are set to; the topology says where they are."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Of all switches alike.

    Attributes:
        seed: Of every random fate.
        data_bytes: Of a port's data queue.
        control_bytes: Of a port's control queue.
        mark_from: Bytes of waiting data from which ECN marks begin.
        mark_to: Bytes from which all data is marked; 0: nothing ever is.
        trim: Whether a full data queue cuts writes to their headers instead of dropping them.
        control_weight: Control packets for one data packet when both wait; 0: control first.

    Raises:
        ValueError: One of them is out of range.
    """

    seed: int = 1
    data_bytes: int = 500_000
    control_bytes: int = 500_000
    mark_from: int = 100_000
    mark_to: int = 400_000
    trim: bool = True
    control_weight: int = 0

    def __post_init__(self) -> None:
        for field in ("data_bytes", "control_bytes", "mark_from", "mark_to", "control_weight"):
            if not 0 <= getattr(self, field) < 2**32:
                raise ValueError(f"{field} is {getattr(self, field)}, not within 0..2^32 - 1")
        if 0 < self.mark_to < self.mark_from:
            raise ValueError(f"mark_to, {self.mark_to}, is below mark_from, {self.mark_from}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed is {self.seed}, not within 0..2^64 - 1")
