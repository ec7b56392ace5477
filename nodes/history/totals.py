"""Totals of the fleet over a span: what there was, what was allocated, used and idle.

Made by `rollups` from devices and figures, read by `series`. Pure. Invariants: the totals of all models, and of all
pools, add up to those of `all`; used and idle count measured GPUs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final

import msgspec

from nodes.labels import pool_of
from nodes.models import Device

EVERYTHING: Final = "all"
IDLE_BELOW: Final = 5
"""A GPU is idle while its largest utilisation is below so many percent."""

MEASURED: Final = {
    "used": "measured",
    "idle": "measured",
    "memory_used": "memory_measured",
    "power": "power_measured",
}
"""Totals that are unknown without measurements → the total that says how much of the group was measured."""


class Totals(msgspec.Struct):
    """Sums over a group's GPUs, of longer spans the means of the minutes.

    `allocated` and `used` in GPUs, memory in bytes, power in watts.
    """

    gpus: float = 0
    unhealthy: float = 0
    held: float = 0
    allocated: float = 0
    measured: float = 0
    used: float = 0
    idle: float = 0
    """Held, measured, and idle for the whole span."""
    memory: float = 0
    memory_given: float = 0
    memory_used: float = 0
    power: float = 0
    memory_measured: float = 0
    """Memory of the GPUs whose use was measured."""
    power_measured: float = 0


def is_idle(device: Device, utilisation: tuple[int, float, int] | None) -> bool:
    """Whether it is held and idle. `utilisation`: (times measured, mean, maximum), None: not measured."""
    return device.is_allocated and utilisation is not None and utilisation[2] < IDLE_BELOW


def groups_of(device: Device) -> tuple[str, ...]:
    """The groups that a GPU is counted in."""
    return EVERYTHING, f"model:{device.model}", f"pool:{pool_of(device.node.labels)}"


def add(totals: Totals, device: Device, measured: Mapping[str, tuple[int, float, int] | None]) -> None:
    """Count one GPU; of a MIG instance, a part of its GPU, only the allocated memory. `measured`: column → (times
    measured, mean, maximum).
    """
    if device.parent:
        totals.memory_given += device.memory_used
        return
    utilisation = measured.get("utilisation_percent")
    totals.gpus += 1
    totals.unhealthy += not device.healthy
    totals.held += device.is_allocated
    totals.allocated += device.core_used / 100
    totals.memory += device.memory_bytes
    totals.memory_given += device.memory_used
    if utilisation is not None:
        totals.measured += 1
        totals.used += utilisation[1] / 100
        totals.idle += is_idle(device, utilisation)
    if (memory := measured.get("memory_used_bytes")) is not None:
        totals.memory_measured += device.memory_bytes
        totals.memory_used += memory[1]
    if (power := measured.get("power_watts")) is not None:
        totals.power_measured += 1
        totals.power += power[1]


def mean_of(parts: Iterable[Totals]) -> Totals:
    """Means of one or more parts; measured totals over the parts that measured them."""
    parts = list(parts)
    means = {}
    for name in Totals.__struct_fields__:
        known = MEASURED.get(name, name if name in MEASURED.values() else "")
        some = [getattr(part, name) for part in parts if not known or getattr(part, known)]
        means[name] = fmean(some) if some else 0.0
    return Totals(**means)
