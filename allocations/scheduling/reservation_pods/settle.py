"""What becomes of groups: compares them with the reservation pods that there are, and moves each on.

Called by every comparison with the cluster, by the watch of pods when a reservation pod changed, and by collection.
Level-based: a group is judged by its row, its holders and its pod as they are now, whatever happened before.

Invariants: running pods are never touched, whatever becomes of their reservation pod; a reservation pod is deleted only
when no live group is its own, or its group is being released, or it got other GPUs than its group has; nothing happens
while the API server does not answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog
from django.conf import settings

from allocations.choices import GroupState
from allocations.counters import ReservationFailure, reservation_failed
from allocations.ledger.groups import (
    Group,
    end_groups,
    fail_group,
    forget_gone,
    lose_group,
    note_pods,
    protect_group,
    put_off,
    read_groups,
    release_unused,
)
from allocations.models import GpuGroup
from allocations.scheduling import limits
from allocations.scheduling.reservation_pods.steps import delete_pod, manifest_of
from kube import reservation_pods
from kube.client import Cluster
from kube.errors import KubeError, PermanentKubeError
from kube.reservation_pods import ReservationPod
from nodes.models import KubeletCheckpoint

ACTOR: Final = "reservations"
FORGET: Final = timedelta(hours=1)
YOUNG: Final = timedelta(seconds=60)
"""A pod without a group that is younger may belong to a bind that has not noted it yet."""

log = structlog.get_logger(__name__)


class Settled(msgspec.Struct):
    """How many groups were moved on, and pods without a group deleted."""

    released: int = 0
    failed: int = 0
    lost: int = 0
    protected: int = 0
    made: int = 0
    orphans: int = 0

    def lines(self) -> list[str]:
        """A sentence for each thing done, for people."""
        counts = msgspec.structs.asdict(self)
        return [f"reservation pods: {count} {name}" for name, count in counts.items() if count]


def settle_groups(
    cluster: Cluster, *, now: datetime, names: Collection[str] | None = None, sharing: Collection[str] = ()
) -> Settled:
    """Move on the groups of these names, or all, and delete pods without a group. Raises KubeError for the list.

    `sharing`: groups that running pods name: their pods are left alone, whatever the ledger knows.
    """
    groups = read_groups()
    if names is not None:
        wanted = frozenset(names)
        groups = [group for group in groups if group.name in wanted]
    elif not groups and not settings.GPUPLANE_RESERVATION_IMAGE:
        return Settled()
    forget_gone(now - FORGET)
    done = Settled()
    # the ledger before the cluster: a pod is made after its group
    listed = reservation_pods.list_all(cluster, namespace=settings.GPUPLANE_RESERVATION_NAMESPACE).items
    pods = {pod.metadata.name: pod for pod in listed}
    for group in groups:
        try:
            pod = pods.get(group.pod_name)
            if group.pod_namespace != settings.GPUPLANE_RESERVATION_NAMESPACE:
                found = reservation_pods.find(cluster, namespace=group.pod_namespace, name=group.pod_name)
                pod = cluster.run(found)
            _settle(cluster, group, pod, done, now)
        except KubeError as error:
            log.warning("reservation_pods.not_settled", group=group.name, error=str(error))
    if names is None:
        unnamed = {name: pod for name, pod in pods.items() if pod.group not in sharing}
        done.orphans = _delete_orphans(cluster, unnamed, now)
    return done


def _settle(cluster: Cluster, group: Group, pod: ReservationPod | None, done: Settled, now: datetime) -> None:
    if pod is not None and not pod.is_for(node=group.node, group=group.name):
        pod = None
    if release_unused([group.name], spare=settings.GPUPLANE_SPARE_GROUPS, now=now, actor=ACTOR):
        if cluster.run(delete_pod(cluster, group)):
            done.released += end_groups([group.id], now=now, actor=ACTOR)
        return
    match group.state:
        case GroupState.WANTED | GroupState.STARTING:
            if _is_overdue(group, now):
                reason = "the reservation pod reported no GPU in time"
                if fail_group(group.id, reason, now=now, actor=ACTOR):
                    reservation_failed(ReservationFailure.TIMED_OUT)
                    done.failed += 1
        case GroupState.READY:
            why = _lost(group, pod)
            if why:
                done.lost += lose_group(group.id, why, pod_uid=group.pod_uid, now=now, actor=ACTOR)
                _protect_at_once(cluster, group, pod, done, now)
        case GroupState.UNPROTECTED:
            _protect(cluster, group, pod, done, now)


def _is_overdue(group: Group, now: datetime) -> bool:
    """Whether the binds that wait for the group have given up, or died."""
    longest = limits.RESERVED_LIMIT + timedelta(seconds=limits.reservation_seconds())
    return (group.started_at or group.created_at) < now - longest


def _lost(group: Group, pod: ReservationPod | None) -> str:
    """Why the group's GPUs are not kept any more; empty where they are."""
    if pod is None or pod.uid != group.pod_uid:
        return "its reservation pod is gone"
    if pod.failure:
        return pod.failure
    if pod.uuids and set(pod.uuids) != set(group.uuids):
        return f"its reservation pod has {', '.join(pod.uuids)} now"
    return ""


