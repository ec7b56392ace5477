"""One numpy picture of the fleet per process, kept up to date from the ledger by revision.

Called by the extender, REST claims, explain and reconciling. Kept true: `current()` reflects every
transaction that committed before the call (one query asks for rows at or above the mark of the last
one; `nodes.revisions` says why none is missed), promises to preemptors included; a picture handed out is never changed afterwards.
A change of anything but use (health, links, labels, state of the node) reloads that node's rows.
A background thread compares with a full reload every `GPUPLANE_RELOAD_SECONDS`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import structlog

from allocations.engine.build import DeviceRow, NodeRow, build_picture, patch, replace_nodes
from allocations.engine.picture import DEVICE_PLUGIN, EXCLUSIVE, Picture
from allocations.ledger.keeping import Kept, Taker
from allocations.ledger.sql import read_moment
from audit.cursors import hot_cursor, on_postgresql
from nodes.choices import Mode, NodeState, Presence
from nodes.models import Device, Node

log = structlog.get_logger(__name__)

_DEVICE = (
    "d.revision, d.id, d.core_used, d.memory_used, d.node_id, d.type, d.minor, d.uuid, d.model, d.memory_bytes, "
    "d.numa, d.pcie, d.healthy, d.presence, d.stranger, d.conflict"
)
_NODE = "n.mode, n.state, n.problem, n.changed_at"
_KEPT = "d.kept_for, d.kept_priority, d.kept_until"
_COLUMNS = f"{_DEVICE}, {_NODE}, {_KEPT}"
_SHAPE = slice(4, -3)
"""Columns that describe the device and its node; those before are its use, those after for whom it is kept."""
_SQLITE = f"SELECT {_COLUMNS} FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id WHERE d.revision > %s"  # noqa: S608 - constants
_POSTGRESQL = f"""
SELECT s.mark, s.clock, {_COLUMNS}
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS mark, clock_timestamp() AS clock) s
LEFT JOIN (nodes_device d JOIN nodes_node n ON n.id = d.node_id) ON d.revision >= %s
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class _Known:
    """The picture and what it was made from. `shapes`: device id → hash of what it is; `kept`: device id → for whom, where it is."""

    picture: Picture
    shapes: dict[int, int]
    kept: Mapping[int, Kept]
    mark: int


class Look(NamedTuple):
    """The fleet at one moment. `now`: the database's clock; `kept`: device id → for whom preemption keeps it, few if any."""

    picture: Picture
    now: datetime
    kept: Mapping[int, Kept]

    def kept_from(self, pod_uid: str, rank: int | None) -> set[int]:
        """Ids of devices that whoever asks must leave alone; `rank`: its priority, None below every pod."""
        if not self.kept:
            return set()
        taker = Taker(pod_uid, rank, self.now)
        return {device for device, kept in self.kept.items() if kept.bars(taker)}


class Fleet:
    """The process's picture. Thread-safe: one lock around refreshing; pictures themselves are frozen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: _Known | None = None

    @property
    def loaded(self) -> bool:
        """Whether a picture exists (readiness)."""
        return self._known is not None

    def forget(self) -> None:
        """Drop the picture; the next call loads it whole. For tests that swap databases."""
        with self._lock:
            self._known = None

    def look(self) -> Look:
        """The picture and the promises as of now, and the database's clock."""
        with self._lock:
            if self._known is None:
                self._known = self._load()
            self._known, now = self._refresh(self._known)
            return Look(self._known.picture, now, self._known.kept)

    def compare(self) -> int:
        """Reload everything and compare; returns how many devices differed (they are repaired and logged)."""
        fresh = self._load()
        with self._lock:
            if self._known is None:
                self._known = fresh
                return 0
            # one look at what changed serves both: what commits meanwhile is no difference
            mark, _, rows = _changed(min(self._known.mark, fresh.mark))
            self._known, fresh = self._brought_up(self._known, mark, rows), self._brought_up(fresh, mark, rows)
            differing = _differences(self._known.picture, fresh.picture)
            if differing:
                log.error("fleet.picture_differed", devices=differing)
            self._known = fresh
            return differing

    def _load(self) -> _Known:
        mark, _, rows = _changed(-1)
        return _build(mark, rows)

    def _refresh(self, known: _Known) -> tuple[_Known, datetime]:
        mark, now, rows = _changed(known.mark)
        return self._brought_up(known, mark, rows), now

    def _brought_up(self, known: _Known, mark: int, rows: list[tuple[Any, ...]]) -> _Known:
        """What is known, with the rows that changed since."""
        if not rows:
            return known if mark == known.mark else _Known(known.picture, known.shapes, known.kept, mark)
        reshaped = {row[4] for row in rows if known.shapes.get(row[1]) != hash(row[_SHAPE])}
        picture, kept = known.picture, _kept(known.kept, rows)
        if reshaped:
            picture, shapes = _reshape(picture, known.shapes, reshaped)
            known = _Known(picture, shapes, kept, mark)
        present = (picture.index.rows_of([row[1] for row in rows]) >= 0).tolist()
        uses = [(row[1], row[2], row[3], _healthy(row)) for row, has in zip(rows, present, strict=True) if has]
        return _Known(patch(picture, uses), known.shapes, kept, mark)


