"""Watches of NodePools and NodeClaims: rows that say what the cluster has.

Called by `autoscaling.tasks`. Invariants: events may be late or repeated; the times of a NodeClaim's steps are those of
its conditions; a row whose object is gone says when that was seen.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from django.utils.dateparse import parse_datetime

from audit.choices import EventKind
from audit.services import record
from autoscaling import pools
from autoscaling.models import NodeClaim, Pool
from autoscaling.wake import wake_growth
from kube import karpenter
from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.resources import NODE_CLAIMS, NODE_POOLS
from kube.watch import Changed, Event, Relisted
from kube.watch_loop import RUN_SECONDS, Followed, follow
from storage.clock import database_now
from storage.leader_lock import leader_lock
from storage.transactions import atomic_retry

ACTOR = "growth"
_STATUS = ("used",)
"""Columns that change without an event."""

log = structlog.get_logger(__name__)


def watch_node_pools(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors`, Redis' and database errors. Without Karpenter there is nothing to watch."""
    return _watch(cluster, NODE_POOLS, karpenter.NodePool, handle_pool, seconds)


def watch_node_claims(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """The same of NodeClaims."""
    return _watch(cluster, NODE_CLAIMS, karpenter.NodeClaim, handle_claim, seconds)


def _watch(cluster: Cluster, resource: Any, kind: Any, handle: Any, seconds: float) -> Followed:
    try:
        return follow(
            cluster,
            lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
            name=resource.plural,
            resource=resource,
            kind=kind,
            handle=lambda event: handle(event, now=database_now()),
            seconds=seconds,
        )
    except NotFoundInCluster:
        log.debug("growth.no_karpenter", kind=resource.kind)
        return Followed.ELSEWHERE


def handle_pool(event: Event[karpenter.NodePool], *, now: datetime) -> None:
    """Handle one event of a NodePool."""
    if isinstance(event, Relisted):
        for pool in event.objects.values():
            pool_seen(pool, now=now)
        there = {pool.metadata.name for pool in event.objects.values()} | {one.key[1] for one in event.unreadable}
        for name in Pool.objects.filter(deleted_at__isnull=True).exclude(name__in=there).values_list("name", flat=True):
            pool_gone(name, now=now)
    elif isinstance(event, Changed) and event.type == "DELETED":
        pool_gone(event.key[1], now=now)
    elif isinstance(event, Changed):
        pool_seen(event.object, now=now)


@atomic_retry
def pool_seen(pool: karpenter.NodePool, *, now: datetime) -> None:
    """Write what the NodePool says, where it differs from the row."""
    if pool.metadata.deletion_timestamp:
        pool_gone(pool.metadata.name, now=now)
        return
    fields = pools.fields_of(pool)
    row = Pool.objects.select_for_update().filter(name=pool.metadata.name).first()
    if row is None:
        Pool.objects.create(name=pool.metadata.name, changed_at=now, **fields)
        _pool_event(pool.metadata.name, "is known", now)
        return
    changed = [name for name, value in fields.items() if getattr(row, name) != value]
    if not changed:
        return
    for name in changed:
        setattr(row, name, fields[name])
    if set(changed) - set(_STATUS):
        row.changed_at = now
        _pool_event(row.name, f"changed: {', '.join(sorted(changed))}", now)
    row.save()
    wake_growth()


@atomic_retry
def pool_gone(name: str, *, now: datetime) -> None:
    """Note that the NodePool is gone."""
    if Pool.objects.filter(name=name, deleted_at__isnull=True).update(deleted_at=now, changed_at=now):
        _pool_event(name, "is gone", now)


def _pool_event(name: str, what: str, now: datetime) -> None:
    record(kind=EventKind.POOL_CHANGED, message=f"pool {name} {what}", actor=ACTOR, now=now, name=name)
    wake_growth()


def handle_claim(event: Event[karpenter.NodeClaim], *, now: datetime) -> None:
    """Handle one event of a NodeClaim."""
    if isinstance(event, Relisted):
        for claim in event.objects.values():
            claim_seen(claim, now=now)
        there = {claim.metadata.uid for claim in event.objects.values()}
        hidden = {one.key[1] for one in event.unreadable}
        for row in NodeClaim.objects.filter(deleted_at__isnull=True).exclude(uid__in=there):
            if row.name not in hidden:
                claim_gone(row.uid, now=now)
    elif isinstance(event, Changed) and event.type == "DELETED":
        claim_seen(event.object, now=now)
        claim_gone(event.object.metadata.uid, now=now)
    elif isinstance(event, Changed):
        claim_seen(event.object, now=now)


@atomic_retry
def claim_seen(claim: karpenter.NodeClaim, *, now: datetime) -> None:
    """Write what the NodeClaim says, where it differs from the row."""
    fields = {
        "name": claim.metadata.name,
        "pool": claim.pool,
        "node": claim.status.node_name,
        "reason": claim.problem[:500],
        "launched_at": _moment(claim.since("Launched")),
        "registered_at": _moment(claim.since("Registered")),
        "initialized_at": _moment(claim.since("Initialized")),
        "ready_at": _moment(claim.since("Ready")),
    }
    row = NodeClaim.objects.select_for_update().filter(uid=claim.metadata.uid).first()
    if row is None:
        made = _moment(claim.metadata.creation_timestamp) or now
        NodeClaim.objects.create(uid=claim.metadata.uid, created_at=made, **fields)
        message = f"NodeClaim {claim.metadata.name} of pool {claim.pool} was created"
        record(kind=EventKind.NODE_CLAIM_CHANGED, message=message, actor=ACTOR, now=now, name=claim.metadata.name)
        wake_growth()
        return
    # a step that was reached stays reached: Ready may come and go afterwards
    changed = {
        name: value
        for name, value in fields.items()
        if getattr(row, name) != value and not (name.endswith("_at") and (value is None or getattr(row, name)))
    }
    if not changed:
        return
    NodeClaim.objects.filter(pk=row.pk).update(**changed)
    for step in ("launched_at", "registered_at", "ready_at"):
        if step in changed:
            message = f"NodeClaim {row.name}: {step.removesuffix('_at')}"
            record(
                kind=EventKind.NODE_CLAIM_CHANGED,
                message=message,
                actor=ACTOR,
                now=now,
                name=row.name,
                node=str(fields["node"]),
            )
    wake_growth()


@atomic_retry
def claim_gone(uid: str, *, now: datetime) -> None:
    """Note that the NodeClaim is gone."""
    row = NodeClaim.objects.select_for_update().filter(uid=uid, deleted_at__isnull=True).first()
    if row is None:
        return
    row.deleted_at = now
    if row.ready_at is None:
        row.failed_at = now
        row.reason = (row.reason or "it was deleted before its node was ready")[:500]
    row.save(update_fields=["deleted_at", "failed_at", "reason"])
    message = f"NodeClaim {row.name} is gone{f': {row.reason}' if row.failed_at else ''}"
    record(kind=EventKind.NODE_CLAIM_CHANGED, message=message, actor=ACTOR, now=now, name=row.name, node=row.node)
    wake_growth()


def _moment(text: str | None) -> datetime | None:
    return parse_datetime(text) if text else None
