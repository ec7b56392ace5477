"""Periodic tasks of access. The beat's schedule is in `gpuplane.beat`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from celery import shared_task

from access.attempts import attempts_close
from access.models import IdempotencyRecord
from access.sessions import SessionStore
from storage.clock import database_now

KEPT: Final = timedelta(hours=24)
"""How long responses are kept for repeats."""
BATCH: Final = 1_000
MOST_BATCHES: Final = 100

log = structlog.get_logger(__name__)


@shared_task(ignore_result=True)
def prune_idempotency() -> None:
    """Delete responses older than a day (every hour)."""
    log.info("access.idempotency_pruned", count=idempotency_prune(now=database_now()))


@shared_task(ignore_result=True)
def close_sign_in_counts() -> None:
    """Record failed sign-ins of windows that are over, and delete their counts (every minute)."""
    if count := attempts_close(now=database_now()):
        log.info("access.sign_in_counts_closed", count=count)


@shared_task(ignore_result=True)
def prune_sessions() -> None:
    """Delete sessions that are over (every hour)."""
    SessionStore.clear_expired()


def idempotency_prune(*, now: datetime, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """Delete old records in batches; return their number. The rest waits for the next run."""
    count = 0
    for _ in range(most_batches):
        old = list(IdempotencyRecord.objects.filter(created_at__lt=now - KEPT).values_list("pk", flat=True)[:batch])
        if not old:
            break
        count += IdempotencyRecord.objects.filter(pk__in=old).delete()[0]
    return count
