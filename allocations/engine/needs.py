"""One ask against one snapshot: which devices can serve it, now or if nothing were used, and what each would give.

Called by `engine.plan`, `engine.choice` and `engine.reasons`. Invariants: whole is core 100 and all memory; a ratio
becomes bytes of the device chosen, rounded down; memory or ratio alone take core 0; a type without memory is shared by
core alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.snapshot import NO_MEMORY, Grouped
from allocations.engine.subsets import mask_of
from claims.dialects.request import CORE_WHOLE, Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceAsk

_ONE_NUMA_ONLY = Limits(one_numa=True)

NEVER = -1
"""Spare memory of a size of device that can never serve the ask."""


def amounts(ask: DeviceAsk, memory_total: int) -> tuple[int, int] | None:
    """Core percent and bytes that the ask takes from a device of this size; None where its kind cannot serve it."""
    if ask.whole:
        return CORE_WHOLE, memory_total
    core = ask.core_percent or 0
    if ask.memory_bytes is not None:
        return (core, ask.memory_bytes) if memory_total != NO_MEMORY or not ask.memory_bytes else None
    if ask.memory_ratio is not None:
        if memory_total == NO_MEMORY:
            return (core, 0) if core else None
        return core, memory_total * ask.memory_ratio // 100
    return core, 0


class Need:
    """An ask and the devices of its type: [v] arrays are in the order of the type's view, [n] per node."""

    def __init__(self, snapshot: Snapshot, ask: DeviceAsk) -> None:
        self.snapshot = snapshot
        self.ask = ask
        self.code = snapshot.type_code.get(ask.type, -1)
        self.view = snapshot.index.views[self.code]
        self.core = CORE_WHOLE if ask.whole else ask.core_percent or 0

    @cached_property
    def permitted(self) -> NDArray[np.bool_] | None:
        """[v] of a requested model and within the ask's limits; None where any device will do."""
        models, limits = {model.casefold() for model in self.ask.models or ()}, self.ask.limits
        found = None
        if models:
            found = self._of_models([model.casefold() in models for model in self.snapshot.models])
        if limits is not None and limits != _ONE_NUMA_ONLY:
            within = self._within(limits)
            found = within if found is None else found & within
        return found

    def _of_models(self, permitted: Sequence[bool]) -> NDArray[np.bool_]:
        """[v] devices whose model is permitted; `permitted`: by model code."""
        return np.array(permitted, dtype=np.bool_)[self.view.model]

    def _within(self, limits: Limits) -> NDArray[np.bool_]:
        """[v] devices that the limits permit, each by itself."""
        found = self._of_models([limits.permit_model(model) for model in self.snapshot.models])
        found &= self.view.memory_total >= limits.memory_least
        if limits.uuids or limits.not_uuids:
            row_of = self.snapshot.index.row_of_uuid
            named = np.full(len(self.snapshot.device_uuid), not limits.uuids)
            named[[row_of[uuid] for uuid in limits.uuids if uuid in row_of]] = True
            named[[row_of[uuid] for uuid in limits.not_uuids if uuid in row_of]] = False
            found &= self.view.column(named)
        return found

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """[v] healthy and permitted."""
        healthy = self.view.column(self.snapshot.device_healthy)
        return healthy if self.permitted is None else healthy & self.permitted

    @cached_property
    def kept(self) -> NDArray[np.uint8]:
        """[v] `Withheld` of permitted devices."""
        kept = self.view.column(self.snapshot.device_kept)
        return kept if self.permitted is None else kept * self.permitted

    @cached_property
    def grouped(self) -> NDArray[np.uint8]:
        """[v] `Grouped` of permitted devices."""
        grouped = self.view.column(self.snapshot.device_group)
        return grouped if self.permitted is None else grouped * self.permitted

    @cached_property
    def spare(self) -> NDArray[np.int64]:
        """[u] the most bytes that may be in use on a device of each memory size for the ask to fit; NEVER."""
        left = []
        for total in self.view.classes.tolist():
            taken = amounts(self.ask, total)
            left.append(NEVER if taken is None or taken[1] > total else total - taken[1])
        return np.array(left, dtype=np.int64)

    @cached_property
    def core_fits(self) -> NDArray[np.bool_]:
        """[v] enough core is free (unhealthy ones included)."""
        return self.view.column(self.snapshot.core_used) <= np.int16(CORE_WHOLE - self.core)

    @cached_property
    def memory_fits(self) -> NDArray[np.bool_]:
        """[v] enough memory is free (unhealthy ones included)."""
        used = self.view.column(self.snapshot.memory_used)
        return used <= (self.spare[0] if len(self.spare) == 1 else self.spare[self.view.class_of])

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """[v] can serve now."""
        found = self.eligible & self.core_fits & self.memory_fits
        return found & (self.view.column(self.snapshot.device_group) == Grouped.NOT) if self.ask.whole else found

    @cached_property
    def ever(self) -> NDArray[np.bool_]:
        """[v] could serve if nothing were used."""
        return self.eligible & (self.spare >= 0)[self.view.class_of]

    @cached_property
    def enough(self) -> NDArray[np.bool_]:
        """[n] enough devices can serve now."""
        if self.at_one_numa:
            return self.most_at_numa(self.fits) >= self.ask.count
        if self.ask.whole and self.permitted is None:
            return self.snapshot.usage_of(self.code).free_count >= self.ask.count
        if self.ask.count == 1:
            return self.view.any_per_node(self.fits)
        return self.per_node(self.fits) >= self.ask.count

    def per_node(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] how many of a node's devices are set."""
        return self.view.per_node(values.view(np.int8))

    @property
    def at_one_numa(self) -> bool:
        """Whether several devices have to be at one NUMA node."""
        return self.ask.count > 1 and self.ask.limits is not None and self.ask.limits.one_numa

    def most_at_numa(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] the most set devices that one NUMA node has, devices of unknown NUMA node left out."""
        nodes = len(self.snapshot.node_names)
        rows = self.view.rows[values]
        numa = self.snapshot.device_numa[rows].astype(np.int64)
        known = numa >= 0
        span = int(numa.max(initial=0)) + 1
        place = self.snapshot.device_node[rows[known]] * span + numa[known]
        counts: NDArray[np.int64] = np.bincount(place, minlength=nodes * span).reshape(nodes, span)
        most: NDArray[np.int64] = counts.max(axis=1)
        return most

    def numas(self, rows: Sequence[int]) -> list[list[int]]:
        """These rows of one node; grouped by known NUMA node where the ask has to be at one."""
        if not self.at_one_numa:
            return [list(rows)]
        by_numa: dict[int, list[int]] = {}
        for row in rows:
            by_numa.setdefault(int(self.snapshot.device_numa[row]), []).append(row)
        return [by_numa[numa] for numa in sorted(by_numa) if numa >= 0]

    def apart_by_numa(self, able: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """The able devices ([v] bool), one array a NUMA node where they have to be at one."""
        if not self.at_one_numa:
            return [able]
        numa = self.view.column(self.snapshot.device_numa)
        return [able & (numa == one) for one in np.unique(numa[able]).tolist() if one >= 0]

    @cached_property
    def masks(self) -> NDArray[np.int64]:
        """[n] positions that can serve now, as bits; 0 on nodes with more than 16 devices of the type."""
        if self.ask.whole and self.permitted is None:
            return self.snapshot.usage_of(self.code).free_mask
        return self.view.per_node(self.fits * self.view.bit)

    def free_mask(self, node: int) -> int:
        """Positions of a node's healthy and unused devices, permitted or not, as bits."""
        rows = self.view.rows[self.view.of_node(node)]
        snapshot = self.snapshot
        usable = snapshot.device_healthy[rows] & (snapshot.core_used[rows] == 0) & (snapshot.memory_used[rows] == 0)
        usable &= snapshot.device_group[rows] == Grouped.NOT
        return mask_of(usable.nonzero()[0].tolist())

    def rows(self, node: int) -> list[int]:
        """Rows of a node's devices that can serve now, ascending."""
        here = self.view.of_node(node)
        rows: list[int] = self.view.rows[here][self._fits_at(here)].tolist()
        return rows

    def _fits_at(self, here: slice) -> NDArray[np.bool_]:
        """Which of one node's devices can serve now, without working `fits` out for every node."""
        if "fits" in self.__dict__:
            return self.fits[here]
        rows = self.view.rows[here]
        found = self.snapshot.device_healthy[rows] & (self.snapshot.core_used[rows] <= CORE_WHOLE - self.core)
        found &= self.snapshot.memory_used[rows] <= self.spare[self.view.class_of[here]]
        if self.ask.whole:
            found &= self.snapshot.device_group[rows] == Grouped.NOT
        return found if self.permitted is None else found & self.permitted[here]
