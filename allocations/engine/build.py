"""Builds a Snapshot, from plain rows or from two snapshots.

Called by `allocations.fleet` (rows from the ledger), `allocations.scenario` (rows from a file) and `engine.patch`.
Invariants: however it is made, a snapshot of the same nodes has the same columns, codes and order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from allocations.engine.index import index_of
from allocations.engine.snapshot import EXCLUSIVE, Grouped, Snapshot, Withheld
from allocations.engine.topology import Topology
from kube.device_types import GPU

Scalar = TypeVar("Scalar", bound=np.generic)
Value = TypeVar("Value")


class DeviceRow(msgspec.Struct, frozen=True):
    """One device. Memory in bytes, 0 or None where the type has none; `pcie` names its switch, empty if unknown."""

    device_id: int
    uuid: str
    type: str
    minor: int
    model: str = ""
    memory_bytes: int | None = None
    numa: int = -1
    pcie: str = ""
    healthy: bool = True
    kept: Withheld = Withheld.NOT
    """Anything but `NOT` comes with `healthy` False."""
    group: Grouped = Grouped.NOT
    core_used: int = 0
    memory_used: int = 0


class NodeRow(msgspec.Struct, frozen=True):
    """One node: `problem` is why nothing new may be placed there, `links` are [GPU minor, GPU minor, NVLinks]."""

    name: str
    mode: int = EXCLUSIVE
    problem: str = ""
    links: tuple[tuple[int, int, int], ...] = ()
    devices: tuple[DeviceRow, ...] = ()


_OF_DEVICES: Final[Mapping[str, tuple[type[np.generic], Callable[[DeviceRow], int]]]] = {
    "device_id": (np.int64, lambda device: device.device_id),
    "device_minor": (np.int32, lambda device: device.minor),
    "device_numa": (np.int32, lambda device: device.numa),
    "device_healthy": (
        np.bool_,
        lambda device: device.healthy and device.kept is Withheld.NOT and device.group is not Grouped.CLOSED,
    ),
    "device_kept": (np.uint8, lambda device: device.kept),
    "device_group": (np.uint8, lambda device: device.group),
    "memory_total": (np.int64, lambda device: device.memory_bytes or 0),
    "core_used": (np.int16, lambda device: device.core_used),
    "memory_used": (np.int64, lambda device: device.memory_used),
}
"""Columns that follow from a device alone: dtype and value."""
_UNCODED: Final = (*_OF_DEVICES, "device_pcie", "device_island")
"""Columns whose values mean the same in every snapshot."""


class _Node(NamedTuple):
    """A node on its way into a snapshot, its devices sorted by type (gpu first) and minor."""

    row: NodeRow
    devices: list[DeviceRow]
    topology: Topology

    @staticmethod
    def of(row: NodeRow) -> _Node:
        devices = sorted(row.devices, key=lambda one: (one.type != GPU, one.type, one.minor))
        gpus = [one for one in devices if one.type == GPU]
        minors, pcie, numa = ([getattr(one, name) for one in gpus] for name in ("minor", "pcie", "numa"))
        return _Node(row, devices, Topology.of(minors, row.links, pcie=pcie, numa=numa))

    @property
    def switches(self) -> list[int]:
        """The code of each device's PCIe switch, -1 where unknown."""
        codes: dict[str, int] = {}
        return [codes.setdefault(one.pcie, len(codes)) if one.pcie else -1 for one in self.devices]

    @property
    def islands(self) -> list[int]:
        """The NVLink island of each device, -1 for other types than GPUs."""
        return [*self.topology.islands, *[-1] * (len(self.devices) - self.topology.size)]


def build_snapshot(rows: Iterable[NodeRow]) -> Snapshot:
    """The snapshot of these nodes, whose device ids are unique. Raises ValueError when two have one name."""
    nodes = sorted(map(_Node.of, rows), key=lambda node: node.row.name)
    devices = [device for node in nodes for device in node.devices]

    def column(dtype: type[Scalar], values: Iterable[Any]) -> NDArray[Scalar]:
        return np.fromiter(values, dtype=dtype, count=len(devices))

    types, type_code = _coded((GPU,), (device.type for device in devices))
    models, model_code = _coded((), (device.model for device in devices))
    columns: dict[str, NDArray[Any]] = {
        name: column(dtype, map(value, devices)) for name, (dtype, value) in _OF_DEVICES.items()
    }
    sizes = [len(node.devices) for node in nodes]
    columns["device_node"] = np.repeat(np.arange(len(nodes), dtype=np.int32), sizes)
    columns["device_type"] = column(np.int16, (type_code[device.type] for device in devices))
    columns["device_model"] = column(np.int16, (model_code[device.model] for device in devices))
    columns["device_pcie"] = column(np.int32, chain.from_iterable(node.switches for node in nodes))
    columns["device_island"] = column(np.int32, chain.from_iterable(node.islands for node in nodes))
    return _snapshot(
        names=tuple(node.row.name for node in nodes),
        modes=np.array([node.row.mode for node in nodes], dtype=np.uint8),
        problems=tuple(node.row.problem for node in nodes),
        topologies=tuple(node.topology for node in nodes),
        types=types,
        models=models,
        uuids=tuple(device.uuid for device in devices),
        columns=columns,
    )


