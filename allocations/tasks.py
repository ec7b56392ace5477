"""The beat's work on the ledger. Each task is one call, idempotent, and safe beside any number of its like."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from celery import shared_task
from django.conf import settings

from allocations import collection
from allocations.models import Allocation
from allocations.outside import outside
from allocations.sweep import sweep
from audit.clock import database_now

PRUNE_BATCH = 1000
PRUNE_BATCHES = 100


@shared_task(name="allocations.tasks.expire_holds", ignore_result=True)
def expire_holds() -> int:
    """Drop holds past their time."""
    return collection.expire_holds(database_now())


@shared_task(name="allocations.tasks.collect", ignore_result=True)
def collect() -> dict[str, int]:
    """One turn of garbage collection."""
    found: dict[str, int] = msgspec.to_builtins(sweep(now=database_now(), world=outside()))
    return found


@shared_task(name="allocations.tasks.prune", ignore_result=True)
def prune() -> int:
    """Delete ended allocations older than the audit trail, in batches."""
    limit = database_now() - timedelta(days=settings.GPUPLANE_AUDIT_DAYS)
    deleted = 0
    for _ in range(PRUNE_BATCHES):
        ids = list(Allocation.objects.filter(ended_at__lt=limit).values_list("id", flat=True)[:PRUNE_BATCH])
        if not ids:
            break
        Allocation.objects.filter(id__in=ids).delete()
        deleted += len(ids)
    return deleted