def _changed(mark: int) -> tuple[int, datetime, list[tuple[Any, ...]]]:
    """(new mark, database time, device rows changed since `mark`)."""
    with hot_cursor() as cursor:
        if on_postgresql():
            cursor.execute(_POSTGRESQL, [mark])
            found = cursor.fetchall()
            return found[0][0], found[0][1].astimezone(UTC), [row[2:] for row in found if row[3] is not None]
        cursor.execute(_SQLITE, [mark])
        rows = cursor.fetchall()
    return max((row[0] for row in rows), default=mark), datetime.now(UTC), rows


def _healthy(row: tuple[Any, ...]) -> bool:
    return bool(row[12]) and row[13] == Presence.PRESENT and not (row[14] or row[15])


def _kept(before: Mapping[int, Kept], rows: list[tuple[Any, ...]]) -> Mapping[int, Kept]:
    """For whom devices are kept, with the rows that changed since."""
    if not (before or any(row[-3] for row in rows)):
        return before
    found = dict(before)
    for row in rows:
        until = read_moment(row[-1])
        if row[-3] and until is not None:
            found[row[1]] = Kept(row[-3], row[-2], until)
        else:
            found.pop(row[1], None)
    return found


def _build(mark: int, rows: list[tuple[Any, ...]]) -> _Known:
    nodes = _node_rows({row[4] for row in rows}, rows)
    return _Known(build_picture(nodes), {row[1]: hash(row[_SHAPE]) for row in rows}, _kept({}, rows), mark)


def _reshape(picture: Picture, shapes: dict[int, int], node_ids: set[int]) -> tuple[Picture, dict[int, int]]:
    """Read these nodes whole and put them in place of what the picture has under their names."""
    marks = ", ".join(["%s"] * len(node_ids))
    with hot_cursor() as cursor:
        cursor.execute(
            f"SELECT {_COLUMNS} FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id "  # noqa: S608 - only marks put in
            f"WHERE d.node_id IN ({marks})",
            list(node_ids),
        )
        rows = cursor.fetchall()
    nodes = list(_node_rows(node_ids, rows))
    fresh = dict(shapes)
    fresh.update({row[1]: hash(row[_SHAPE]) for row in rows})
    return replace_nodes(picture, nodes), fresh


def _node_rows(node_ids: Iterable[int], rows: list[tuple[Any, ...]]) -> Iterable[NodeRow]:
    """Engine rows of these nodes from device rows; removed devices and gone nodes' devices are left out."""
    ids = set(node_ids)
    many = len(ids) > 500
    described = Node.objects.all() if many else Node.objects.filter(id__in=ids)
    nodes = {node.id: node for node in described.only("id", "name", "mode", "state", "problem", "links")}
    by_node = {
        node_id: list(group) for node_id, group in groupby(sorted(rows, key=lambda row: row[4]), key=lambda row: row[4])
    }
    for node_id in sorted(ids):
        node = nodes.get(node_id)
        if node is None:
            continue
        yield NodeRow(
            name=node.name,
            mode=DEVICE_PLUGIN if node.mode == Mode.DEVICE_PLUGIN else EXCLUSIVE,
            problem=_problem(node),
            links=tuple((link[0], link[1], link[2]) for link in node.links),
            devices=tuple(_device_row(row) for row in by_node.get(node_id, ()) if row[13] != Presence.REMOVED),
        )


def _problem(node: Node) -> str:
    if node.state == NodeState.READY:
        return node.problem
    return node.problem or ("node is gone" if node.state == NodeState.GONE else "node is not ready")


def _device_row(row: tuple[Any, ...]) -> DeviceRow:
    return DeviceRow(
        device_id=row[1],
        uuid=row[7],
        type=row[5],
        minor=row[6],
        model=row[8],
        memory_bytes=row[9],
        numa=row[10],
        pcie=row[11],
        healthy=_healthy(row),
        core_used=row[2],
        memory_used=row[3],
    )


def _differences(ours: Picture, fresh: Picture) -> int:
    """How many devices two pictures disagree on."""
    if _having_devices(ours) != _having_devices(fresh) or not np.array_equal(ours.device_id, fresh.device_id):
        return len(set(ours.device_id.tolist()) ^ set(fresh.device_id.tolist())) or 1
    differ = (
        (ours.core_used != fresh.core_used)
        | (ours.memory_used != fresh.memory_used)
        | (ours.device_healthy != fresh.device_healthy)
        | (ours.memory_total != fresh.memory_total)
    )
    return int(differ.sum())


def _having_devices(picture: Picture) -> list[str]:
    """A node whose last device went stays in a picture until the next full reload, which is no difference."""
    return [picture.node_names[row] for row in np.flatnonzero(np.diff(picture.node_start)).tolist()]


FLEET = Fleet()
"""The picture of this process."""


def loaded() -> bool:
    """Whether this process has a picture (readiness)."""
    return FLEET.loaded


def current() -> tuple[Picture, datetime]:
    """The picture as of now, in this process, and the database's clock."""
    found = FLEET.look()
    return found.picture, found.now


def look() -> Look:
    """The same, with what is promised to preemptors: for whoever takes devices."""
    return FLEET.look()


def device_count() -> int:
    """Devices that the database has (present or held), for the bench and readiness."""
    return Device.objects.exclude(presence=Presence.REMOVED).count()