def joined(snapshot: Snapshot, keep: NDArray[np.bool_], other: Snapshot) -> Snapshot:
    """The kept nodes of a snapshot ([n] bool) and all of another's, whose names are different ones."""
    kept_nodes = np.flatnonzero(keep)
    kept_rows = np.flatnonzero(keep[snapshot.device_node])
    names = [snapshot.node_names[row] for row in kept_nodes.tolist()] + list(other.node_names)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    place = np.empty(len(names), dtype=np.int32)
    place[order] = np.arange(len(names), dtype=np.int32)
    moved = np.zeros(len(snapshot.node_names), dtype=np.int32)
    moved[kept_nodes] = place[: len(kept_nodes)]
    node = np.concatenate((moved[snapshot.device_node[kept_rows]], place[len(kept_nodes) :][other.device_node]))
    by_node = np.argsort(node, kind="stable")

    def both(first: NDArray[Scalar], second: NDArray[Scalar]) -> NDArray[Scalar]:
        return np.concatenate((first[kept_rows], second))[by_node]

    def recoded(
        fixed: tuple[str, ...], field: str, old: tuple[str, ...], new: tuple[str, ...]
    ) -> tuple[tuple[str, ...], NDArray[np.int16]]:
        codes: NDArray[np.int16] = getattr(snapshot, field)
        used = [old[code] for code in np.unique(codes[kept_rows]).tolist()]
        names, code_of = _coded(fixed, chain(used, new))
        # a name that no device has any more gets any code
        translated = [np.array([code_of.get(name, 0) for name in some], dtype=np.int16) for some in (old, new)]
        return names, both(translated[0][codes], translated[1][getattr(other, field)])

    columns: dict[str, NDArray[Any]] = {name: both(getattr(snapshot, name), getattr(other, name)) for name in _UNCODED}
    columns["device_node"] = node[by_node]
    types, columns["device_type"] = recoded((GPU,), "device_type", snapshot.types, other.types)
    models, columns["device_model"] = recoded((), "device_model", snapshot.models, other.models)
    uuids = [snapshot.device_uuid[row] for row in kept_rows.tolist()] + list(other.device_uuid)

    def of_nodes(first: Sequence[Value], second: Sequence[Value]) -> tuple[Value, ...]:
        every = [first[row] for row in kept_nodes.tolist()] + list(second)
        return tuple(every[at] for at in order.tolist())

    return _snapshot(
        names=of_nodes(snapshot.node_names, other.node_names),
        modes=np.concatenate((snapshot.node_mode[keep], other.node_mode))[order],
        problems=of_nodes(snapshot.node_problem, other.node_problem),
        topologies=of_nodes(snapshot.node_topology, other.node_topology),
        types=types,
        models=models,
        uuids=tuple(uuids[at] for at in by_node.tolist()),
        columns=columns,
    )


def _coded(first: tuple[str, ...], values: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    names = (*first, *sorted(set(values) - set(first)))
    return names, {name: code for code, name in enumerate(names)}


def _snapshot(
    *,
    names: tuple[str, ...],
    modes: NDArray[np.uint8],
    problems: tuple[str, ...],
    topologies: tuple[Topology, ...],
    types: tuple[str, ...],
    models: tuple[str, ...],
    uuids: tuple[str, ...],
    columns: dict[str, Any],
) -> Snapshot:
    if len(set(names)) != len(names):
        raise ValueError("node names must be unique")
    start = np.zeros(len(names) + 1, dtype=np.int32)
    np.cumsum(np.bincount(columns["device_node"], minlength=len(names)), out=start[1:])
    return Snapshot(
        node_names=names,
        node_index={name: row for row, name in enumerate(names)},
        node_mode=modes,
        node_problem=problems,
        node_start=start,
        node_topology=topologies,
        types=types,
        type_code={kind: code for code, kind in enumerate(types)},
        models=models,
        device_uuid=uuids,
        index=index_of(topologies=topologies, problems=problems, types=types, uuids=uuids, columns=columns),
        **columns,
    )
