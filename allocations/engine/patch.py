"""Makes the next Snapshot from the one before.

Called by `allocations.fleet`, `allocations.scenario` and `engine.plan`. Invariants: a snapshot is never written to;
`patch` copies only the columns that change (used core, used memory, health, group), `replace_nodes` is for everything
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.amounts import merged
from allocations.engine.build import NodeRow, build_snapshot, joined
from allocations.engine.snapshot import Grouped, Snapshot
from claims.dialects.request import CORE_WHOLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from allocations.engine.amounts import Held


_USAGE_CARRIED_UP_TO = 64
"""Changed nodes up to which usage is carried over node by node."""
DeviceUse = tuple[int, int, int, bool]
"""Device id, core percent and bytes used, whether it is healthy."""
_NO_GROUPS: Final[Mapping[int, int]] = MappingProxyType({})


def patch(snapshot: Snapshot, uses: Sequence[DeviceUse], groups: Mapping[int, int] = _NO_GROUPS) -> Snapshot:
    """The snapshot with these uses; the last one of a device counts. Unknown devices are ignored.

    `groups`: device id → `Grouped`, of devices among `uses` alone; others keep theirs.
    """
    if not uses:
        return snapshot
    rows = snapshot.index.rows_of([use[0] for use in uses])
    if min(rows.tolist()) < 0:
        return patch(snapshot, [use for row, use in zip(rows.tolist(), uses, strict=True) if row >= 0], groups)
    if groups:
        grouped = snapshot.device_group.copy()
        for row, use in zip(rows.tolist(), uses, strict=True):
            grouped[row] = groups.get(use[0], grouped[row])
        snapshot = replace(snapshot, device_group=grouped)
    core, memory = snapshot.core_used.copy(), snapshot.memory_used.copy()
    healthy = snapshot.device_healthy.copy()
    for row, use in zip(rows.tolist(), uses, strict=True):
        core[row], memory[row], healthy[row] = use[1], use[2], use[3]
    return _with_columns(snapshot, rows, core, memory, healthy)


def take(snapshot: Snapshot, amounts: Iterable[Held]) -> Snapshot:
    """The snapshot with these amounts taken, whether or not they are free. Unknown devices are ignored."""
    taken = merged(amounts)
    rows = snapshot.index.rows_of(list(taken)).tolist()
    uses = []
    for row, (device, (core, memory)) in zip(rows, taken.items(), strict=True):
        if row >= 0:
            core_used, memory_used = int(snapshot.core_used[row]) + core, int(snapshot.memory_used[row]) + memory
            uses.append((device, core_used, memory_used, bool(snapshot.device_healthy[row])))
    return patch(snapshot, uses)


def with_freed(snapshot: Snapshot, freed: Iterable[Held], blocked: Collection[int]) -> Snapshot:
    """The snapshot with freed amounts given back and blocked devices taken; unknown devices are ignored.

    A device that comes free altogether leaves its group, which ends with its last sharer.
    """
    back = merged(freed)
    if not back and not blocked:
        return snapshot
    core, memory = snapshot.core_used.copy(), snapshot.memory_used.copy()
    rows = snapshot.index.rows_of(list(back))
    for row, (core_percent, memory_bytes) in zip(rows.tolist(), back.values(), strict=True):
        if row >= 0:
            core[row] = max(int(core[row]) - core_percent, 0)
            memory[row] = max(int(memory[row]) - memory_bytes, 0)
    ungrouped = [
        row for row in rows.tolist() if row >= 0 and snapshot.device_group[row] and not core[row] | memory[row]
    ]
    if ungrouped:
        grouped = snapshot.device_group.copy()
        grouped[ungrouped] = Grouped.NOT
        snapshot = replace(snapshot, device_group=grouped)
    taken = snapshot.index.rows_of(sorted(blocked))
    taken = taken[taken >= 0]
    core[taken] = CORE_WHOLE
    memory[taken] = snapshot.memory_total[taken]
    return _with_columns(snapshot, np.concatenate((rows[rows >= 0], taken)), core, memory, snapshot.device_healthy)


def with_less(
    snapshot: Snapshot, rows: NDArray[np.intp], core: NDArray[np.int64], memory: NDArray[np.int64]
) -> Snapshot:
    """The snapshot with so much given back on these device rows; a row may be named again."""
    less_core, less_memory = np.zeros((2, len(snapshot.device_uuid)), np.int64)
    np.add.at(less_core, rows, core)
    np.add.at(less_memory, rows, memory)
    core_used = np.maximum(snapshot.core_used - less_core, 0).astype(snapshot.core_used.dtype)
    return _with_columns(
        snapshot, rows, core_used, np.maximum(snapshot.memory_used - less_memory, 0), snapshot.device_healthy
    )


def replace_nodes(snapshot: Snapshot, nodes: Iterable[NodeRow]) -> Snapshot:
    """The snapshot with these nodes added, or replaced where it has their names."""
    fresh = build_snapshot(nodes)
    if all(_built_alike(snapshot, fresh, row) for row in range(len(fresh.node_names))):
        columns = (fresh.device_id, fresh.core_used, fresh.memory_used, fresh.device_healthy)
        uses = list(zip(*(column.tolist() for column in columns), strict=True))
        groups = dict(zip(fresh.device_id.tolist(), fresh.device_group.tolist(), strict=True))
        return with_problems(
            patch(snapshot, uses, groups), dict(zip(fresh.node_names, fresh.node_problem, strict=True))
        )
    keep = np.array([name not in fresh.node_index for name in snapshot.node_names], dtype=np.bool_)
    return joined(snapshot, keep, fresh)


def with_problems(snapshot: Snapshot, problems: Mapping[str, str]) -> Snapshot:
    """The snapshot with the problem of these nodes (see `NodeRow`); unknown names are ignored."""
    known = {snapshot.node_index[name]: text for name, text in problems.items() if name in snapshot.node_index}
    if all(snapshot.node_problem[row] == text for row, text in known.items()):
        return snapshot
    texts = tuple(known.get(row, text) for row, text in enumerate(snapshot.node_problem))
    free = np.array([not text for text in texts], dtype=np.bool_)
    return replace(snapshot, node_problem=texts, index=replace(snapshot.index, problem_free=free))


_BUILT = (
    "device_id",
    "device_minor",
    "device_numa",
    "device_pcie",
    "device_island",
    "device_kept",
    "memory_total",
)


def _built_alike(snapshot: Snapshot, other: Snapshot, other_row: int) -> bool:
    """Whether the snapshot has the other's node, different at most in problem, health and use."""
    row = snapshot.node_index.get(other.node_names[other_row])
    if row is None:
        return False
    here, there = snapshot.rows_of_node(row), other.rows_of_node(other_row)
    return (
        snapshot.node_mode[row] == other.node_mode[other_row]
        and snapshot.node_topology[row] == other.node_topology[other_row]
        and snapshot.device_uuid[here] == other.device_uuid[there]
        and all(np.array_equal(getattr(snapshot, name)[here], getattr(other, name)[there]) for name in _BUILT)
        and _names(snapshot.types, snapshot.device_type[here]) == _names(other.types, other.device_type[there])
        and _names(snapshot.models, snapshot.device_model[here]) == _names(other.models, other.device_model[there])
    )


def _names(names: tuple[str, ...], codes: NDArray[np.int16]) -> list[str]:
    return [names[code] for code in codes.tolist()]


def _with_columns(
    snapshot: Snapshot,
    rows: NDArray[np.intp],
    core: NDArray[np.int16],
    memory: NDArray[np.int64],
    healthy: NDArray[np.bool_],
) -> Snapshot:
    after = replace(snapshot, core_used=core, memory_used=memory, device_healthy=healthy, usage={})
    nodes = sorted(set(snapshot.device_node[rows].tolist()))
    if len(nodes) <= _USAGE_CARRIED_UP_TO:
        for code, usage in snapshot.usage.copy().items():
            after.usage[code] = usage.patched(after.index.views[code], after.use, nodes)
    return after
