"""Groups of GPUs behind reservation pods: begun for a bind, followed through their states, ended with the last sharer.

Called by the steps of binds and releases, and by `allocations.scheduling.reservation_pods`. Nodes in mode device-plugin
leave the choice of GPUs to the kubelet, so a group begins on GPUs that are a guess; `allocations.ledger.group_devices`
moves it to those that its reservation pod has reported.

Invariants: each change is one transaction that locks the node's GPUs in their order, along an edge of
`allocations.choices.GROUP_EDGES`, with one event; a device names its group from the moment the group is wanted until
its reservation pod is gone, so the statements that take devices refuse everybody else; a group that lost its last
sharer takes no new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from allocations.choices import GROUP_EDGES, GROUP_LIVE, GROUP_STARTS, GroupState
from allocations.ledger.group_reads import live_groups, lock_gpus, lock_groups
from allocations.models import AllocationDevice, GpuGroup, GroupBackOff
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from kube.device_types import GPU
from nodes.models import Device
from nodes.revisions import next_revision
from storage.cursors import Statement, run_all, write_rows
from storage.transactions import atomic_retry

BACK_OFF: Final = (timedelta(seconds=30), timedelta(minutes=2), timedelta(minutes=10))
"""A node begins no new group for so long after the first failure in a row, the second, and each later one."""
PAST_PODS: Final = 4
"""Of a group: the kubelet's record may still name so many."""

_KINDS: Final = {
    GroupState.STARTING: EventKind.RESERVATION_STARTING,
    GroupState.READY: EventKind.RESERVATION_READY,
    GroupState.UNPROTECTED: EventKind.RESERVATION_UNPROTECTED,
    GroupState.RELEASING: EventKind.RESERVATION_RELEASING,
    GroupState.GONE: EventKind.RESERVATION_GONE,
}
_MOST_REASON: Final = 300
_WRITTEN: Final = (
    *("state", "reason", "uuids", "pod_uid", "retries", "retry_at", "past_pods", "vain_record"),
    *("started_at", "ready_at", "changed_at"),
)
"""Columns of a group that change."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it was read."""

    id: uuid.UUID
    name: str
    node: str
    state: GroupState
    gpus: int
    shared: bool
    uuids: tuple[str, ...]
    pod_namespace: str
    pod_name: str
    pod_uid: str
    retries: int
    retry_at: datetime | None
    past_pods: tuple[str, ...]
    vain_record: str
    created_at: datetime
    started_at: datetime | None
    changed_at: datetime

    @classmethod
    def of(cls, row: GpuGroup) -> Group:
        """The view of a row, with its node."""
        return cls(
            row.id,
            row.name,
            row.node.name,
            GroupState(row.state),
            row.gpus,
            row.shared,
            tuple(row.uuids),
            row.pod_namespace,
            row.pod_name,
            row.pod_uid,
            row.retries,
            row.retry_at,
            tuple(filter(None, row.past_pods.split(","))),
            row.vain_record,
            row.created_at,
            row.started_at,
            row.changed_at,
        )


def back_off(failures: int) -> timedelta:
    """How long nothing is tried after so many failures in a row."""
    return BACK_OFF[min(failures, len(BACK_OFF)) - 1]


def group_rows() -> QuerySet[GpuGroup]:
    """Rows of groups with their nodes, of which only the short columns are read."""
    long = ("node__links", "node__labels", "node__taints", "node__disputed")
    return GpuGroup.objects.select_related("node").defer(*long)


def read_groups(states: Collection[GroupState] = GROUP_LIVE) -> list[Group]:
    """The groups in these states."""
    return [Group.of(row) for row in group_rows().filter(state__in=states)]


def groups_of(allocation_id: uuid.UUID) -> list[Group]:
    """The groups of an allocation's devices, by name."""
    grants = AllocationDevice.objects.filter(allocation=allocation_id, live=True).exclude(device__gpu_group="")
    names = set(grants.values_list("device__gpu_group", flat=True))
    rows = group_rows().filter(name__in=names, state__in=GROUP_LIVE).order_by("name")
    return [Group.of(row) for row in rows]


@atomic_retry
def note_pods(pods: Mapping[uuid.UUID, str], *, now: datetime, actor: str) -> None:
    """Wanted → starting, for groups whose reservation pod was made; `pods`: group → the pod's UID."""
    for row in lock_groups(pods):
        if row.state == GroupState.WANTED:
            row.pod_uid, row.started_at = pods[row.id], now
            move_group(row, GroupState.STARTING, f"reservation pod {row.pod_name} is made", now=now, actor=actor)
        elif row.state in (GroupState.STARTING, GroupState.UNPROTECTED) and row.pod_uid != pods[row.id]:
            row.pod_uid, row.started_at, row.changed_at = pods[row.id], now, now
            row.save(update_fields=["pod_uid", "started_at", "changed_at"])


