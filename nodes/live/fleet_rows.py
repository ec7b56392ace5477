"""The fleet's devices for the live stream: their order, and how much of each is allocated.

Called by `nodes.live.hub`, in a thread. Invariants: after `refresh` the columns show all that was committed before it,
though only rows with a newer revision are read (`storage.revisioned_rows`); a change of anything but use, health and
presence makes a new layout; the columns are compared with a full reload every `GPUPLANE_RELOAD_SECONDS`.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import structlog
from django.conf import settings
from numpy.typing import DTypeLike, NDArray

from kube.device_types import GPU, type_order
from nodes.choices import NodeState, Presence
from nodes.labels import pool_of, rack_of
from nodes.models import Node
from nodes.selectors import shown_nodes
from storage.cursors import Query, on_postgresql, rows_of
from storage.revisioned_rows import RevisionedCache, Source

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LayoutDevice:
    """One row of the columns."""

    id: int
    type: str
    minor: int
    uuid: str
    model: str
    memory_bytes: int
    island: int


_Placed = tuple[int, LayoutDevice]
"""Node's id, device: a change of it makes a new layout."""


class _Row(NamedTuple):
    """The columns of a device that are read."""

    id: int
    revision: int
    node_id: int
    type: str
    minor: int
    uuid: str
    model: str
    memory_bytes: int
    island: int
    core_used: int
    memory_used: int
    healthy: bool
    presence: str
    barred: bool
    mig: bool
    parent: str

    @property
    def placed(self) -> _Placed:
        """The device and its node."""
        device = LayoutDevice(self.id, self.type, self.minor, self.uuid, self.model, self.memory_bytes, self.island)
        return self.node_id, device

    @property
    def memory_percent(self) -> int:
        """Allocated, rounded up; 0 for a device without memory."""
        return min(100, -(-100 * self.memory_used // self.memory_bytes)) if self.memory_bytes else 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU other than a MIG instance."""
        return self.type == GPU and not self.parent


_BARRED: Final = "stranger <> '' OR conflict <> '' OR closed <> ''"
_DEVICES: Final = Source(
    _Row,
    tables="nodes_device",
    columns={name: name for name in _Row._fields} | {"barred": _BARRED},
)


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """A node and its devices, GPUs first, by minor."""

    name: str
    rack: str
    pool: str
    mode: str
    devices: tuple[LayoutDevice, ...]
    gpus: tuple[str, ...]
    """UUIDs of the GPUs, in the order of samples."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes by rack and name; the rows of the columns are their devices, one after another."""

    nodes: tuple[LayoutNode, ...]

    @property
    def device_count(self) -> int:
        """Number of rows."""
        return sum(len(node.devices) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """One entry a device, updated in place. `core`, `memory`: percent allocated; `size`: bytes of memory."""

    size: NDArray[np.float64]
    core: NDArray[np.uint8]
    memory: NDArray[np.uint8]
    healthy: NDArray[np.bool_]
    present: NDArray[np.bool_]
    stranger: NDArray[np.bool_]
    """Held outside the ledger, in conflict, or closed."""
    mig: NDArray[np.bool_]
    """In MIG mode."""
    gpu: NDArray[np.bool_]
    """A GPU other than a MIG instance."""

    @staticmethod
    def of(rows: Sequence[_Row]) -> DeviceColumns:
        """The columns of these devices, in their order."""
        columns = {name: np.fromiter(map(read, rows), dtype, len(rows)) for name, (dtype, read) in _READ.items()}
        return DeviceColumns(**columns)

    def put(self, at: int, row: _Row) -> None:
        """Update one device."""
        for name, (_, read) in _READ.items():
            getattr(self, name)[at] = read(row)

    def differing(self, other: DeviceColumns) -> int:
        """Number of devices that differ."""
        return int(np.any([getattr(self, name) != getattr(other, name) for name in _READ], axis=0).sum())


_READ: Final[Mapping[str, tuple[DTypeLike, Callable[[_Row], float]]]] = {
    "size": (np.float64, lambda row: row.memory_bytes),
    "core": (np.uint8, lambda row: row.core_used),
    "memory": (np.uint8, lambda row: row.memory_percent),
    "healthy": (np.bool_, lambda row: row.healthy),
    "present": (np.bool_, lambda row: row.presence == Presence.PRESENT),
    "stranger": (np.bool_, lambda row: row.barred),
    "mig": (np.bool_, lambda row: row.mig),
    "gpu": (np.bool_, lambda row: row.is_gpu),
}
"""Column → type, and value of a device."""


_VERSION: Final = (
    "SELECT count(*), coalesce(sum(id), 0), coalesce(sum({}), 0) FROM nodes_node",
    "(extract(epoch FROM changed_at) * 1000000)::bigint",
    "strftime('%%s', changed_at) * 1000000 + substr(changed_at, 21, 6)",
)
"""The query, and microseconds since 1970 on PostgreSQL and on SQLite, where a time is text."""


class _NodesVersion(NamedTuple):
    """Differs once a node was added, removed or changed (which sets `changed_at`).

    Sums, and not the newest time: a change may be committed after others that are later, or after the clock was set
    back.
    """

    nodes: int
    ids: int
    changed: int

    @staticmethod
    def now() -> _NodesVersion:
        """The current version, by one query."""
        query, postgresql, sqlite = _VERSION
        ((nodes, ids, changed),) = rows_of(Query(query.format(postgresql if on_postgresql() else sqlite), []))
        return _NodesVersion(nodes, int(ids), int(changed))


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What was read of nodes and devices. `row_of`, `placed`: by device id; `node_of`: [devices] ids of their nodes."""

    layout: Layout
    columns: DeviceColumns
    row_of: Mapping[int, int]
    placed: Mapping[int, _Placed]
    node_of: NDArray[np.int64]
    version: _NodesVersion


class FleetRows:
    """Rows kept up to date. Used by one thread at a time.

    `held_devices`: ids of devices that are held for pods that do not run yet. `held`, `node_ready`: one entry a device.
    """

    def __init__(self, held_devices: Callable[[], Collection[int]]) -> None:
        self._held_devices = held_devices
        self._cache = RevisionedCache(
            whole=_DEVICES, changed=_DEVICES, build=_build, patch=_patch, differences=_differences
        )
        self._fleet: _Fleet | None = None
        self._compare_at = 0.0
        self.layout = Layout(())
        self.columns = DeviceColumns.of(())
        self.held = self.node_ready = np.zeros(0, bool)

    def refresh(self) -> bool:
        """Read what changed; whether the layout is a new one."""
        if self._fleet is not None:
            if self._fleet.version != _NodesVersion.now():
                self._cache.forget()
            elif self._compare_at <= time.monotonic():
                self._compare()
        fleet, _ = self._cache.refresh()
        held, ready = self._held(fleet), _ready(fleet)
        first = self._fleet is None
        if first:
            self._compare_at = time.monotonic() + settings.GPUPLANE_RELOAD_SECONDS
        is_new = first or (fleet.layout is not self.layout and fleet.layout != self.layout)
        self._fleet, self.layout, self.columns = fleet, fleet.layout, fleet.columns
        self.held, self.node_ready = held, ready
        return is_new

    def _compare(self) -> None:
        self._compare_at = time.monotonic() + settings.GPUPLANE_RELOAD_SECONDS
        differing = self._cache.compare()
        if differing:
            log.error("fleet.snapshot_differed", devices=differing)

    def _held(self, fleet: _Fleet) -> NDArray[np.bool_]:
        """Read whole each time: few devices are held."""
        held = np.zeros(len(fleet.node_of), bool)
        held[[fleet.row_of[pk] for pk in self._held_devices() if pk in fleet.row_of]] = True
        return held


def _ready(fleet: _Fleet) -> NDArray[np.bool_]:
    not_ready = list(Node.objects.order_by().exclude(state=NodeState.READY).values_list("pk", flat=True))
    return ~np.isin(fleet.node_of, not_ready)


def _build(rows: list[_Row]) -> _Fleet:
    version = _NodesVersion.now()
    nodes = sorted(
        ((rack_of(node.labels), node.name, node) for node in shown_nodes().only("pk", "name", "mode", "labels")),
        key=lambda entry: (natural(entry[0]), natural(entry[1])),
    )
    found: dict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        if row.presence != Presence.REMOVED:
            found[row.node_id].append(row)
    ordered = [
        (rack, node, sorted(found[node.pk], key=lambda row: (type_order(row.type), row.minor)))
        for rack, _, node in nodes
    ]
    flat = [row for _, _, of_node in ordered for row in of_node]
    return _Fleet(
        layout=Layout(tuple(_layout_node(rack, node, of_node) for rack, node, of_node in ordered)),
        columns=DeviceColumns.of(flat),
        row_of={row.id: at for at, row in enumerate(flat)},
        placed={row.id: row.placed for row in flat},
        node_of=np.fromiter((row.node_id for row in flat), np.int64, len(flat)),
        version=version,
    )


def _layout_node(rack: str, node: Node, rows: Sequence[_Row]) -> LayoutNode:
    return LayoutNode(
        name=node.name,
        rack=rack,
        pool=pool_of(node.labels),
        mode=node.mode,
        devices=tuple(row.placed[1] for row in rows),
        gpus=tuple(row.uuid for row in rows if row.is_gpu),
    )


def _patch(fleet: _Fleet, rows: list[_Row]) -> _Fleet | None:
    """Update use and health in place; None when anything else changed."""
    for row in rows:
        at = fleet.row_of.get(row.id)
        gone = row.presence == Presence.REMOVED
        if (at is None) != gone or (at is not None and fleet.placed[row.id] != row.placed):
            return None
        if at is not None:
            fleet.columns.put(at, row)
    return fleet


def _differences(ours: _Fleet, fresh: _Fleet) -> int:
    """Number of devices that differ."""
    if ours.layout != fresh.layout:
        return len(ours.placed.items() ^ fresh.placed.items()) or 1
    return ours.columns.differing(fresh.columns)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which `n2` comes before `n10`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
