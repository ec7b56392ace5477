"""Joining groups: the GPUs of a reservation get the groups that there are, or new ones.

Called by the step of a bind that comes before reservation pods are made. Invariants as of `allocations.ledger.groups`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from allocations.choices import GroupState
from allocations.ledger.group_reads import live_groups, lock_gpus, node_named
from allocations.ledger.groups import Group, insert_groups, write_groups
from allocations.models import GpuGroup
from kube.reservation_pod import reservation_pod_name
from nodes.choices import Mode
from nodes.models import Device
from storage.columns import identity, read_identity
from storage.cursors import Query, marks, rows_of
from storage.transactions import atomic_retry

_NODES: Final = (
    "SELECT DISTINCT node.id, node.name FROM allocations_allocation one JOIN nodes_node node ON node.id = one.node_id"
    " WHERE one.id IN ({marks}) AND node.mode = %s"
)
_GRANTS: Final = (
    "SELECT allocation_id, device_id, whole FROM allocations_allocationdevice"
    " WHERE allocation_id IN ({marks}) AND live ORDER BY device_id"
)


class _Grant(NamedTuple):
    """A device that an allocation holds, with its node's id and name."""

    device_id: int
    whole: bool
    node_id: int
    node: str


@atomic_retry
def join_groups(
    allocation_ids: Collection[uuid.UUID], *, pod_namespace: str, now: datetime, actor: str
) -> dict[uuid.UUID, tuple[Group, ...] | None]:
    """The groups of these allocations, begun where their devices have none; None where one takes nobody any more.

    Each GPU that is shared has a group of its own; all whole GPUs of an allocation are one. Only allocations on nodes
    in mode device-plugin have groups.
    """
    keys = [identity(key) for key in allocation_ids]
    nodes = dict(rows_of(Query(_NODES.format(marks=marks(keys)), [*keys, Mode.DEVICE_PLUGIN.value])))
    devices = lock_gpus(nodes)
    by_allocation: dict[uuid.UUID, list[_Grant]] = defaultdict(list)
    # read under the locks: a group that learned its GPUs meanwhile has moved its grants
    for key, device_id, whole in rows_of(Query(_GRANTS.format(marks=marks(keys)), keys)):
        if device_id in devices:
            node_id = devices[device_id].node_id
            by_allocation[read_identity(key)].append(_Grant(device_id, bool(whole), node_id, nodes[node_id]))
    known = {row.name: row for row in live_groups(device.gpu_group for device in devices.values())}
    begun = _Begun(pod_namespace, now, actor, devices, known)
    joined = {key: begun.join(by_allocation.get(key, ())) for key in sorted(allocation_ids)}
    begun.write()
    return joined


class _Begun:
    """The groups of some allocations, found or begun."""

    def __init__(
        self,
        namespace: str,
        now: datetime,
        actor: str,
        devices: Mapping[int, Device],
        known: dict[str, GpuGroup],
    ) -> None:
        self._namespace = namespace
        self._now = now
        self._actor = actor
        self._devices = devices
        self._known = known
        self._new: list[GpuGroup] = []

    def join(self, grants: Sequence[_Grant]) -> tuple[Group, ...] | None:
        whole = [grant for grant in grants if grant.whole]
        rows = [self._group([grant], shared=True) for grant in grants if not grant.whole]
        rows += [self._group(whole, shared=False)] if whole else []
        if any(row is None for row in rows):
            return None
        return tuple(Group.of(row) for row in rows if row is not None)

    def _group(self, grants: Sequence[_Grant], *, shared: bool) -> GpuGroup | None:
        devices = [self._devices[grant.device_id] for grant in grants]
        names = {device.gpu_group for device in devices}
        if names == {""}:
            # what was held before the node failed, or past the snapshot that says so
            put_off = any(device.no_group_until is not None and device.no_group_until > self._now for device in devices)
            return None if put_off else self._begin(grants[0], devices, shared=shared)
        row = self._known.get(names.pop()) if len(names) == 1 else None
        takes = row is not None and row.shared is shared and all(device.gpu_group_open for device in devices)
        return row if takes else None

    def _begin(self, grant: _Grant, devices: Sequence[Device], *, shared: bool) -> GpuGroup:
        name = uuid.uuid4().hex[:12]
        row = GpuGroup(
            name=name,
            node=node_named(grant.node_id, grant.node),
            state=GroupState.WANTED,
            gpus=len(devices),
            shared=shared,
            pod_namespace=self._namespace,
            pod_name=reservation_pod_name(grant.node, name),
            created_at=self._now,
            changed_at=self._now,
        )
        self._known[name] = row
        self._new.append(row)
        for device in devices:
            device.gpu_group, device.gpu_group_open = name, True
        return row

    def write(self) -> None:
        if not self._new:
            return
        insert_groups(self._new, now=self._now, actor=self._actor)
        new = {row.name for row in self._new}
        write_groups([device for device in self._devices.values() if device.gpu_group in new])
