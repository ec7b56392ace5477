"""The fleet as the live stream needs it: which devices there are, in which order, and how much of each is given.

Called by `nodes.live.hub`, in a thread. Kept true: after `refresh` the columns are what was committed
before it, by reading only rows whose revision is newer (`nodes.revisions` says why none is missed);
a change of anything but use, health and presence makes a new layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import Count, Max
from numpy.typing import NDArray

from kube.device_types import GPU
from nodes.choices import NodeState, Presence
from nodes.labels import pool_of, rack_of
from nodes.models import Device, Node

HOLDING_STATES = ("held", "reserved")
"""States of an allocation (named in `allocations.choices`, a floor above) in which no pod runs yet."""

_FIELDS = (
    "id", "node_id", "type", "minor", "uuid", "model", "memory_bytes", "island",
    "core_used", "memory_used", "healthy", "presence", "stranger", "conflict", "revision",
)  # fmt: skip
_SHAPE = slice(1, 8)
_Row = tuple[Any, ...]
"""Values of `_FIELDS`."""
_MARK = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


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


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """A node and its devices, GPUs first, by minor."""

    name: str
    rack: str
    pool: str
    mode: str
    devices: tuple[LayoutDevice, ...]
    gpus: tuple[str, ...]
    """UUIDs of the devices that come first, in the order in which agents usually list them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes by rack and name; the rows of the columns are their devices, one after another."""

    nodes: tuple[LayoutNode, ...]

    @property
    def device_count(self) -> int:
        """How many rows there are."""
        return sum(len(node.devices) for node in self.nodes)


class FleetRows:
    """Rows kept up to date. Used by one thread at a time.

    Columns, one entry a device of `layout`: `size` (bytes of memory), `core` and `memory` (uint8, percent given), `healthy`,
    `present`, `stranger`, `held`, `node_ready`, `gpu` (bool).
    """

    def __init__(self) -> None:
        self.layout = Layout(())
        self._mark = -1
        self._row_of: dict[int, int] = {}
        self._shapes: dict[int, _Row] = {}
        self._node_of: NDArray[np.int64] = np.zeros(0, np.int64)
        self._stated: tuple[int, datetime | None] = (0, None)
        self._allocate(0)

    def refresh(self) -> bool:
        """Read what changed. True when the layout is a new one."""
        changed = self._mark < 0 or self._read_changed()
        if changed or self._stated != self._nodes_now():
            self._load()
            changed = True
        self._read_states()
        return changed

    def _read_changed(self) -> bool:
        """Patch use and health; True when something else changed."""
        mark = self._next_mark()
        comparison = "gte" if connection.vendor == "postgresql" else "gt"
        rows = Device.objects.order_by().filter(**{f"revision__{comparison}": self._mark}).values_list(*_FIELDS)
        newest = self._mark
        for row in rows:
            at = self._row_of.get(row[0])
            gone = row[11] == Presence.REMOVED
            if (at is None) != gone or (at is not None and self._shapes[row[0]] != row[_SHAPE]):
                return True
            if at is not None:
                self._put(at, row)
            newest = max(newest, row[-1])
        self._mark = newest if mark is None else mark
        return False

    def _nodes_now(self) -> tuple[int, datetime | None]:
        """Differs once a node came, went, moved or was told about anew (which sets `changed_at`)."""
        told = Node.objects.aggregate(count=Count("pk"), newest=Max("changed_at"))
        return told["count"], told["newest"]

    def _next_mark(self) -> int | None:
        """PostgreSQL: the oldest transaction still open, asked for before the rows are read."""
        if connection.vendor != "postgresql":
            return None
        with connection.cursor() as cursor:
            cursor.execute(_MARK)
            return int(cursor.fetchone()[0])

    def _load(self) -> None:
        mark = self._next_mark()
        self._stated = self._nodes_now()
        nodes = sorted(
            ((rack_of(node.labels), node.name, node) for node in Node.objects.only("pk", "name", "mode", "labels")),
            key=lambda entry: (natural(entry[0]), natural(entry[1])),
        )
        found: dict[int, list[_Row]] = {}
        newest = 0
        for row in Device.objects.order_by().exclude(presence=Presence.REMOVED).values_list(*_FIELDS):
            found.setdefault(row[1], []).append(row)
            newest = max(newest, row[-1])
        ordered = [
            (rack, node, sorted(found.get(node.pk, ()), key=lambda row: (row[2] != GPU, row[2], row[3])))
            for rack, _, node in nodes
        ]
        self.layout = Layout(
            tuple(
                LayoutNode(
                    node.name,
                    rack,
                    pool_of(node.labels),
                    node.mode,
                    tuple(LayoutDevice(row[0], *row[2:8]) for row in rows),
                    tuple(row[4] for row in rows if row[2] == GPU),
                )
                for rack, node, rows in ordered
            )
        )
        flat = [row for _, _, rows in ordered for row in rows]
        self._allocate(len(flat))
        self._row_of = {row[0]: at for at, row in enumerate(flat)}
        self._shapes = {row[0]: row[_SHAPE] for row in flat}
        self._node_of = np.fromiter((row[1] for row in flat), np.int64, len(flat))
        for at, row in enumerate(flat):
            self._put(at, row)
        self._mark = newest if mark is None else mark

    def _allocate(self, count: int) -> None:
        self.size = np.zeros(count, np.float64)
        self.core = np.zeros(count, np.uint8)
        self.memory = np.zeros(count, np.uint8)
        self.healthy = np.zeros(count, bool)
        self.present = np.zeros(count, bool)
        self.stranger = np.zeros(count, bool)
        self.held = np.zeros(count, bool)
        self.node_ready = np.zeros(count, bool)
        self.gpu = np.zeros(count, bool)

    def _put(self, at: int, row: _Row) -> None:
        size, core, used, healthy, presence = row[6], row[8], row[9], row[10], row[11]
        self.size[at] = size
        self.gpu[at] = row[2] == GPU
        self.core[at] = core
        self.memory[at] = min(100, -(-100 * used // size)) if size else 0
        self.healthy[at] = healthy
        self.present[at] = presence == Presence.PRESENT
        self.stranger[at] = bool(row[12] or row[13])

    def _read_states(self) -> None:
        """Holds and the nodes' states: small answers, asked for whole each time."""
        held = Device.objects.filter(grants__live=True, grants__allocation__state__in=HOLDING_STATES)
        self.held[:] = False
        rows = [self._row_of[pk] for pk in held.order_by().values_list("pk", flat=True) if pk in self._row_of]
        self.held[rows] = True
        troubled = list(Node.objects.order_by().exclude(state=NodeState.READY).values_list("pk", flat=True))
        self.node_ready[:] = ~np.isin(self._node_of, troubled)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which `n2` comes before `n10`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
