"""Garbage collection: finishes or undoes what was interrupted, and deletes rows that nobody needs.

Called by the task `allocations.tasks.collect` and by `manage.py reconcile`. Invariants: nothing younger than its limit
is collected; each row is judged by what can be read now, and waits, longer each time, where the API server does not
answer; writes are conditional, so any number of collectors may run at once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import structlog
from django.db.models import Exists, OuterRef, Q

from allocations import ledger
from allocations.backends import Backends
from allocations.choices import LIVE, State
from allocations.counters import COLLECTIONS, CollectionCause, collected
from allocations.errors import MovedOn
from allocations.leases.port import LeaseTaken
from allocations.ledger.back_off import BROKEN, due, due_later
from allocations.ledger.external_holders import external_holder_set
from allocations.models import AdvisedPod, Allocation, AllocationDevice, PodRefusal
from allocations.scheduling import binder
from allocations.scheduling.attempt import COLLECTOR, BindFailed, OutcomeOpen
from allocations.scheduling.expired_holds import drop_useless_holds
from allocations.scheduling.limits import RESERVED_LIMIT, reservation_seconds
from audit.choices import EventKind
from audit.models import Event
from audit.services import record
from kube import pods
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError
from nodes.choices import Mode, Presence
from nodes.models import Device
from storage.clock import RunningClock
from storage.transactions import atomic_retry

KIND_SECONDS = 20.0
"""Seconds of a round for the rows of one kind."""
BATCH = 500
"""Tombstones a round."""
RELEASING_LIMIT = timedelta(seconds=5)
"""A release older than this was interrupted and is taken up again."""
REFUSAL_LIMIT = timedelta(minutes=15)
"""A pod that was not filtered again for so long no longer waits."""
TOMBSTONE_LIMIT = timedelta(minutes=10)
"""Rows of removed devices stay so long, so that every snapshot reads them."""

log = structlog.get_logger(__name__)


class Collected(msgspec.Struct):
    """How many of each a round moved on."""

    holds: int = 0
    reservations: int = 0
    releases: int = 0
    ended: int = 0
    refusals: int = 0
    tombstones: int = 0


def collect_garbage(*, now: datetime, backends: Backends) -> Collected:
    """Collect expired holds, interrupted binds and releases, ended allocations, and rows that nobody needs."""
    clock = RunningClock(now)
    done = Collected(holds=drop_useless_holds(now))
    reserved = {key: partial(_settle, key, backends) for key in stale_reservations(now)}
    done.reservations = _each(reserved, State.RESERVED, clock)
    releasing = {
        key: partial(binder.finish, key, backends, outcome, actor=COLLECTOR) for key, outcome in stale_releases(now)
    }
    done.releases = _each(releasing, State.RELEASING, clock)
    ended = {one.pk: partial(_end, one, backends) for one in time_to_live_over(now)}
    done.ended = _each(ended, State.BOUND, clock)
    done.refusals = forget_refusals(now)
    done.tombstones = delete_removed_devices(now)
    collected(CollectionCause.BIND_INTERRUPTED, done.reservations)
    collected(CollectionCause.RELEASE_INTERRUPTED, done.releases)
    collected(CollectionCause.TIME_OVER, done.ended)
    COLLECTIONS.inc()
    return done


def stale_reservations(now: datetime) -> Iterable[uuid.UUID]:
    """Reservations whose bind was interrupted."""
    waiting = timedelta(seconds=reservation_seconds())
    old = Q(reserved_at__lt=now - RESERVED_LIMIT) & ~Q(node__mode=Mode.DEVICE_PLUGIN)
    rows = Allocation.objects.filter(old | Q(reserved_at__lt=now - RESERVED_LIMIT - waiting), state=State.RESERVED)
    return list(due(rows, now, "reserved_at").values_list("id", flat=True))


def stale_releases(now: datetime) -> Iterable[tuple[uuid.UUID, State]]:
    """Interrupted releases and their last states."""
    rows = Allocation.objects.filter(state=State.RELEASING, releasing_at__lt=now - RELEASING_LIMIT)
    found = due(rows, now, "releasing_at").values_list("id", "outcome")
    return [(allocation_id, State(outcome)) for allocation_id, outcome in found]


def time_to_live_over(now: datetime) -> Iterable[Allocation]:
    """Bound allocations whose ttlSeconds is over."""
    return list(due(Allocation.objects.filter(state=State.BOUND, expires_at__lt=now), now, "expires_at"))


def forget_refusals(now: datetime) -> int:
    """Delete refusals of pods that were placed, or were neither filtered nor seen to wait for long, and old advice."""
    AdvisedPod.objects.filter(at__lt=now - REFUSAL_LIMIT).delete()
    placed = Allocation.objects.filter(pod_uid=OuterRef("pod_uid"), state__in=LIVE)
    # what the queues have admitted has its row until it is bound: its gate may still be on
    held = placed.filter(state=State.HELD)
    deleted = PodRefusal.objects.filter(Exists(placed)).exclude(Exists(held), member__isnull=False).delete()[0]
    unseen = Q(seen_at__isnull=True) | Q(seen_at__lt=now - REFUSAL_LIMIT)
    return deleted + PodRefusal.objects.filter(unseen, last_at__lt=now - REFUSAL_LIMIT).delete()[0]


@atomic_retry
def delete_removed_devices(now: datetime) -> int:
    """Delete rows of devices removed long ago; their past grants keep uuid, type and minor.

    Under their locks, since an inventory may bring one back at this moment.
    """
    held = AllocationDevice.objects.filter(device=OuterRef("pk"), live=True)
    old = Device.objects.filter(~Exists(held), presence=Presence.REMOVED, changed_at__lt=now - TOMBSTONE_LIMIT)
    locked = list(old.select_for_update().order_by("pk").values_list("pk", flat=True)[:BATCH])
    return Device.objects.filter(pk__in=locked).delete()[0]


def _each(works: Mapping[uuid.UUID, Callable[..., bool]], state: State, clock: RunningClock) -> int:
    """Run the work of each row, which says whether the row moved on; how many did. Rows still in `state` are put off.

    After `KIND_SECONDS`, since the API server hangs say, the rest is left, and comes first in the next round.
    """
    moved, tried, ends = 0, [], time.monotonic() + KIND_SECONDS
    for allocation_id, work in works.items():
        tried.append(allocation_id)
        try:
            moved += work(now=clock.now)
        except OutcomeOpen as left:
            log.warning("garbage_collection.outcome_open", allocation=str(allocation_id), why=str(left))
        except BROKEN:
            log.exception("garbage_collection.row_broken", allocation=str(allocation_id), state=state.value)
        if time.monotonic() > ends:
            break
    due_later(tried, state, clock.read_at)
    return moved


def _settle(allocation_id: uuid.UUID, backends: Backends, *, now: datetime) -> bool:
    """Go on with an interrupted bind: its Binding may still be applied, so only the API server's answer ends it.

    Without a pod to bind nothing was sent, and it is undone. Raises OutcomeOpen.
    """
    live = ledger.read_live(allocation_id)
    if live is None or live.state is not State.RESERVED:
        return False
    if backends.cluster is None or not live.holder.pod_uid:
        return binder.undo(live, backends, "the bind was interrupted", now=now, actor=COLLECTOR)
    try:
        binder.bind(live, backends, now=now, actor=COLLECTOR)
    except MovedOn:
        return False
    except LeaseTaken as taken:
        external_holder_set(taken.want.device_uuid, taken.holder, now=now, actor=COLLECTOR)
    except BindFailed as failed:
        log.info("garbage_collection.undone", pod=live.holder.label, why=str(failed))
    return True


def _end(allocation: Allocation, backends: Backends, *, now: datetime) -> bool:
    """End an allocation whose ttlSeconds is over: its pod is evicted, and then the devices return (CLAIM-9).

    `allocation` is the row as it was listed: one that was renewed, or has ended, since then is left alone.
    """
    if backends.cluster is not None and allocation.pod_uid:
        return _note_end(allocation, now) and _evict(allocation, now, backends.cluster)
    return _begin_end(allocation, now) and binder.finish(
        allocation.pk, backends, State.RELEASED, now=now, actor=COLLECTOR
    )


@atomic_retry
def _begin_end(allocation: Allocation, now: datetime) -> bool:
    begun = ledger.begin_release(
        allocation_id=allocation.id,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="its time is over",
        now=now,
        actor=COLLECTOR,
        unchanged_since=allocation.changed_at,
    )
    if begun:
        _record_end(allocation, now)
    return begun


@atomic_retry
def _note_end(allocation: Allocation, now: datetime) -> bool:
    """Whether the row is unchanged; the first to find out writes the event."""
    as_listed = Allocation.objects.select_for_update().filter(
        pk=allocation.pk, state=State.BOUND, changed_at=allocation.changed_at
    )
    if as_listed.first() is None:
        return False
    events = Event.objects.filter(allocation_id=allocation.pk, kind=EventKind.ALLOCATION_EXPIRED)
    if not events.filter(at__gte=allocation.expires_at).exists():
        _record_end(allocation, now)
    return True


def _record_end(allocation: Allocation, now: datetime) -> None:
    record(
        kind=EventKind.ALLOCATION_EXPIRED,
        message=f"the time of {allocation.pod_name or allocation.holder} is over",
        actor=COLLECTOR,
        now=now,
        namespace=allocation.namespace,
        name=allocation.pod_name,
        claim=allocation.claim_name,
        allocation_id=allocation.id,
    )


def _evict(allocation: Allocation, now: datetime, cluster: Cluster) -> bool:
    """Write an event on the pod and evict it; its devices return when it is gone (watch, or the next comparison)."""
    pod: dict[str, Any] = {"namespace": allocation.namespace, "name": allocation.pod_name, "uid": allocation.pod_uid}
    try:
        pods.event_record(
            cluster,
            **pod,
            reason="GpuClaimExpired",
            message=f"ttlSeconds of GpuClaim {allocation.claim_name} is over; the pod is evicted",
            now=allocation.expires_at or now,
            kind="Warning",
        )
    except AlreadyExists:
        log.debug("garbage_collection.evicted_already", pod=allocation.pod_name)
    except KubeError as error:
        log.warning("garbage_collection.event_unsent", pod=allocation.pod_name, error=str(error))
    try:
        pods.evict(cluster, **pod)
    except KubeError as error:
        log.warning("garbage_collection.eviction_refused", pod=allocation.pod_name, error=str(error))
        return False
    return True