@atomic_retry
def fail_group(group_id: uuid.UUID, reason: str, *, now: datetime, actor: str) -> bool:
    """Wanted or starting → releasing: no GPU was to be had. The node begins no new group for a while.

    False where the group has moved on.
    """
    (row,) = lock_groups([group_id]) or (None,)
    if row is None or row.state not in (GroupState.WANTED, GroupState.STARTING):
        return False
    lock_gpus([row.node_id])
    close_group(row)
    move_group(row, GroupState.RELEASING, reason, now=now, actor=actor, kind=EventKind.RESERVATION_FAILED)
    known, _ = GroupBackOff.objects.select_for_update().get_or_create(
        node=row.node, defaults={"failures": 0, "until": now, "reason": ""}
    )
    known.failures += 1
    known.until, known.reason = now + back_off(known.failures), reason[:_MOST_REASON]
    known.save()
    gpus = Device.objects.filter(node=row.node, type=GPU)
    gpus.update(no_group_until=known.until, revision=next_revision())
    return True


def end_back_off(node_id: int) -> None:
    """New groups may begin on the node. Call inside a transaction that has locked its GPUs."""
    ended = Statement("DELETE FROM allocations_groupbackoff WHERE node_id = %s", [node_id])
    (written,) = run_all([ended])
    if written.rows:
        shunned = Device.objects.filter(node=node_id, no_group_until__isnull=False)
        shunned.update(no_group_until=None, revision=next_revision())


@atomic_retry
def lose_group(group_id: uuid.UUID, reason: str, *, now: datetime, actor: str, pod_uid: str | None = None) -> bool:
    """Ready → unprotected: the reservation pod is lost while somebody has the GPU. False where the group moved on.

    `pod_uid`: of the pod that was found lost; the group may have another by now.
    """
    (row,) = lock_groups([group_id]) or (None,)
    if row is None or row.state != GroupState.READY or pod_uid not in (None, row.pod_uid):
        return False
    lock_gpus([row.node_id])
    close_group(row)
    row.past_pods, row.pod_uid, row.retry_at = row.pod_uid, "", None
    move_group(row, GroupState.UNPROTECTED, reason, now=now, actor=actor)
    return True


@atomic_retry
def protect_group(group_id: uuid.UUID, *, pod_uid: str, now: datetime, actor: str) -> bool:
    """Unprotected → ready: a new reservation pod has the GPUs that the sharers use. False where the group moved on."""
    (row,) = lock_groups([group_id]) or (None,)
    if row is None or row.state != GroupState.UNPROTECTED:
        return False
    devices = lock_gpus([row.node_id])
    mine = [device for device in devices.values() if device.gpu_group == row.name]
    for device in mine:
        device.gpu_group_open = True
    write_groups(mine)
    row.pod_uid, row.retries, row.retry_at, row.ready_at = pod_uid, 0, None, now
    move_group(row, GroupState.READY, "protected again", now=now, actor=actor)
    announce(node=row.node.name)
    return True


@atomic_retry
def put_off(
    group_id: uuid.UUID, *, now: datetime, retries: int | None = None, past_pods: Sequence[str] = (), record: str = ""
) -> None:
    """Note that a reservation pod of an unprotected group was in vain: the next one is made after the back-off.

    `retries`: as the group was read; nothing where another has noted the same pod meanwhile. `past_pods`: UIDs of the
    group's pods so far, this one too. `record`: digest of the kubelet's record without them.
    """
    for row in lock_groups([group_id]):
        if retries not in (None, row.retries):
            continue
        row.retries += 1
        row.pod_uid, row.retry_at, row.changed_at = "", now + back_off(row.retries), now
        row.past_pods, row.vain_record = ",".join(past_pods[-PAST_PODS:]), record
        row.save(update_fields=["pod_uid", "retries", "retry_at", "changed_at", "past_pods", "vain_record"])


@atomic_retry
def release_unused(names: Collection[str], *, spare: int, now: datetime, actor: str) -> list[Group]:
    """Those of these groups that are being released: all that have no holder, except `spare` warm ones a node."""
    done: list[Group] = []
    for row in live_groups(names, lock=True):
        devices = lock_gpus([row.node_id])
        if row.state == GroupState.RELEASING:
            done.append(Group.of(row))
            continue
        if _is_held(row):
            continue
        if row.state == GroupState.READY and row.shared and _spare_on(row.node_id, row.name) < spare:
            mine = [one for one in devices.values() if one.gpu_group == row.name and not one.gpu_group_open]
            for device in mine:
                device.gpu_group_open = True
            write_groups(mine)
            continue
        close_group(row)
        move_group(row, GroupState.RELEASING, "nobody has the GPU any more", now=now, actor=actor)
        done.append(Group.of(row))
    return done


