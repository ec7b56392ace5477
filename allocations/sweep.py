"""One turn of garbage collection: every kind of leftover, with what the cluster says about it.

Called by the task `allocations.tasks.collect` and by `manage.py reconcile`. Kept true: each row is
judged by what can be read now; where the API server does not answer, the row waits, longer each time, and keeps nobody behind it waiting.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import structlog

from access.transactions import atomic_retry
from allocations import collection, ledger
from allocations.bindings import BindFailed, OutcomeOpen
from allocations.choices import State
from allocations.counters import COLLECTIONS, Cause, collected
from allocations.errors import MovedOn
from allocations.leases.port import LeaseTaken
from allocations.ledger.strangers import stranger_set
from allocations.models import Allocation
from allocations.outside import Outside
from allocations.saga import carry_out, finish, undo
from audit.choices import Kind
from audit.models import Event
from audit.services import record
from kube import pods
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError

KIND_SECONDS = 20.0
"""A turn sees to the rows of one kind for so long."""

log = structlog.get_logger(__name__)


class Swept(msgspec.Struct):
    """How many of each a turn moved on."""

    holds: int = 0
    reservations: int = 0
    releases: int = 0
    ended: int = 0
    refusals: int = 0
    tombstones: int = 0


def sweep(*, now: datetime, world: Outside) -> Swept:
    """Expired holds, dead reservations, interrupted releases, ended allocations, and rows nobody needs."""
    done = Swept(holds=collection.expire_holds(now))
    reserved = {key: partial(_settle, key, now, world) for key in collection.stale_reservations(now)}
    done.reservations = _each(reserved, State.RESERVED, now)
    releasing = {key: partial(_finish, key, outcome, world) for key, outcome in collection.stale_releases(now)}
    done.releases = _each(releasing, State.RELEASING, now)
    ended = {
        one.pk: partial(end_by_time, allocation=one, now=now, world=world) for one in collection.ended_by_time(now)
    }
    done.ended = _each(ended, State.BOUND, now)
    done.refusals = collection.forget_refusals(now)
    done.tombstones = collection.bury_tombstones(now)
    collected(Cause.BIND_INTERRUPTED, done.reservations)
    collected(Cause.RELEASE_INTERRUPTED, done.releases)
    collected(Cause.TIME_OVER, done.ended)
    COLLECTIONS.inc()
    return done


def _each(works: Mapping[uuid.UUID, Callable[[], bool]], state: State, now: datetime) -> int:
    """Do the work of each row; how many moved on. Whatever is still in `state` then (a pod that was told to go, too) is put off.

    Those that time did not suffice for, since the API server hangs say, were not tried, and come first at the next turn.
    """
    moved, tried, ends = 0, [], time.monotonic() + KIND_SECONDS
    for allocation_id, work in works.items():
        tried.append(allocation_id)
        try:
            moved += work()
        except OutcomeOpen as left:
            log.warning("sweep.outcome_open", allocation=str(allocation_id), why=str(left))
        except collection.BROKEN:
            log.exception("sweep.row_broken", allocation=str(allocation_id), state=state.value)
        if time.monotonic() > ends:
            break
    collection.put_off(tried, state, now)
    return moved


def _finish(allocation_id: uuid.UUID, outcome: State, world: Outside) -> bool:
    live = ledger.read_live(allocation_id)
    return live is not None and finish(live, world, outcome, actor=collection.ACTOR)


def _settle(allocation_id: uuid.UUID, now: datetime, world: Outside) -> bool:
    """A reservation without a bind behind it goes on: its Binding may still be applied, so only the API server's answer ends it.

    Without a pod to bind nothing was sent, and it is undone. Raises OutcomeOpen.
    """
    live = ledger.read_live(allocation_id)
    if live is None or live.state is not State.RESERVED:
        return False
    if world.cluster is None or not live.holder.pod_uid:
        return undo(live, world, "the bind was interrupted", State.FAILED, actor=collection.ACTOR)
    try:
        carry_out(live, world, now=now, collecting=True)
    except MovedOn:
        return False
    except LeaseTaken as taken:
        stranger_set(
            device_uuid=taken.want.device_uuid,
            stranger=taken.holder,
            now=now,
            actor=collection.ACTOR,
        )
    except BindFailed as failed:
        log.info("sweep.undone", pod=live.holder.label, why=str(failed))
    return True


def end_by_time(*, allocation: Allocation, now: datetime, world: Outside) -> bool:
    """The time given by ttlSeconds is over: the holder hears of it, its pod is evicted, and then the devices return (CLAIM-9).

    `allocation` is the row as it was listed: one that was renewed, or has ended, since then is left alone.
    """
    if world.cluster is not None and allocation.pod_uid:
        return _note_end(allocation, now) and _evict(allocation, now, world.cluster)
    live = ledger.read_live(allocation.id)
    if live is None or not _begin_end(allocation, now):
        return False
    return finish(live, world, State.RELEASED, actor=collection.ACTOR)


@atomic_retry
def _begin_end(allocation: Allocation, now: datetime) -> bool:
    begun = ledger.begin_release(
        allocation_id=allocation.id,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="its time is over",
        now=now,
        actor=collection.ACTOR,
        unchanged_since=allocation.changed_at,
    )
    if begun:
        _record_end(allocation, now)
    return begun


@atomic_retry
def _note_end(allocation: Allocation, now: datetime) -> bool:
    """Whether the time is still over; the first to find out writes the event."""
    as_listed = Allocation.objects.select_for_update().filter(
        pk=allocation.pk, state=State.BOUND, changed_at=allocation.changed_at
    )
    if as_listed.first() is None:
        return False
    told = Event.objects.filter(
        allocation_id=allocation.pk, kind=Kind.ALLOCATION_EXPIRED, at__gte=allocation.expires_at
    )
    if not told.exists():
        _record_end(allocation, now)
    return True


def _record_end(allocation: Allocation, now: datetime) -> None:
    record(
        kind=Kind.ALLOCATION_EXPIRED,
        message=f"the time of {allocation.pod_name or allocation.holder} is over",
        actor=collection.ACTOR,
        now=now,
        namespace=allocation.namespace,
        name=allocation.pod_name,
        claim=allocation.claim_name,
        allocation_id=allocation.id,
    )


def _evict(allocation: Allocation, now: datetime, cluster: Cluster) -> bool:
    """Tell the pod, ask for its eviction; its devices return when it is gone (watch, or the next comparison)."""
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
        log.debug("sweep.told_already", pod=allocation.pod_name)
    except KubeError as error:
        log.warning("sweep.event_unsent", pod=allocation.pod_name, error=str(error))
    try:
        pods.evict(cluster, **pod)
    except KubeError as error:
        log.warning("sweep.eviction_refused", pod=allocation.pod_name, error=str(error))
        return False
    return True