def _protect_at_once(cluster: Cluster, group: Group, pod: ReservationPod | None, done: Settled, now: datetime) -> None:
    """Go on with a group that is lost now, or was a moment ago by another's doing: no further event may come.

    A pod that is being deleted has its GPU still; the event of its end comes.
    """
    if pod is None or pod.ended:
        for lost in read_groups((GroupState.UNPROTECTED,)):
            if lost.id == group.id:
                _protect(cluster, lost, pod, done, now)


def _protect(cluster: Cluster, group: Group, pod: ReservationPod | None, done: Settled, now: datetime) -> None:
    """Take the GPU from the kubelet again; sharers go on meanwhile."""
    if pod is None:
        if _is_due(group, now):
            done.made += _make_again(cluster, group, now)
    elif pod.uuids and set(pod.uuids) == set(group.uuids) and not pod.failure:
        done.protected += protect_group(group.id, pod_uid=pod.uid, now=now, actor=ACTOR)
    elif pod.uid in group.past_pods:
        # the one that was lost and has ended, or got other GPUs; or one in vain that has not been deleted yet
        if cluster.run(delete_pod(cluster, group, uid=pod.uid)) and _is_due(group, now):
            done.made += _make_again(cluster, group, now)
    elif pod.uuids or pod.failure or _is_late(group, pod, now):
        # it keeps a GPU from others that is not the group's, or none at all. First the row, then the pod: who finds it
        # gone knows that the next one has to wait.
        log.info("reservation_pods.other_gpu", group=group.name, uuids=pod.uuids, failure=pod.failure)
        _put_off(group, [*group.past_pods, pod.uid], now)
        cluster.run(delete_pod(cluster, group, uid=pod.uid))
        reservation_failed(ReservationFailure.UNPROTECTED)


def _is_due(group: Group, now: datetime) -> bool:
    """Whether the next pod may be made. The group was read before the pods: it may have been put off since."""
    same = GpuGroup.objects.filter(pk=group.id, state=GroupState.UNPROTECTED, retries=group.retries)
    return same.exists() and (group.retry_at is None or group.retry_at <= now or _record_changed(group))


def _make_again(cluster: Cluster, group: Group, now: datetime) -> bool:
    try:
        made = cluster.run(reservation_pods.create(cluster, manifest_of(group), timeout=limits.REQUEST_SECONDS))
    except PermanentKubeError as error:
        log.warning("reservation_pods.not_made", group=group.name, error=str(error))
        _put_off(group, group.past_pods, now)
        reservation_failed(ReservationFailure.REFUSED)
        return False
    note_pods({group.id: made.uid}, now=now, actor=ACTOR)
    return True


def _put_off(group: Group, past_pods: Sequence[str], now: datetime) -> None:
    record = _record_without(past_pods, group.node)
    put_off(group.id, now=now, retries=group.retries, past_pods=past_pods, record=record)


def _record_changed(group: Group) -> bool:
    """Whether the kubelet has given or taken back devices since the last try, by others than the group's own pods.

    Their end changes the record too, when the agent tells it: counted as a change, it would end every back-off at once.
    """
    return _record_without(group.past_pods, group.node) != group.vain_record


def _record_without(pod_uids: Collection[str], node: str) -> str:
    """Digest of what the node's kubelet gave to other pods than these."""
    known = KubeletCheckpoint.objects.filter(node__name=node).values_list("entries", flat=True).first()
    others = sorted(entry for entry in known or () if entry[0] not in pod_uids)
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()


def _is_late(group: Group, pod: ReservationPod, now: datetime) -> bool:
    """Whether the pod has had its time. A new one, which another process has not noted yet, counts by its own age."""
    since = group.started_at if pod.uid == group.pod_uid else None
    made = pod.metadata.creation_timestamp
    since = since or (datetime.fromisoformat(made) if made else group.created_at)
    return since < now - timedelta(seconds=limits.reservation_seconds())


def _delete_orphans(cluster: Cluster, pods: Mapping[str, ReservationPod], now: datetime) -> int:
    """Delete pods that no live group has; how many."""
    known = {(group.pod_name, group.name) for group in read_groups()}
    deleted = 0
    for pod in pods.values():
        if (pod.metadata.name, pod.group) in known or not _is_old(pod, now):
            continue
        log.warning("reservation_pods.orphan", pod=pod.metadata.name, group=pod.group)
        namespace, name = pod.metadata.namespace, pod.metadata.name
        try:
            deleted += cluster.run(reservation_pods.delete(cluster, namespace=namespace, name=name, uid=pod.uid))
        except KubeError as error:
            log.warning("reservation_pods.orphan_left", pod=pod.metadata.name, error=str(error))
    return deleted


def _is_old(pod: ReservationPod, now: datetime) -> bool:
    made = pod.metadata.creation_timestamp
    return made is None or datetime.fromisoformat(made) < now - YOUNG
