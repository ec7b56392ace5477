"""Work on events, and telling the cluster on behalf of others. The beat's schedule is in `gpuplane.celery`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from celery import shared_task
from django.conf import settings

from audit.announce import TASK, announce
from audit.clock import database_now
from audit.models import Event

BATCH: Final = 900
"""Few enough for one statement's parameters, and for a lock that nobody notices."""
MOST_BATCHES: Final = 1_000

log = structlog.get_logger(__name__)


@shared_task(ignore_result=True)
def prune() -> None:
    """Delete events older than GPUPLANE_AUDIT_DAYS (every hour)."""
    days = settings.GPUPLANE_AUDIT_DAYS
    log.info("audit.pruned", count=event_prune(now=database_now(), days=days), days=days)


@shared_task(name=TASK, ignore_result=True)
def announce_for_another(node: str) -> None:
    """Tell the cluster of capacity, of which a process has come to know that may not write to it."""
    announce(node=node)


def event_prune(*, now: datetime, days: int, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """Delete events older than so many days, the oldest first, a batch a transaction; how many.

    What is left over after `most_batches` waits for the next run.
    """
    before = now - timedelta(days=days)
    count = 0
    for _ in range(most_batches):
        old = list(Event.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:batch])
        if not old:
            break
        count += Event.objects.filter(pk__in=old).delete()[0]
    return count