@atomic_retry
def end_groups(group_ids: Collection[uuid.UUID], *, now: datetime, actor: str) -> int:
    """Releasing → gone, for groups whose reservation pod is gone and that nobody holds; how many ended."""
    ended = 0
    for row in lock_groups(group_ids):
        if row.state != GroupState.RELEASING or _is_held(row):
            continue
        devices = lock_gpus([row.node_id])
        mine = [device for device in devices.values() if device.gpu_group == row.name]
        for device in mine:
            device.gpu_group, device.gpu_group_open = "", False
        write_groups(mine)
        row.pod_uid = ""
        move_group(row, GroupState.GONE, row.reason, now=now, actor=actor)
        announce(node=row.node.name)
        ended += 1
    return ended


def forget_gone(before: datetime) -> int:
    """Delete the rows of groups that are gone since before that moment; how many."""
    return group_rows().filter(state=GroupState.GONE, changed_at__lt=before).delete()[0]


def insert_groups(rows: Sequence[GpuGroup], *, now: datetime, actor: str) -> None:
    """Insert groups in the states in which groups begin, with their events. Call inside a transaction."""
    for row in rows:
        if row.state not in GROUP_STARTS:
            raise ValueError(f"no group begins {row.state}")
        row.created_at = row.changed_at = now
    GpuGroup.objects.bulk_create(rows)
    record_many([_begun(row, now, actor) for row in rows])


def _begun(row: GpuGroup, now: datetime, actor: str) -> NewEvent:
    gpus = f"{gpus_text(row)} of {row.node.name}"
    if row.state == GroupState.WANTED:
        return group_event(row, EventKind.RESERVATION_WANTED, f"{gpus} wanted", now=now, actor=actor)
    message = f"reservation pod {row.pod_namespace}/{row.pod_name} has {gpus}"
    return group_event(row, EventKind.RESERVATION_ADOPTED, message, now=now, actor=actor)


def move_group(
    row: GpuGroup,
    target: GroupState,
    reason: str,
    *,
    now: datetime,
    actor: str,
    kind: EventKind | None = None,
) -> None:
    """Save the locked row in the new state, with an event. Raises ValueError for a move that is no edge."""
    source = GroupState(row.state)
    if target not in GROUP_EDGES[source]:
        raise ValueError(f"no move of a group from {source} to {target}")
    row.state, row.reason, row.changed_at = target, reason[:_MOST_REASON], now
    write_rows([row], _WRITTEN)
    message = f"{gpus_text(row)} of {row.node.name}: {target.label}" + (f", {reason}" if reason else "")
    record_many([group_event(row, kind or _KINDS[target], message, now=now, actor=actor)])


def write_groups(devices: Sequence[Device]) -> None:
    """Write the group of these locked devices, so that every snapshot learns of it."""
    if not devices:
        return
    revision = next_revision()
    for device in devices:
        device.revision = revision
    write_rows(devices, ("gpu_group", "gpu_group_open", "revision"))


def close_group(row: GpuGroup) -> None:
    """Let the group's devices take nobody new. Call with the node's GPUs locked."""
    mine = Device.objects.filter(node=row.node_id, gpu_group=row.name)
    mine.update(gpu_group_open=False, revision=next_revision())


def _is_held(row: GpuGroup) -> bool:
    held = AllocationDevice.objects.filter(device__gpu_group=row.name, device__node=row.node_id, live=True)
    return held.exists()


def _spare_on(node_id: int, but: str) -> int:
    """How many other groups of the node wait for sharers."""
    idle = Device.objects.filter(node=node_id, type=GPU, core_used=0, memory_used=0, gpu_group_open=True)
    return idle.exclude(gpu_group=but).exclude(gpu_group="").count()


def gpus_text(row: GpuGroup) -> str:
    """`group a1b2 (2 GPUs)`, for people."""
    return f"group {row.name} ({'1 GPU' if row.gpus == 1 else f'{row.gpus} GPUs'})"


def group_event(row: GpuGroup, kind: EventKind, message: str, *, now: datetime, actor: str) -> NewEvent:
    """An event of the group."""
    return NewEvent(
        kind=kind,
        message=message,
        actor=actor,
        at=now,
        name=row.name,
        node=row.node.name,
        data={"group": row.name, "pod": row.pod_name, "uuids": list(row.uuids)},
    )
