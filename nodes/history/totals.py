"""Totals of the fleet over a span: what there was, what was allocated, used and idle.

Made by `rollups` from devices and figures, read by `series`. Pure. Invariants: the totals of all models, and of all
pools, add up to those of `all`; used and idle count measured GPUs only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Measured:
    """One column over the span: times measured, mean, maximum of each GPU."""

    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    largest: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs and MIG instances as columns. `is_part`: a MIG instance; core use in percent, memory in bytes."""

    is_part: NDArray[np.bool_]
    healthy: NDArray[np.bool_]
    core_used: NDArray[np.int64]
    memory_used: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    utilisation: Measured
    memory: Measured
    power: Measured

    @property
    def allocated(self) -> NDArray[np.bool_]:
        """Which the ledger has allocated, wholly or in part."""
        return (self.core_used > 0) | (self.memory_used > 0)

    @property
    def idle(self) -> NDArray[np.bool_]:
        """Which are allocated, measured, and idle."""
        measured = self.utilisation.counts > 0
        return self.allocated & measured & (self.utilisation.largest < IDLE_BELOW)


def totals_of(gpus: Gpus, groups: NDArray[np.int64], *, count: int) -> list[Totals]:
    """The totals of `count` groups; `groups`: the number of each GPU's. Of a MIG instance, a part of its GPU, only the
    allocated memory counts.
    """
    whole = ~gpus.is_part
    measured = {
        name: whole & (one.counts > 0)
        for name, one in (("used", gpus.utilisation), ("memory", gpus.memory), ("power", gpus.power))
    }
    columns = {
        "gpus": whole,
        "unhealthy": whole & ~gpus.healthy,
        "held": whole & gpus.allocated,
        "allocated": whole * (gpus.core_used / 100),
        "measured": measured["used"],
        "used": measured["used"] * (gpus.utilisation.means / 100),
        "idle": whole & gpus.idle,
        "memory": whole * gpus.memory_bytes,
        "memory_given": gpus.memory_used,
        "memory_used": measured["memory"] * gpus.memory.means,
        "power": measured["power"] * gpus.power.means,
        "memory_measured": measured["memory"] * gpus.memory_bytes,
        "power_measured": measured["power"],
    }
    sums = {name: np.bincount(groups, column, count).tolist() for name, column in columns.items()}
    return [Totals(**{name: column[at] for name, column in sums.items()}) for at in range(count)]


def mean_of(parts: Iterable[Totals]) -> Totals:
    """Means of one or more parts; measured totals over the parts that measured them."""
    parts = list(parts)
    means = {}
    for name in Totals.__struct_fields__:
        known = MEASURED.get(name, name if name in MEASURED.values() else "")
        some = [getattr(part, name) for part in parts if not known or getattr(part, known)]
        means[name] = fmean(some) if some else 0.0
    return Totals(**means)
