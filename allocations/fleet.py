"""One numpy snapshot of the fleet per process, kept up to date from the ledger by revision.

Called by the extender, REST claims, explain and preemption. Invariants: `current()` reflects every transaction that
committed before the call, reservations of preemptors included, by one query (`storage.revisioned_rows` says why none is
missed); a snapshot is never changed afterwards. A change of anything but use (health, links, labels, state of the node)
reloads that node's rows. A background thread compares with a full reload every `GPUPLANE_RELOAD_SECONDS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from allocations.engine.build import DeviceRow, NodeRow, build_snapshot
from allocations.engine.patch import patch, replace_nodes
from allocations.engine.snapshot import DEVICE_PLUGIN, EXCLUSIVE, Grouped, Snapshot, Withheld
from allocations.ledger.device_reservations import KeptFor, Taker
from claims.dialects.request import DeviceRequest
from kube.device_types import mig_type
from nodes.choices import Mode, NodeState, Presence
from nodes.models import Device, Node
from storage.columns import read_moment
from storage.cursors import Query
from storage.revisioned_rows import AsText, RevisionedCache, Source

log = structlog.get_logger(__name__)

_TABLES: Final = "nodes_device d JOIN nodes_node n ON n.id = d.node_id"


class _Changed(NamedTuple):
    """What filter reads of a device that changed. `shape`: all that describes the device and its node."""

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
    grouped: int
    no_group_until: object


class _Device(NamedTuple):
    """The same, and the fields that describe the device."""

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
    grouped: int
    no_group_until: object
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


_COLUMNS: Final[Mapping[str, str | AsText]] = {
    **{name: f"d.{name}" for name in _Device._fields},
    "usable": (
        "d.healthy AND d.presence = 'present' AND d.stranger = '' AND d.conflict = '' AND d.closed = '' AND NOT d.mig "
        "AND (d.gpu_group = '' OR d.gpu_group_open)"
    ),
    "grouped": "CASE WHEN d.gpu_group = '' THEN 0 WHEN d.gpu_group_open THEN 1 ELSE 2 END",
    "shape": AsText(
        "d.node_id, d.type, d.minor, d.uuid, d.model, d.memory_bytes, d.numa, d.pcie, d.healthy, d.presence, "
        "d.stranger <> '', d.conflict <> '', d.closed <> '', d.mig, d.profile, n.mode, n.state, n.problem, n.changed_at"
    ),
    "barred": "d.stranger <> '' OR d.conflict <> '' OR d.closed <> ''",
}
_CHANGED: Final = Source(_Changed, tables=_TABLES, columns=_COLUMNS)
_WHOLE: Final = Source(_Device, tables=_TABLES, columns=_COLUMNS)


@dataclass(frozen=True, slots=True)
class _State:
    """A snapshot and what it was made from.

    `shapes`: device id → hash of `shape`; `kept`: device id → the pods that it is kept for; `shunned`: device id →
    until when no group may begin there.
    """

    snapshot: Snapshot
    shapes: dict[int, int]
    kept: Mapping[int, KeptFor]
    shunned: Mapping[int, datetime]


class FleetSnapshot(NamedTuple):
    """The fleet at one moment. `now`: the database's clock; `kept`: device id → the pods that it is kept for;
    `shunned`: device id → until when no group may begin there.
    """

    snapshot: Snapshot
    now: datetime
    kept: Mapping[int, KeptFor]
    shunned: Mapping[int, datetime] = MappingProxyType({})

    def kept_from(self, pod_uid: str, rank: int | None) -> set[int]:
        """Ids of devices that the pod must not take; `rank`: its priority, None below every pod."""
        if not self.kept:
            return set()
        taker = Taker(pod_uid, rank, self.now)
        return {device for device, kept in self.kept.items() if kept.bars(taker)}

    def blocked(
        self, pod_uid: str, rank: int | None, request: DeviceRequest, *, admitted: Collection[int] = ()
    ) -> set[int]:
        """Ids of devices that the pod must not take now for this request.

        `admitted`: those where the queues gave the pod its part; for whom the rest is kept does not matter.
        """
        return self.kept_from(pod_uid, rank).difference(admitted) | self.without_group(request)

    def nodes_put_off(self) -> frozenset[int]:
        """Rows of the nodes that begin no new group for now."""
        if not self.shunned:
            return frozenset()
        devices = [device for device, until in self.shunned.items() if until > self.now]
        rows = [row for row in self.snapshot.index.rows_of(devices).tolist() if row >= 0]
        return frozenset(self.snapshot.device_node[rows].tolist())

    def without_group(self, request: DeviceRequest) -> set[int]:
        """Ids of devices where the request would need a new group, and none may begin for now."""
        if not self.shunned or request.for_kubelet:
            return set()
        snapshot, shunned = self.snapshot, [device for device, until in self.shunned.items() if until > self.now]
        rows = snapshot.index.rows_of(shunned).tolist()
        return {
            device for device, row in zip(shunned, rows, strict=True) if row >= 0 and not snapshot.device_group[row]
        }


def _patch(state: _State, rows: list[_Changed]) -> _State:
    snapshot, shapes = state.snapshot, state.shapes
    reshaped = {row.node_id for row in rows if shapes.get(row.id) != hash(row.shape)}
    if reshaped:
        devices = _WHOLE.having("node_id", reshaped)
        snapshot = replace_nodes(snapshot, _node_rows(reshaped, devices))
        shapes = shapes | {row.id: hash(row.shape) for row in devices}
    # a device that its node has no more may still be given back
    uses = [(row.id, row.core_used, row.memory_used, bool(row.usable)) for row in rows]
    groups = {row.id: row.grouped for row in rows}
    return _State(patch(snapshot, uses, groups), shapes, _kept(state.kept, rows), _shunned(state.shunned, rows))


def _kept(before: Mapping[int, KeptFor], rows: Sequence[_Changed | _Device]) -> Mapping[int, KeptFor]:
    if not (before or any(row.kept_for for row in rows)):
        return before
    found = dict(before)
    for row in rows:
        until = read_moment(row.kept_until)
        if row.kept_for and until is not None:
            found[row.id] = KeptFor.read(row.kept_for, row.kept_priority, until)
        else:
            found.pop(row.id, None)
    return found


def _shunned(before: Mapping[int, datetime], rows: Sequence[_Changed | _Device]) -> Mapping[int, datetime]:
    if not (before or any(row.no_group_until for row in rows)):
        return before
    found = dict(before)
    for row in rows:
        until = read_moment(row.no_group_until)
        if until is None:
            found.pop(row.id, None)
        else:
            found[row.id] = until
    return found


def _build(rows: list[_Device]) -> _State:
    # a node that has removed devices alone is as good as none: nobody is told why it refuses
    nodes = _node_rows({row.node_id for row in rows if row.presence != Presence.REMOVED}, rows)
    shapes = {row.id: hash(row.shape) for row in rows}
    return _State(build_snapshot(nodes), shapes, _kept({}, rows), _shunned({}, rows))


def _node_rows(node_ids: set[int], rows: list[_Device]) -> Iterator[NodeRow]:
    """Engine rows of these nodes from device rows, without removed devices."""
    described = Node.objects.all() if len(node_ids) > 500 else Node.objects.filter(id__in=node_ids)
    devices: dict[int, list[DeviceRow]] = defaultdict(list)
    for row in rows:
        if row.presence != Presence.REMOVED:
            devices[row.node_id].append(_device_row(row))
    for node in described.only("id", "name", "mode", "state", "problem", "links"):
        if node.id in node_ids:
            yield NodeRow(
                name=node.name,
                mode=DEVICE_PLUGIN if node.mode == Mode.DEVICE_PLUGIN else EXCLUSIVE,
                problem=_problem(node),
                links=tuple((link[0], link[1], link[2]) for link in node.links),
                devices=tuple(devices[node.id]),
            )


def _problem(node: Node) -> str:
    if node.state == NodeState.READY:
        return node.problem
    return node.problem or ("node is gone" if node.state == NodeState.GONE else "node is not ready")


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
        kept=Withheld.MIG if row.mig else Withheld.CLOSED if row.barred else Withheld.NOT,
        group=Grouped(row.grouped),
        core_used=row.core_used,
        memory_used=row.memory_used,
    )


def _differences(state: _State, other: _State) -> int:
    """How many devices two snapshots disagree on."""
    ours, fresh = state.snapshot, other.snapshot
    if _having_devices(ours) != _having_devices(fresh) or not np.array_equal(ours.device_id, fresh.device_id):
        return len(set(ours.device_id.tolist()) ^ set(fresh.device_id.tolist())) or 1
    differ = (
        (ours.core_used != fresh.core_used)
        | (ours.memory_used != fresh.memory_used)
        | (ours.device_healthy != fresh.device_healthy)
        | (ours.memory_total != fresh.memory_total)
        | (ours.device_group != fresh.device_group)
    )
    return int(differ.sum())


def _having_devices(snapshot: Snapshot) -> list[str]:
    """Nodes with devices: one whose last device went stays in a snapshot until the next full reload."""
    return [snapshot.node_names[row] for row in np.flatnonzero(np.diff(snapshot.node_start)).tolist()]


_CACHE: Final = RevisionedCache(whole=_WHOLE, changed=_CHANGED, build=_build, patch=_patch, differences=_differences)


def current() -> FleetSnapshot:
    """The fleet as of now."""
    state, now = _CACHE.refresh()
    return FleetSnapshot(state.snapshot, now, state.kept, state.shunned)


def current_beside(queries: Sequence[Query]) -> tuple[FleetSnapshot, Sequence[list[Any]]]:
    """The same, and the rows of queries that run after it, on PostgreSQL in the same round trip."""
    state, now, rows = _CACHE.refresh_beside(queries)
    return FleetSnapshot(state.snapshot, now, state.kept, state.shunned), rows


def loaded() -> bool:
    """Whether this process has a snapshot (readiness)."""
    return _CACHE.loaded


def compare() -> int:
    """Reload everything and compare; returns how many devices differed (they are repaired and logged)."""
    differing = _CACHE.compare()
    if differing:
        log.error("fleet.snapshot_differed", devices=differing)
    return differing


def forget() -> None:
    """Drop the snapshot; the next call loads it whole. For tests that swap databases."""
    _CACHE.forget()


def device_count() -> int:
    """Devices that the database has, present or held."""
    return Device.objects.exclude(presence=Presence.REMOVED).count()
