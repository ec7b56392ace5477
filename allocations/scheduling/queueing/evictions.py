"""Carries evictions out, and keeps the devices of the evicted for the workloads that get them.

Invariants: nobody is evicted before every victim of the same taker passed a trial by the API server, which asks the
disruption budgets; a pod whose budget forbids it is left alone for a while, so that the plan is made without it.
Devices are kept for as long as their taker waits for victims, by rows that a later round replaces; a workload that goes
now gets its part of such a device all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.engine.queueing.rounds import Admission, Eviction
from allocations.ledger.device_reservations import keep
from allocations.models import QueueReservation
from allocations.scheduling.binder import release_now
from allocations.scheduling.queueing.admission import ACTOR
from allocations.scheduling.queueing.round_input import RoundInput
from allocations.scheduling.queueing.waiting_rows import Holder
from kube import pods
from kube.client import Cluster
from kube.errors import ConflictInCluster, KubeError, Throttled
from storage.transactions import atomic_retry

KEPT: Final = timedelta(seconds=60)

log = structlog.get_logger(__name__)


def evict(cluster: Cluster | None, inputs: RoundInput, evictions: Sequence[Eviction]) -> set[str]:
    """Evict the victims of each taker whose victims may all go; UIDs of pods that a budget protects."""
    by_taker: defaultdict[str, list[Eviction]] = defaultdict(list)
    for one in evictions:
        by_taker[one.taker].append(one)
    protected: set[str] = set()
    for taker, some in by_taker.items():
        victims = [(inputs.holders[one.pod], one) for one in some]
        forbidden = {one.pod_uid for one, _ in victims if one.state is State.BOUND and not _passes(cluster, one)}
        protected |= forbidden
        if forbidden:
            log.info("queues.budget", taker=taker, pods=len(forbidden))
            continue
        for holder, eviction in victims:
            if not _evict(cluster, holder, eviction, inputs.now):
                protected.add(holder.pod_uid)
                break
    return protected


def _passes(cluster: Cluster | None, holder: Holder) -> bool:
    """Whether the API server would evict the pod now."""
    if cluster is None:
        return True
    try:
        pods.evict(cluster, namespace=holder.namespace, name=holder.pod_name, uid=holder.pod_uid, trial=True)
    except ConflictInCluster:
        return True  # another pod by that name: the watch sees the end of this one
    except KubeError as error:
        if not (isinstance(error, Throttled) and error.by_disruption_budget):
            log.warning("queues.eviction_untried", pod=holder.pod_name, error=str(error))
        return False
    return True


def _evict(cluster: Cluster | None, holder: Holder, eviction: Eviction, now: datetime) -> bool:
    taker = eviction.taker.rpartition("/")[0] if eviction.taker.count("/") > 1 else eviction.taker
    how = "its GPUs were idle" if eviction.idle else eviction.by.value
    return evict_or_drop(cluster, holder, f"its devices go to {taker} ({how})", now)


def evict_or_drop(cluster: Cluster | None, holder: Holder, reason: str, now: datetime) -> bool:
    """Evict the pod, or drop its hold; False where it stays.

    Without a cluster there is nobody to ask: the devices are released.
    """
    if holder.state is State.HELD:
        return ledger.drop_hold(allocation_id=holder.id, outcome=State.RELEASED, reason=reason, now=now, actor=ACTOR)
    if cluster is None:
        return release_now(allocation_id=holder.id, reason=reason, now=now, actor=ACTOR)
    try:
        pods.evict(cluster, namespace=holder.namespace, name=holder.pod_name, uid=holder.pod_uid)
    except ConflictInCluster:
        return True  # another pod by that name: the watch sees the end of this one
    except KubeError as error:
        log.warning("queues.not_evicted", pod=holder.pod_name, error=str(error))
        return False
    ledger.note_evicted(allocation_id=holder.id, reason=reason, now=now, actor=ACTOR)
    return True


def open_to(inputs: RoundInput, workloads: Iterable[Sequence[Admission]]) -> None:
    """Keep the devices of these workloads, which may go now, for nobody else until they are held.

    A workload that waits may get a part of the same device; `keep_for_takers` keeps it for that one again.
    """
    takers: defaultdict[int, set[str]] = defaultdict(set)
    for workload in workloads:
        for one in workload:
            for grant in one.decision.grants:
                takers[grant.device_id].add(inputs.waiting[one.pod].pod_uid)
    if takers:
        _open(takers, inputs.now)


@atomic_retry
def _open(takers: Mapping[int, set[str]], now: datetime) -> None:
    opened: set[int] = set()
    for row in QueueReservation.objects.select_for_update().filter(growth=False).order_by("pk"):
        others = {device for device in row.devices if takers.get(device, set()) - {row.pod_uid}}
        if others:
            left = [device for device in row.devices if device not in others]
            QueueReservation.objects.filter(pk=row.pk).update(devices=left)
            opened |= others
    keep(opened, now=now)


def keep_for_takers(inputs: RoundInput, waiting: Iterable[Sequence[Admission]]) -> None:
    """Keep for each of these pods the devices that it waits for, and no others any more."""
    wanted: dict[str, tuple[int, list[int]]] = {}
    for workload in waiting:
        for one in workload:
            row = inputs.waiting[one.pod]
            wanted[row.pod_uid] = (
                row.pod.pod_request.membership.priority,
                sorted(grant.device_id for grant in one.decision.grants),
            )
    _keep(wanted, inputs.now)


@atomic_retry
def _keep(wanted: Mapping[str, tuple[int, list[int]]], now: datetime) -> None:
    # in the order of their keys, as every transaction locks reservations: no two wait for each other
    rows = QueueReservation.objects.select_for_update().order_by("pk")
    there = {row.pod_uid: row for row in rows.filter(growth=False)}
    changed = [
        uid
        for uid in {*there, *wanted}
        if uid not in wanted
        or uid not in there
        or wanted[uid] != (there[uid].priority, there[uid].devices)
        or there[uid].until - now < KEPT / 2
    ]
    if not changed:
        return
    # a pod has one reservation: that of a node that was made for it, before it was in a queue, is replaced
    before = rows.filter(pod_uid__in=changed)
    devices = {device for row in before for device in row.devices}
    before.delete()
    made = [
        QueueReservation(
            pod_uid=uid,
            priority=wanted[uid][0],
            devices=wanted[uid][1],
            made_at=there[uid].made_at if uid in there else now,
            until=now + KEPT,
        )
        for uid in sorted(changed)
        if uid in wanted
    ]
    QueueReservation.objects.bulk_create(made)
    keep(devices | {device for row in made for device in row.devices}, now=now)
