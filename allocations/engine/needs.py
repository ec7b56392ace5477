"""One ask against one picture: which devices could serve it, now and ever, and what each would give.

Called by `engine.plan` and `engine.reasons`. Kept true: amounts follow DESIGN §3 (whole is core 100
and all memory; a ratio becomes bytes of the device chosen, rounded down; memory or ratio alone take
core 0; a type without memory is shared by core alone).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.index import rows_by_uuid, usage_of
from allocations.engine.picture import NO_MEMORY
from claims.dialects.request import CORE_WHOLE, Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.index import TypeView
    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceAsk

_AT_ONE_NUMA = Limits(one_numa=True)

NEVER = -1
"""Memory left over by an ask that a device of this size can never serve."""


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


def free_positions(picture: Picture, need: Need, node: int) -> int:
    """The positions on a node of healthy devices of the need's type that nobody uses, as bits, whichever the ask may have."""
    if need.view is None:
        return 0
    rows = need.view.rows[need.view.of_node(node)]
    usable = picture.device_healthy[rows] & (picture.core_used[rows] == 0) & (picture.memory_used[rows] == 0)
    return sum(1 << place for place in usable.nonzero()[0].tolist())


class Need:
    """An ask and the devices of its type: [v] arrays are in the order of the type's view, [n] per node."""

    def __init__(self, picture: Picture, ask: DeviceAsk) -> None:
        self.picture = picture
        self.ask = ask
        self.code = picture.type_code.get(ask.type, -1)
        self.view = picture.index.views.get(self.code)

    @cached_property
    def permitted(self) -> NDArray[np.bool_] | None:
        """[v] of a model that was asked for, and within the ask's limits; None where any device will do."""
        if self.view is None:
            return None
        found = None
        if self.ask.models:
            wanted = {model.casefold() for model in self.ask.models}
            known = [model.casefold() in wanted for model in self.picture.models]
            found = np.array(known, dtype=np.bool_)[self.view.model]
        if self.ask.limits is not None and self.ask.limits != _AT_ONE_NUMA:
            within = self._within(self.ask.limits, self.view)
            found = within if found is None else found & within
        return found

    def _within(self, limits: Limits, view: TypeView) -> NDArray[np.bool_]:
        """[v] devices that the limits permit, each by itself."""
        known = [limits.permit_model(model) for model in self.picture.models]
        found = np.array(known, dtype=np.bool_)[view.model] & (view.memory_total >= limits.memory_least)
        if limits.uuids or limits.not_uuids:
            row_of = rows_by_uuid(self.picture)
            named = np.full(len(self.picture.device_uuid), not limits.uuids)
            named[[row_of[uuid] for uuid in limits.uuids if uuid in row_of]] = True
            named[[row_of[uuid] for uuid in limits.not_uuids if uuid in row_of]] = False
            found &= view.column(named)
        return found

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """[v] healthy, of a model that was asked for, within the limits."""
        if self.view is None:
            return np.zeros(0, dtype=np.bool_)
        healthy = self.view.column(self.picture.device_healthy)
        return healthy if self.permitted is None else healthy & self.permitted

    @cached_property
    def spare(self) -> NDArray[np.int64]:
        """[u] bytes that may be used already on a device of each memory size for the ask still to fit; NEVER."""
        if self.view is None:
            return np.zeros(0, dtype=np.int64)
        left = []
        for total in self.view.classes.tolist():
            taken = amounts(self.ask, total)
            left.append(NEVER if taken is None or taken[1] > total else total - taken[1])
        return np.array(left, dtype=np.int64)

    @cached_property
    def core_fits(self) -> NDArray[np.bool_]:
        """[v] enough core is free (unhealthy ones included)."""
        if self.view is None:
            return np.zeros(0, dtype=np.bool_)
        core = CORE_WHOLE if self.ask.whole else self.ask.core_percent or 0
        return self.view.column(self.picture.core_used) <= np.int16(CORE_WHOLE - core)

    @cached_property
    def memory_fits(self) -> NDArray[np.bool_]:
        """[v] enough memory is free (unhealthy ones included)."""
        if self.view is None:
            return np.zeros(0, dtype=np.bool_)
        used = self.view.column(self.picture.memory_used)
        return used <= (self.spare[0] if len(self.spare) == 1 else self.spare[self.view.class_of])

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """[v] can serve now."""
        return self.eligible & self.core_fits & self.memory_fits

    @cached_property
    def ever(self) -> NDArray[np.bool_]:
        """[v] could serve if nothing were used."""
        if self.view is None or len(self.spare) == 0:
            return self.eligible
        return self.eligible & (self.spare >= 0)[self.view.class_of]

    @cached_property
    def enough(self) -> NDArray[np.bool_]:
        """[n] enough devices can serve now."""
        if self.view is None:
            return np.zeros(len(self.picture.node_names), dtype=np.bool_)
        if self.at_one_numa:
            return self.most_at_numa(self.fits) >= self.ask.count
        if self.ask.whole and self.permitted is None:
            return usage_of(self.picture, self.code).free_count >= self.ask.count
        if self.ask.count == 1:
            return self.view.any_per_node(self.fits)
        return self.per_node(self.fits) >= self.ask.count

    def per_node(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] how many of a node's devices are set."""
        if self.view is None:
            return np.zeros(len(self.picture.node_names), dtype=np.int64)
        return self.view.per_node(values.view(np.int8))

    def most_in_island(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] the most set devices that one island of the node holds."""
        if self.view is None:
            return np.zeros(len(self.picture.node_names), dtype=np.int64)
        return self.view.most_in_group(values)

    @property
    def at_one_numa(self) -> bool:
        """Whether several devices have to be at one NUMA node."""
        return self.ask.count > 1 and self.ask.limits is not None and self.ask.limits.one_numa

    def most_at_numa(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] the most set devices that one NUMA node of the node has; those of which it is not known count nowhere."""
        nodes = len(self.picture.node_names)
        if self.view is None:
            return np.zeros(nodes, dtype=np.int64)
        rows = self.view.rows[values]
        numa = self.picture.device_numa[rows].astype(np.int64)
        known = numa >= 0
        span = int(numa.max(initial=0)) + 1
        place = self.picture.device_node[rows[known]] * span + numa[known]
        counts: NDArray[np.int64] = np.bincount(place, minlength=nodes * span).reshape(nodes, span)
        most: NDArray[np.int64] = counts.max(axis=1)
        return most

    def numas(self, rows: Sequence[int]) -> list[list[int]]:
        """These rows of one node, apart by NUMA node where they have to be; those of which it is not known are left out then."""
        if not self.at_one_numa:
            return [list(rows)]
        by_numa: dict[int, list[int]] = {}
        for row in rows:
            by_numa.setdefault(int(self.picture.device_numa[row]), []).append(row)
        return [by_numa[numa] for numa in sorted(by_numa) if numa >= 0]

    @cached_property
    def masks(self) -> NDArray[np.int64]:
        """[n] positions that can serve now, as bits; 0 on nodes with more than 16 devices of the type."""
        if self.view is None:
            return np.zeros(len(self.picture.node_names), dtype=np.int64)
        if self.ask.whole and self.permitted is None:
            return usage_of(self.picture, self.code).free_mask
        return self.view.per_node(self.fits * self.view.bit)

    def positions(self, node: int) -> list[int]:
        """Positions on a node that can serve now, ascending."""
        return [] if self.view is None else np.flatnonzero(self._here(node)).tolist()

    def _here(self, node: int) -> NDArray[np.bool_]:
        """Which of a node's devices can serve now; worked out for this node alone where nothing is known yet."""
        view = self.view
        if view is None:
            return np.zeros(0, dtype=np.bool_)
        own = view.of_node(node)
        if "fits" in self.__dict__ or own.start == own.stop:
            return self.fits[own]
        rows = view.rows[own]
        core = CORE_WHOLE if self.ask.whole else self.ask.core_percent or 0
        found = self.picture.device_healthy[rows] & (self.picture.core_used[rows] <= CORE_WHOLE - core)
        found &= self.picture.memory_used[rows] <= self.spare[view.class_of[own]]
        return found if self.permitted is None else found & self.permitted[own]
