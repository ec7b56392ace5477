"""Amounts of devices in use, core percent and bytes, and their sums. Called by the engine and the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Amounts = tuple[int, int]
"""Core percent and bytes."""
Held = tuple[int, int, int]
"""Device id, core percent, bytes."""
NONE: Amounts = (0, 0)


def merged(held: Iterable[Held]) -> dict[int, Amounts]:
    """Device id → the sum of what is held of it."""
    sums: dict[int, Amounts] = {}
    for device, core, memory in held:
        before = sums.get(device, NONE)
        sums[device] = before[0] + core, before[1] + memory
    return sums
