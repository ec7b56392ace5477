"""One numpy picture of the fleet per process, kept up to date from the ledger by revision.

Called by the extender, REST claims, explain and reconciling. Kept true: `current()` reflects every
transaction that committed before the call (one query asks for rows at or above the mark of the last
one; `nodes.revisions` says why none is missed), promises to preemptors included; a picture handed out is never changed afterwards.
A change of anything but use (health, links, labels, state of the node) reloads that node's rows.
A background thread compares with a full reload every `GPUPLANE_RELOAD_SECONDS`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import structlog

from allocations.engine.build import DeviceRow, NodeRow, build_picture, patch, replace_nodes
from allocations.engine.picture import DEVICE_PLUGIN, EXCLUSIVE, Picture, Withheld
from allocations.ledger.keeping import Kept, Taker
from allocations.ledger.sql import read_moment
from audit.cursors import hot_cursor, on_postgresql
from kube.device_types import mig_type
from nodes.choices import Mode, NodeState, Presence
from nodes.models import Device, Node

log = structlog.get_logger(__name__)

_USABLE = "d.healthy AND d.presence = 'present' AND d.stranger = '' AND d.conflict = '' AND d.closed = '' AND NOT d.mig"
_SHAPE = (
    "d.node_id, d.type, d.minor, d.uuid, d.model, d.memory_bytes, d.numa, d.pcie, d.healthy, d.presence, "
    "d.stranger <> '', d.conflict <> '', d.closed <> '', d.mig, d.profile, n.mode, n.state, n.problem, n.changed_at"
)
_FROM = "nodes_device d JOIN nodes_node n ON n.id = d.node_id"


class _Changed(NamedTuple):
    """What filter reads of a device that changed, in the order of `_USE`.

    `shape`: the text of everything that describes the device and its node. One column, since each costs filter a
    microsecond on SQLite, changed rows or none.
    """

    revision: int
    id: int
    core_used: int
    memory_used: int
    node_id: int
    usable: bool
    shape: str
    kept_for: str
    kept_priority: int
    kept_until: object


class _Device(NamedTuple):
    """The same and what describes it, in the order of `_WHOLE`."""

    revision: int
    id: int
    core_used: int
    memory_used: int
    node_id: int
    usable: bool
    shape: str
    kept_for: str
    kept_priority: int
    kept_until: object
    uuid: str
    type: str
    minor: int
    model: str
    memory_bytes: int
    numa: int
    pcie: str
    presence: str
    profile: str
    mig: bool
    barred: bool


_USE = (
    f"d.revision, d.id, d.core_used, d.memory_used, d.node_id, {_USABLE}, {{shape}}, "
    "d.kept_for, d.kept_priority, d.kept_until"
)
_WHOLE = (
    f"{_USE}, d.uuid, d.type, d.minor, d.model, d.memory_bytes, d.numa, d.pcie, d.presence, d.profile, d.mig, "
    "d.stranger <> '' OR d.conflict <> '' OR d.closed <> ''"
)
_Row = TypeVar("_Row", _Changed, _Device)


@dataclass(frozen=True, slots=True)
class _Known:
    """The picture and what it was made from. `shapes`: device id → hash of `shape`; `kept`: device id → for whom, where it is."""

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
            mark, _, rows = _changed(min(self._known.mark, fresh.mark), _Changed)
            self._known, fresh = self._brought_up(self._known, mark, rows), self._brought_up(fresh, mark, rows)
            differing = _differences(self._known.picture, fresh.picture)
            if differing:
                log.error("fleet.picture_differed", devices=differing)
            self._known = fresh
            return differing

    def _load(self) -> _Known:
        mark, _, rows = _changed(-1, _Device)
        return _build(mark, rows)

    def _refresh(self, known: _Known) -> tuple[_Known, datetime]:
        mark, now, rows = _changed(known.mark, _Changed)
        return self._brought_up(known, mark, rows), now

    def _brought_up(self, known: _Known, mark: int, rows: list[_Changed]) -> _Known:
        """What is known, with the rows that changed since."""
        if not rows:
            return known if mark == known.mark else _Known(known.picture, known.shapes, known.kept, mark)
        reshaped = {row.node_id for row in rows if known.shapes.get(row.id) != hash(row.shape)}
        picture, kept = known.picture, _kept(known.kept, rows)
        if reshaped:
            picture, shapes = _reshape(picture, known.shapes, reshaped)
            known = _Known(picture, shapes, kept, mark)
        # a device that its node has no more may still be given back
        uses = [(row.id, row.core_used, row.memory_used, bool(row.usable)) for row in rows]
        return _Known(patch(picture, uses, pass_over_unknown=True), known.shapes, kept, mark)


def _changed(mark: int, kind: type[_Row]) -> tuple[int, datetime, list[_Row]]:
    """(new mark, database time, rows of the devices that changed since `mark`)."""
    with hot_cursor() as cursor:
        cursor.execute(_changed_statement(on_postgresql(), whole=kind is _Device), [mark])
        found = cursor.fetchall()
    if on_postgresql():
        rows = [kind._make(row[2:]) for row in found if row[3] is not None]
        return found[0][0], found[0][1].astimezone(UTC), rows
    rows = [kind._make(row) for row in found]
    return max((row.revision for row in rows), default=mark), datetime.now(UTC), rows


@cache
def _changed_statement(postgresql: bool, *, whole: bool) -> str:
    if not postgresql:
        return f"SELECT {_columns(whole=whole)} FROM {_FROM} WHERE d.revision > %s"  # noqa: S608 - constants
    return f"""
