"""Moves of one trigger, each in a transaction of its own with the state of its request."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from autoscaling.choices import TriggerState
from autoscaling.counters import FAILED, OUTCOMES
from autoscaling.models import Trigger
from autoscaling.transitions import settle, trigger_moved
from storage.transactions import atomic_retry


@atomic_retry
def move(trigger: Trigger, state: TriggerState, *, now: datetime, reason: str = "", **fields: Any) -> bool:
    """Move the trigger on; False where it is in another state by now. `fields`: columns to write as well."""
    moved = trigger_moved(trigger, state, now=now, reason=reason, **fields)
    if moved:
        settle(trigger.request_id, now=now)
    return moved


@atomic_retry
def fail(trigger: Trigger, reason: str, *, now: datetime) -> None:
    """No node comes of the trigger."""
    if move(trigger, TriggerState.FAILED, now=now, reason=reason):
        transaction.on_commit(OUTCOMES.labels(FAILED).inc)
