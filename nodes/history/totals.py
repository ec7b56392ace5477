"""The fleet in one span of time, summed: what there is, what was given away, what was used, what was held and did nothing.

Made by `rollups` from devices and figures, read by `series`. Pure. Kept true: the totals of all models, and of all pools, add up to those of `all`;
used and idle speak of measured GPUs only.
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
"""A GPU whose largest utilisation stays below so many percent is idle."""

MEASURED: Final = {
    "used": "measured",
    "idle": "measured",
    "memory_used": "memory_measured",
    "power": "power_measured",
}
"""Totals that are unknown, not 0, where nobody measured: each with what says how much of the group was."""


class Totals(msgspec.Struct):
    """Sums over a group's GPUs; a span's counts are means over its minutes. `allocated` and `used` are in GPUs, memory in bytes."""

    gpus: float = 0
    unhealthy: float = 0
    held: float = 0
    allocated: float = 0
    measured: float = 0
    used: float = 0
    idle: float = 0
    """Held, measured, and idle all the time."""
    memory: float = 0
    memory_given: float = 0
    memory_used: float = 0
    power: float = 0
    """Watts."""
    memory_measured: float = 0
    """Bytes that the GPUs have whose `memory_used` is known."""
    power_measured: float = 0


def is_held(device: Device) -> bool:
    """Whether anybody was given any of it."""
    return bool(device.core_used or device.memory_used)


def is_idle(device: Device, utilisation: tuple[int, float, int] | None) -> bool:
    """Whether it is held and did nothing. `utilisation`: (times, mean, largest), None where it was not measured."""
    return is_held(device) and utilisation is not None and utilisation[2] < IDLE_BELOW


def groups_of(device: Device) -> tuple[str, ...]:
    """The groups that a GPU counts in; its node is loaded."""
    return EVERYTHING, f"model:{device.model}", f"pool:{pool_of(device.node.labels)}"


def add(totals: Totals, device: Device, measured: Mapping[str, tuple[int, float, int] | None]) -> None:
    """Count one GPU. `measured`: column → (times, mean, largest). A MIG instance is a part of its GPU: only what is given of its memory is added."""
    if device.parent:
        totals.memory_given += device.memory_used
        return
    utilisation = measured.get("utilisation_percent")
    totals.gpus += 1
    totals.unhealthy += not device.healthy
    totals.held += is_held(device)
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
    """Of at least one part; what is measured over the parts in which it was."""
    parts = list(parts)
    means = {}
    for name in Totals.__struct_fields__:
        known = MEASURED.get(name, name if name in MEASURED.values() else "")
        some = [getattr(part, name) for part in parts if not known or getattr(part, known)]
        means[name] = fmean(some) if some else 0.0
    return Totals(**means)
