"""What can be worked out about a picture once and used by every request.

`PictureIndex` depends only on which devices exist, so patched pictures share it. `Usage` is what a
type's used columns add up to per node; a patch carries it over and works out again only the nodes
that changed. Called by `engine.build`, `engine.needs` and `engine.plan`. Kept true: per-node arrays
have one entry for each node of the picture, zero where the node has no device of the type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocations.engine.set_scores import SetScores
from allocations.engine.topology import EXACT_UP_TO, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.picture import Picture

Scalar = TypeVar("Scalar", bound=np.generic)

_PATCH_UP_TO = 64
"""Changed nodes up to which usage is carried over node by node."""


@dataclass(frozen=True, slots=True, eq=False)
class TypeView:
    """The v devices of one type in a picture, in the picture's order."""

    everything: bool
    """Whether the picture has no other type, so that columns need no gathering."""
    rows: NDArray[np.intp]
    """[v] device rows."""
    nodes: NDArray[np.intp]
    """[m] nodes that have such a device, ascending."""
    starts: NDArray[np.intp]
    """[m] where each one's devices begin in the view."""
    count: NDArray[np.int32]
    """[n] devices of a node."""
    first: NDArray[np.intp]
    """[n] where its devices begin in the view."""
    memory_total: NDArray[np.int64]
    """[v] bytes."""
    model: NDArray[np.int16]
    """[v] model codes."""
    classes: NDArray[np.int64]
    """[u] the different memory sizes, ascending."""
    class_of: NDArray[np.intp]
    """[v] index into `classes`."""
    node_memory: NDArray[np.float64]
    """[n] bytes of all of a node's devices, 1 where there are none (so that nothing divides by zero)."""
    node_core: NDArray[np.float64]
    """[n] core percent of all of them, 1 where there are none."""
    bit: NDArray[np.int32]
    """[v] 1 << position among the node's devices; 0 on nodes with more than 16."""
    group: NDArray[np.int32]
    """[v] number of the NVLink island, unique over the fleet; for types without islands one per node."""
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
        """[n] the largest number of set values within one island of the node."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """What is used of one type, per node ([n] each)."""

    free_count: NDArray[np.int64]
    """Healthy devices that nobody uses."""
    free_mask: NDArray[np.int64]
    """Their positions as bits; 0 on nodes with more than 16 devices of the type."""
    memory_fraction: NDArray[np.float64]
    core_fraction: NDArray[np.float64]

    @staticmethod
    def of(view: TypeView, picture: Picture) -> Usage:
        """Worked out from the whole columns."""
        memory = view.column(picture.memory_used)
        core = view.column(picture.core_used)
        free = (core == 0) & (memory == 0) & view.column(picture.device_healthy)
        return Usage(
            view.per_node(free.view(np.int8)),
            view.per_node(free * view.bit),
            view.per_node(memory) / view.node_memory,
            view.per_node(core) / view.node_core,
        )

    def patched(self, view: TypeView, picture: Picture, nodes: Sequence[int]) -> Usage:
        """The usage of a picture that differs only on these nodes."""
        count, mask = self.free_count.copy(), self.free_mask.copy()
        memory_fraction, core_fraction = self.memory_fraction.copy(), self.core_fraction.copy()
        for node in nodes:
            if not view.count[node]:
                continue
            own = view.of_node(node)
            start = int(view.rows[own.start])
            rows = slice(start, start + own.stop - own.start)
            memory, core = picture.memory_used[rows], picture.core_used[rows]
            free = (core == 0) & (memory == 0) & picture.device_healthy[rows]
            count[node] = np.count_nonzero(free)
            mask[node] = view.bit[own][free].sum()
            memory_fraction[node] = memory.sum() / view.node_memory[node]
            core_fraction[node] = core.sum(dtype=np.int64) / view.node_core[node]
        return Usage(count, mask, memory_fraction, core_fraction)


@dataclass(frozen=True, slots=True, eq=False)
class PictureIndex:
    """Everything about a picture that its used amounts and health do not change."""

    views: dict[int, TypeView]
    """By type code; types of which there is no device are missing."""
    ids: NDArray[np.int64]
    """[d] device ids, ascending."""
    id_rows: NDArray[np.intp]
    """[d] their rows."""
    topologies: tuple[Topology, ...]
    """The different wirings."""
    topology_of: NDArray[np.int32]
    """[n] index into `topologies`."""
    sets: SetScores
    """How good the best set of each node is."""
    problem_free: NDArray[np.bool_]
    """[n] whether new work may be placed there at all."""
    every_node: NDArray[np.int32]
    """[n] all node rows."""
    by_uuid: dict[str, int] = field(default_factory=dict, repr=False)
    """See `rows_by_uuid`, which fills it when a request first names devices."""

    def rows_of(self, device_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.intp]:
        """The rows of these devices, -1 for one that the picture does not have."""
        asked = np.asarray(device_ids, dtype=np.int64)
        if not len(self.ids):
            return np.full(len(asked), -1, dtype=np.intp)
        place = np.minimum(np.searchsorted(self.ids, asked), len(self.ids) - 1)
        return np.where(self.ids[place] == asked, self.id_rows[place], -1)


def rows_by_uuid(picture: Picture) -> dict[str, int]:
    """UUID → device row, worked out once for all pictures of the same devices."""
    known = picture.index.by_uuid
    if not known:
        known.update({uuid: row for row, uuid in enumerate(picture.device_uuid)})
    return known


def usage_of(picture: Picture, code: int) -> Usage:
    """The usage of a type, worked out once for a picture."""
    known = picture.usage.get(code)
    if known is None:
        known = picture.usage[code] = Usage.of(picture.index.views[code], picture)
    return known


def usage_carried(before: Picture, after: Picture, nodes: Sequence[int]) -> None:
    """Give a patched picture what its forerunner had worked out."""
    if len(nodes) > _PATCH_UP_TO:
        return
    for code, usage in list(before.usage.items()):
        after.usage[code] = usage.patched(after.index.views[code], after, nodes)


def index_of(
    *,
    nodes: int,
    device_id: NDArray[np.int64],
    device_node: NDArray[np.int32],
    device_type: NDArray[np.int16],
    device_model: NDArray[np.int16],
    device_island: NDArray[np.int32],
    memory_total: NDArray[np.int64],
    topologies: Sequence[Topology],
    problems: Sequence[str],
) -> PictureIndex:
    """The index of columns in the picture's order (by node, type code, minor)."""
    order = np.argsort(device_id, kind="stable")
    code_of: dict[Topology, int] = {}
    codes = (code_of.setdefault(topology, len(code_of)) for topology in topologies)
    topology_of = np.fromiter(codes, dtype=np.int32, count=nodes)
    return PictureIndex(
        views={
            code: _view(
                np.flatnonzero(device_type == code), nodes, device_node, device_model, device_island, memory_total
            )
            for code in np.unique(device_type).tolist()
        },
        ids=device_id[order],
        id_rows=order,
        topologies=tuple(code_of),
        topology_of=topology_of,
        sets=SetScores(tuple(code_of), topology_of),
        problem_free=np.array([not problem for problem in problems], dtype=np.bool_),
        every_node=np.arange(nodes, dtype=np.int32),
    )


def _view(
    rows: NDArray[np.intp],
    nodes: int,
    device_node: NDArray[np.int32],
    device_model: NDArray[np.int16],
    device_island: NDArray[np.int32],
    memory_total: NDArray[np.int64],
) -> TypeView:
    node, island, total = device_node[rows], device_island[rows], memory_total[rows]
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
        everything=len(rows) == len(device_node),
        rows=rows,
        nodes=having.astype(np.intp),
        starts=starts.astype(np.intp),
        count=count,
        first=first,
        memory_total=total,
        model=device_model[rows],
        classes=classes,
        class_of=class_of,
        node_memory=np.maximum(memory, 1.0),
        node_core=np.maximum(count * 100.0, 1.0),
        bit=np.where(count[node] <= EXACT_UP_TO, 1 << np.minimum(position, EXACT_UP_TO), 0).astype(np.int32),
        group=group.astype(np.int32),
        group_nodes=(group_keys // span).astype(np.intp),
    )
