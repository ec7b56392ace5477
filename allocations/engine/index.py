"""What follows from a snapshot, computed once for all requests.

`SnapshotIndex` depends on which devices exist alone, so patched snapshots share it. `Usage` sums up the used columns of
a type per node; a patch carries it over and recomputes the nodes that changed. Called by `engine.build`, `engine.needs`
and `engine.plan`. Invariants: per-node arrays have one entry for each node of the snapshot, zero where the node has no
device of the type. Threads may share both: of two that compute one value at once, both get the one stored first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocations.engine.set_scores import SetScores
from allocations.engine.topology import EXACT_UP_TO, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class TypeView:
    """The v devices of one type in a snapshot, in the snapshot's order."""

    everything: bool
    """Whether the snapshot has no other type, so that `column` copies nothing."""
    rows: NDArray[np.intp]
    """[v] device rows."""
    nodes: NDArray[np.intp]
    """[m] nodes that have such a device, ascending."""
    starts: NDArray[np.intp]
    """[m] where the devices of each begin in the view."""
    count: NDArray[np.int32]
    """[n] devices of a node."""
    first: NDArray[np.intp]
    """[n] where a node's devices begin in the view."""
    memory_total: NDArray[np.int64]
    """[v] bytes."""
    model: NDArray[np.int16]
    """[v] model codes."""
    classes: NDArray[np.int64]
    """[u] the different memory sizes, ascending."""
    class_of: NDArray[np.intp]
    """[v] index into `classes`."""
    node_memory: NDArray[np.float64]
    """[n] bytes of all of a node's devices, at least 1, to divide by."""
    node_core: NDArray[np.float64]
    """[n] core percent of all of them, at least 1."""
    bit: NDArray[np.int32]
    """[v] 1 << position among the node's devices; 0 on nodes with more than 16."""
    group: NDArray[np.int32]
    """[v] number of the NVLink island, unique in the fleet; for types without islands one a node."""
    group_nodes: NDArray[np.intp]
    """[g] node of each island, ascending."""

    def column(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """[v] this type's part of a column of all devices."""
        return values if self.everything else np.take(values, self.rows)

    def per_node(self, values: NDArray[np.integer]) -> NDArray[np.int64]:
        """[n] sums of [v] integer values over each node's devices."""
        sums = np.zeros(len(self.count), dtype=np.int64)
        if len(self.starts):
            sums[self.nodes] = np.add.reduceat(values, self.starts, dtype=np.int64)
        return sums

    def any_per_node(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] whether any of a node's [v] values is set."""
        found = np.zeros(len(self.count), dtype=np.bool_)
        if len(self.starts):
            found[self.nodes] = np.logical_or.reduceat(values, self.starts)
        return found

    def most_in_group(self, values: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n] the most set values in one island of the node."""
        most = np.zeros(len(self.count), dtype=np.int64)
        if len(self.group_nodes):
            counts = np.bincount(self.group[values], minlength=len(self.group_nodes))
            begins = np.flatnonzero(np.diff(self.group_nodes, prepend=-1))
            most[self.group_nodes[begins]] = np.maximum.reduceat(counts, begins)
        return most

    def of_node(self, node: int) -> slice:
        """The part of the view that is one node's devices."""
        start = int(self.first[node])
        return slice(start, start + int(self.count[node]))


class UseColumns(NamedTuple):
    """[d] what changes about devices while a fleet is in use: core percent, bytes, health, `Grouped`."""

    core: NDArray[np.int16]
    memory: NDArray[np.int64]
    healthy: NDArray[np.bool_]
    group: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """What is used of one type, per node ([n] each)."""

    free_count: NDArray[np.int64]
    """Healthy devices that nobody uses, and no reservation pod has."""
    free_mask: NDArray[np.int64]
    """Their positions as bits; 0 on nodes with more than 16 devices of the type."""
    memory_fraction: NDArray[np.float64]
    core_fraction: NDArray[np.float64]

    @classmethod
    def of(cls, view: TypeView, columns: UseColumns) -> Usage:
        """The usage by the whole columns."""
        memory, core = view.column(columns.memory), view.column(columns.core)
        free = (core == 0) & (memory == 0) & view.column(columns.healthy) & (view.column(columns.group) == 0)
        return cls(
            view.per_node(free.view(np.int8)),
            view.per_node(free * view.bit),
            view.per_node(memory) / view.node_memory,
            view.per_node(core) / view.node_core,
        )

    def patched(self, view: TypeView, columns: UseColumns, nodes: Sequence[int]) -> Usage:
        """The usage by columns that differ only on these nodes."""
        count, mask = self.free_count.copy(), self.free_mask.copy()
        memory_fraction, core_fraction = self.memory_fraction.copy(), self.core_fraction.copy()
        for node in nodes:
            if not view.count[node]:
                continue
            own = view.of_node(node)
            start = int(view.rows[own.start])
            rows = slice(start, start + own.stop - own.start)
            memory, core = columns.memory[rows], columns.core[rows]
            free = (core == 0) & (memory == 0) & columns.healthy[rows] & (columns.group[rows] == 0)
            count[node] = np.count_nonzero(free)
            mask[node] = view.bit[own][free].sum()
            memory_fraction[node] = memory.sum() / view.node_memory[node]
            core_fraction[node] = core.sum(dtype=np.int64) / view.node_core[node]
        return Usage(count, mask, memory_fraction, core_fraction)


@dataclass(frozen=True, eq=False)
class SnapshotIndex:
    """What used amounts and health do not change about a snapshot."""

    views: dict[int, TypeView]
    """By type code; -1: the empty view, of types that no node has."""
    ids: NDArray[np.int64]
    """[d] device ids, ascending."""
    id_rows: NDArray[np.intp]
    """[d] their rows."""
    sets: SetScores
    """How good the best set of each node is."""
    problem_free: NDArray[np.bool_]
    """[n] whether new work may be placed there at all."""
    every_node: NDArray[np.int32]
    """[n] all node rows."""
    uuids: tuple[str, ...]
    """d, by row."""

    @cached_property
    def row_of_uuid(self) -> Mapping[str, int]:
        """UUID → device row; few requests name UUIDs."""
        return {uuid: row for row, uuid in enumerate(self.uuids)}

    def rows_of(self, device_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.intp]:
        """The rows of these devices, -1 for an unknown one."""
        asked = np.asarray(device_ids, dtype=np.int64)
        if not len(self.ids):
            return np.full(len(asked), -1, dtype=np.intp)
        place = np.minimum(np.searchsorted(self.ids, asked), len(self.ids) - 1)
        return np.where(self.ids[place] == asked, self.id_rows[place], -1)


def index_of(
    *,
    topologies: Sequence[Topology],
    problems: Sequence[str],
    types: Sequence[str],
    uuids: tuple[str, ...],
    columns: Mapping[str, NDArray[Any]],
) -> SnapshotIndex:
    """The index of a snapshot with these fields; `columns`: of devices, by the name of the field."""
    nodes = len(topologies)
    order = np.argsort(columns["device_id"], kind="stable")
    code_of: dict[Topology, int] = {}
    codes = (code_of.setdefault(topology, len(code_of)) for topology in topologies)
    topology_of = np.fromiter(codes, dtype=np.int32, count=nodes)
    return SnapshotIndex(
        views={code: _view(code, nodes, columns) for code in range(-1, len(types))},
        ids=columns["device_id"][order],
        id_rows=order,
        sets=SetScores(tuple(code_of), topology_of),
        problem_free=np.array([not problem for problem in problems], dtype=np.bool_),
        every_node=np.arange(nodes, dtype=np.int32),
        uuids=uuids,
    )


def _view(code: int, nodes: int, columns: Mapping[str, NDArray[Any]]) -> TypeView:
    rows = np.flatnonzero(columns["device_type"] == code)
    node, island, total = (columns[name][rows] for name in ("device_node", "device_island", "memory_total"))
    having, starts, counts = np.unique(node, return_index=True, return_counts=True)
    count = np.zeros(nodes, dtype=np.int32)
    count[having] = counts
    first = np.zeros(nodes, dtype=np.intp)
    first[having] = starts
    position = np.arange(len(rows)) - first[node]
    classes, class_of = np.unique(total, return_inverse=True)
    span = int(island.max(initial=0)) + 2
    group_keys, group = np.unique(node.astype(np.int64) * span + island + 1, return_inverse=True)
    memory = np.bincount(node, weights=total, minlength=nodes)
    return TypeView(
        everything=len(rows) == len(columns["device_node"]),
        rows=rows,
        nodes=having.astype(np.intp),
        starts=starts.astype(np.intp),
        count=count,
        first=first,
        memory_total=total,
        model=columns["device_model"][rows],
        classes=classes,
        class_of=class_of,
        node_memory=np.maximum(memory, 1.0),
        node_core=np.maximum(count * 100.0, 1.0),
        bit=np.where(count[node] <= EXACT_UP_TO, 1 << np.minimum(position, EXACT_UP_TO), 0).astype(np.int32),
        group=group.astype(np.int32),
        group_nodes=(group_keys // span).astype(np.intp),
    )
