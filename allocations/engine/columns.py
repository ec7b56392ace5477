"""The columns of a picture, put together from nodes or from another picture and nodes.

Called by `engine.build` only. Kept true: whichever way it is made, a picture of the same nodes has
the same columns, codes and order.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocations.engine.index import index_of
from allocations.engine.picture import Picture
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from allocations.engine.topology import Topology

Scalar = TypeVar("Scalar", bound=np.generic)
Value = TypeVar("Value")


class NodePart(NamedTuple):
    """A node on its way into a picture: columns of its devices, sorted by type (gpu first) and minor."""

    name: str
    mode: int
    problem: str
    topology: Topology
    ids: Sequence[int]
    uuids: Sequence[str]
    types: Sequence[str]
    models: Sequence[str]
    minors: Sequence[int]
    numa: Sequence[int]
    pcie: Sequence[int]
    islands: Sequence[int]
    healthy: Sequence[bool]
    kept: Sequence[int]
    memory_total: Sequence[int]
    core_used: Sequence[int]
    memory_used: Sequence[int]


def assembled(parts: list[NodePart]) -> Picture:
    """The picture of these nodes. Raises ValueError when two have one name."""
    parts = sorted(parts, key=lambda part: part.name)
    sizes = [len(part.ids) for part in parts]

    def column(field: str, dtype: type[Scalar]) -> NDArray[Scalar]:
        values = chain.from_iterable(getattr(part, field) for part in parts)
        return np.fromiter(values, dtype=dtype, count=sum(sizes))

    types, type_code = _coded((GPU,), chain.from_iterable(part.types for part in parts))
    models, model_code = _coded((), chain.from_iterable(part.models for part in parts))
    device_type = (type_code[kind] for part in parts for kind in part.types)
    device_model = (model_code[model] for part in parts for model in part.models)
    return _picture(
        names=tuple(part.name for part in parts),
        modes=np.array([part.mode for part in parts], dtype=np.uint8),
        problems=tuple(part.problem for part in parts),
        topologies=tuple(part.topology for part in parts),
        types=types,
        models=models,
        uuids=tuple(chain.from_iterable(part.uuids for part in parts)),
        columns={
            "device_id": column("ids", np.int64),
            "device_node": np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
            "device_type": np.fromiter(device_type, dtype=np.int16, count=sum(sizes)),
            "device_model": np.fromiter(device_model, dtype=np.int16, count=sum(sizes)),
            "device_minor": column("minors", np.int32),
            "device_numa": column("numa", np.int32),
            "device_pcie": column("pcie", np.int32),
            "device_island": column("islands", np.int32),
            "device_healthy": column("healthy", np.bool_),
            "device_kept": column("kept", np.uint8),
            "memory_total": column("memory_total", np.int64),
            "core_used": column("core_used", np.int16),
            "memory_used": column("memory_used", np.int64),
        },
    )


_COLUMNS = (
    "device_id",
    "device_minor",
    "device_numa",
    "device_pcie",
    "device_island",
    "device_healthy",
    "device_kept",
    "memory_total",
    "core_used",
    "memory_used",
)
"""Columns whose values mean the same in every picture."""


def joined(picture: Picture, keep: NDArray[np.bool_], other: Picture) -> Picture:
    """The kept nodes of a picture ([n] bool) and all of another's, whose names are different ones."""
    kept_nodes = np.flatnonzero(keep)
    kept_rows = np.flatnonzero(keep[picture.device_node])
    names = [picture.node_names[row] for row in kept_nodes.tolist()] + list(other.node_names)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    place = np.empty(len(names), dtype=np.int32)
    place[order] = np.arange(len(names), dtype=np.int32)
    moved = np.zeros(len(picture.node_names), dtype=np.int32)
    moved[kept_nodes] = place[: len(kept_nodes)]
    node = np.concatenate((moved[picture.device_node[kept_rows]], place[len(kept_nodes) :][other.device_node]))
    by_node = np.argsort(node, kind="stable")

    def both(ours: NDArray[Scalar], theirs: NDArray[Scalar]) -> NDArray[Scalar]:
        return np.concatenate((ours[kept_rows], theirs))[by_node]

    def recoded(
        first: tuple[str, ...], ours: NDArray[np.int16], our_names: tuple[str, ...], theirs: tuple[str, ...]
    ) -> tuple[tuple[str, ...], NDArray[np.int16], NDArray[np.int16]]:
        used = [our_names[code] for code in np.unique(ours[kept_rows]).tolist()]
        all_names, code = _coded(first, chain(used, theirs))
        return all_names, _mapping(our_names, code), _mapping(theirs, code)

    types, our_type, their_type = recoded((GPU,), picture.device_type, picture.types, other.types)
    models, our_model, their_model = recoded((), picture.device_model, picture.models, other.models)
    columns: dict[str, NDArray[np.generic]] = {
        name: both(getattr(picture, name), getattr(other, name)) for name in _COLUMNS
    }
    columns["device_node"] = node[by_node]
    columns["device_type"] = both(our_type[picture.device_type], their_type[other.device_type])
    columns["device_model"] = both(our_model[picture.device_model], their_model[other.device_model])
    uuids = [picture.device_uuid[row] for row in kept_rows.tolist()] + list(other.device_uuid)

    def of_nodes(ours: Sequence[Value], theirs: Sequence[Value]) -> tuple[Value, ...]:
        every = [ours[row] for row in kept_nodes.tolist()] + list(theirs)
        return tuple(every[at] for at in order.tolist())

    return _picture(
        names=tuple(names[at] for at in order.tolist()),
        modes=np.concatenate((picture.node_mode[keep], other.node_mode))[order],
        problems=of_nodes(picture.node_problem, other.node_problem),
        topologies=of_nodes(picture.node_topology, other.node_topology),
        types=types,
        models=models,
        uuids=tuple(uuids[at] for at in by_node.tolist()),
        columns=columns,
    )


def _coded(first: tuple[str, ...], values: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    names = (*first, *sorted(set(values) - set(first)))
    return names, {name: code for code, name in enumerate(names)}


def _mapping(names: tuple[str, ...], code: dict[str, int]) -> NDArray[np.int16]:
    """[names] the new code of each old one; 0 for one that no device has any more."""
    return np.array([code.get(name, 0) for name in names], dtype=np.int16)


def _picture(
    *,
    names: tuple[str, ...],
    modes: NDArray[np.uint8],
    problems: tuple[str, ...],
    topologies: tuple[Topology, ...],
    types: tuple[str, ...],
    models: tuple[str, ...],
    uuids: tuple[str, ...],
    columns: dict[str, Any],
) -> Picture:
    if len(set(names)) != len(names):
        raise ValueError("node names must be unique")
    start = np.zeros(len(names) + 1, dtype=np.int32)
    np.cumsum(np.bincount(columns["device_node"], minlength=len(names)), out=start[1:])
    indexed = ("device_id", "device_node", "device_type", "device_model", "device_island", "memory_total")
    return Picture(
        node_names=names,
        node_index={name: row for row, name in enumerate(names)},
        node_mode=modes,
        node_problem=problems,
        node_start=start,
        node_topology=topologies,
        types=types,
        models=models,
        device_uuid=uuids,
        type_code={kind: code for code, kind in enumerate(types)},
        model_code={model: code for code, model in enumerate(models)},
        index=index_of(
            nodes=len(names),
            topologies=topologies,
            problems=problems,
            **{name: columns[name] for name in indexed},
        ),
        **columns,
    )
