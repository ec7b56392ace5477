"""Joining groups: the GPUs of a reservation get the groups that there are, or new ones.

Called by the step of a bind that comes before reservation pods are made. Invariants as of `allocations.ledger.groups`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from allocations.choices import GroupState
from allocations.ledger.groups import Group, insert_groups, live_groups, lock_gpus, write_groups
from allocations.models import AllocationDevice, GpuGroup
from kube.device_types import GPU
from kube.reservation_pod import reservation_pod_name
from nodes.choices import Mode
from nodes.models import Device
from storage.transactions import atomic_retry


@atomic_retry
def join_groups(
    allocation_ids: Collection[uuid.UUID], *, pod_namespace: str, now: datetime, actor: str
) -> dict[uuid.UUID, tuple[Group, ...] | None]:
    """The groups of these allocations, begun where their devices have none; None where one takes nobody any more.

    Each GPU that is shared has a group of its own; all whole GPUs of an allocation are one. Only allocations on nodes
    in mode device-plugin have groups.
    """
    nodes = AllocationDevice.objects.filter(
        allocation__in=allocation_ids, live=True, type=GPU, allocation__node__mode=Mode.DEVICE_PLUGIN
    ).values_list("allocation__node_id", flat=True)
    devices = lock_gpus(set(nodes))
    by_allocation: dict[uuid.UUID, list[AllocationDevice]] = defaultdict(list)
    # read under the locks: a group that learned its GPUs meanwhile has moved its grants
    grants = AllocationDevice.objects.filter(allocation__in=allocation_ids, live=True, device__in=devices)
    short = grants.select_related("allocation__node").only("device_id", "whole", "allocation__node__name")
    for grant in short.order_by("device_id"):
        by_allocation[grant.allocation_id].append(grant)
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

    def join(self, grants: Sequence[AllocationDevice]) -> tuple[Group, ...] | None:
        whole = [grant for grant in grants if grant.whole]
        rows = [self._group([grant], shared=True) for grant in grants if not grant.whole]
        rows += [self._group(whole, shared=False)] if whole else []
        if any(row is None for row in rows):
            return None
        return tuple(Group.of(row) for row in rows if row is not None)

    def _group(self, grants: Sequence[AllocationDevice], *, shared: bool) -> GpuGroup | None:
        devices = [self._devices[grant.device_id] for grant in grants if grant.device_id is not None]
        names = {device.gpu_group for device in devices}
        if names == {""}:
            # what was held before the node failed, or past the snapshot that says so
            put_off = any(device.no_group_until is not None and device.no_group_until > self._now for device in devices)
            return None if put_off else self._begin(grants[0], devices, shared=shared)
        row = self._known.get(names.pop()) if len(names) == 1 else None
        takes = row is not None and row.shared is shared and all(device.gpu_group_open for device in devices)
        return row if takes else None

    def _begin(self, grant: AllocationDevice, devices: Sequence[Device], *, shared: bool) -> GpuGroup:
        name = uuid.uuid4().hex[:12]
        node = grant.allocation.node
        row = GpuGroup(
            name=name,
            node=node,
            state=GroupState.WANTED,
            gpus=len(devices),
            shared=shared,
            pod_namespace=self._namespace,
            pod_name=reservation_pod_name(node.name, name),
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
