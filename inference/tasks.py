"""Periodic work of inference. Each task is idempotent and may run any number of times at once."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

import structlog
from celery import shared_task
from django.conf import settings

from allocations.watch_runs import run_and_continue
from inference import activity, loop, runner_liveness
from inference.choices import State
from inference.dispatch import gateways
from inference.models import Request, Slot
from nodes.live.reads import read_listening_since
from storage.clock import StepClock, database_now
from storage.redis_client import REDIS_ERRORS

REQUESTS_KEPT: Final = timedelta(days=2)
PRUNE_BATCH: Final = 1000
PRUNE_BATCHES: Final = 1000

CLOCK: Final = StepClock()

log = structlog.get_logger(__name__)


@shared_task(name="inference.tasks.run_slots", ignore_result=True)
def run_slots() -> None:
    """One run of the slots' loop; the next follows at once, or by the beat where this one ended badly."""
    run_and_continue(run_slots.name, "slots", loop.run_slots)


@shared_task(name="inference.tasks.notice_silent_runners", ignore_result=True)
def notice_silent_runners() -> None:
    """Move runners that are silent (every 5 s)."""
    try:
        heard, since = read_listening_since(epoch=time.time())
    except REDIS_ERRORS as error:
        log.warning("runners.silence_unknown", why=str(error))
        return
    if heard and since is None:
        return  # nobody listens
    reading = CLOCK.read()
    found = runner_liveness.notice_silent(now=reading.now, listening_since=reading.later(since))
    if any(found.values()):
        log.info("runners.noticed", **{state.value: nodes for state, nodes in found.items()})


@shared_task(name="inference.tasks.recount_active", ignore_result=True)
def recount_active() -> None:
    """Count the requests of slots anew (every 5 s)."""
    corrected = activity.recount_active(now=database_now())
    if corrected:
        log.info("slots.recounted", slots=corrected)


@shared_task(name="inference.tasks.dispatch_requests", ignore_result=True)
def dispatch_requests() -> None:
    """End gateways that are silent and what they served, and give free places to who waits (every 5 s)."""
    reading = CLOCK.read()
    now = reading.now
    ended = gateways.end_silent(now=now, even_since=reading.even_since)
    started = gateways.fail_orphans(now=now, queue_length=settings.GPUPLANE_QUEUE_LENGTH)
    started += gateways.dispatch_waiting(now=now, queue_length=settings.GPUPLANE_QUEUE_LENGTH)
    if ended or started:
        log.info("requests.dispatched", gateways_ended=ended, started=len(started))


@shared_task(name="inference.tasks.prune", ignore_result=True)
def prune() -> int:
    """Delete ended requests after two days, stopped slots older than the audit trail, and old rows of gateways."""
    now = database_now()
    deleted = gateways.prune(now=now)
    for _ in range(PRUNE_BATCHES):
        ended = Request.objects.filter(ended_at__lt=now - REQUESTS_KEPT)
        ids = list(ended.order_by().values_list("pk", flat=True)[:PRUNE_BATCH])
        deleted += Request.objects.filter(pk__in=ids).delete()[0]
        if len(ids) < PRUNE_BATCH:
            break
    limit = now - timedelta(days=settings.GPUPLANE_AUDIT_DAYS)
    return deleted + Slot.objects.filter(state=State.STOPPED, stopped_at__lt=limit).delete()[0]