SELECT s.mark, s.clock, {_columns(whole=whole)}
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS mark, clock_timestamp() AS clock) s
LEFT JOIN ({_FROM}) ON d.revision >= %s
"""  # noqa: S608 - constants


def _columns(*, whole: bool) -> str:
    shape = f"ROW({_SHAPE})::text" if on_postgresql() else f"json_array({_SHAPE})"
    return (_WHOLE if whole else _USE).format(shape=shape)


def _kept(before: Mapping[int, Kept], rows: Sequence[_Changed | _Device]) -> Mapping[int, Kept]:
    """For whom devices are kept, with the rows that changed since."""
    if not (before or any(row.kept_for for row in rows)):
        return before
    found = dict(before)
    for row in rows:
        until = read_moment(row.kept_until)
        if row.kept_for and until is not None:
            found[row.id] = Kept(row.kept_for, row.kept_priority, until)
        else:
            found.pop(row.id, None)
    return found


def _build(mark: int, rows: list[_Device]) -> _Known:
    nodes = _node_rows({row.node_id for row in rows}, rows)
    return _Known(build_picture(nodes), {row.id: hash(row.shape) for row in rows}, _kept({}, rows), mark)


def _reshape(picture: Picture, shapes: dict[int, int], node_ids: set[int]) -> tuple[Picture, dict[int, int]]:
    """Read these nodes whole and put them in place of what the picture has under their names."""
    marks = ", ".join(["%s"] * len(node_ids))
    with hot_cursor() as cursor:
        cursor.execute(
            f"SELECT {_columns(whole=True)} FROM {_FROM} WHERE d.node_id IN ({marks})",  # noqa: S608 - only marks put in
            list(node_ids),
        )
        rows = [_Device._make(row) for row in cursor.fetchall()]
    nodes = list(_node_rows(node_ids, rows))
    fresh = dict(shapes)
    fresh.update({row.id: hash(row.shape) for row in rows})
    return replace_nodes(picture, nodes), fresh


def _node_rows(node_ids: Iterable[int], rows: list[_Device]) -> Iterable[NodeRow]:
    """Engine rows of these nodes from device rows; removed devices and gone nodes' devices are left out."""
    ids = set(node_ids)
    many = len(ids) > 500
    described = Node.objects.all() if many else Node.objects.filter(id__in=ids)
    nodes = {node.id: node for node in described.only("id", "name", "mode", "state", "problem", "links")}
    by_node = {node_id: list(group) for node_id, group in groupby(sorted(rows, key=_node_of), key=_node_of)}
    for node_id in sorted(ids):
        node = nodes.get(node_id)
        if node is None:
            continue
        yield NodeRow(
            name=node.name,
            mode=DEVICE_PLUGIN if node.mode == Mode.DEVICE_PLUGIN else EXCLUSIVE,
            problem=_problem(node),
            links=tuple((link[0], link[1], link[2]) for link in node.links),
            devices=tuple(_device_row(row) for row in by_node.get(node_id, ()) if row.presence != Presence.REMOVED),
        )


def _problem(node: Node) -> str:
    if node.state == NodeState.READY:
        return node.problem
    return node.problem or ("node is gone" if node.state == NodeState.GONE else "node is not ready")


_node_of = attrgetter("node_id")


def _device_row(row: _Device) -> DeviceRow:
    return DeviceRow(
        device_id=row.id,
        uuid=row.uuid,
        type=mig_type(row.profile) if row.profile else row.type,
        minor=row.minor,
        model=row.model,
        memory_bytes=row.memory_bytes,
        numa=row.numa,
        pcie=row.pcie,
        healthy=bool(row.usable),
        kept=_withheld(row),
        core_used=row.core_used,
        memory_used=row.memory_used,
    )


def _withheld(row: _Device) -> Withheld:
    """Why a device that is well is given to nobody."""
    if row.mig:
        return Withheld.MIG
    return Withheld.CLOSED if row.barred else Withheld.NOT


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
