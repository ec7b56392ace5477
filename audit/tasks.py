"""Deletes old events, and announces capacity for other processes. The beat's schedule is in `gpuplane.beat`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from celery import shared_task
from django.conf import settings

from audit.models import Event
from audit.requeue_notify import TASK, announce
from storage.clock import database_now

BATCH: Final = 900
"""Events in a statement; SQLite allows 999 parameters in old builds."""
MOST_BATCHES: Final = 1_000

log = structlog.get_logger(__name__)


@shared_task(ignore_result=True)
def prune() -> None:
    """Delete events older than GPUPLANE_AUDIT_DAYS (every hour)."""
    days = settings.GPUPLANE_AUDIT_DAYS
    log.info("audit.pruned", count=event_prune(now=database_now(), days=days), days=days)


@shared_task(name=TASK, ignore_result=True)
def announce_for_another(node: str) -> None:
    """Announce capacity for a process that may not write to the cluster."""
    announce(node=node)


def event_prune(*, now: datetime, days: int, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """Delete events older than so many days, oldest first, a batch a transaction; return their number."""
    before = now - timedelta(days=days)
    count = 0
    for _ in range(most_batches):
        old = list(Event.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:batch])
        if not old:
            break
        count += Event.objects.filter(pk__in=old).delete()[0]
    return count
