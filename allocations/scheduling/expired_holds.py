"""Dropping of expired holds.

Called by placement before it refuses, by the beat and by garbage collection. Invariants: only conditional moves, so any
number may drop at once; a hold that a filter prolongs meanwhile stays; a hold that cannot be dropped delays no other.
"""

from __future__ import annotations

import uuid
from datetime import datetime

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.counters import CollectionCause, collected
from allocations.ledger.back_off import BROKEN, due, due_later
from allocations.models import Allocation
from allocations.scheduling.attempt import COLLECTOR

log = structlog.get_logger(__name__)


def expire_holds(now: datetime) -> int:
    """Drop expired holds; how many. Their nodes rank last for their pods for a while."""
    expired = due(Allocation.objects.filter(state=State.HELD, hold_until__lt=now), now, "hold_until")
    dropped, broken = 0, []
    for allocation_id, changed_at in list(expired.values_list("id", "changed_at")):
        try:
            dropped += lapsed_drop(allocation_id, now, unchanged_since=changed_at)
        except BROKEN:
            log.exception("garbage_collection.hold_broken", allocation=str(allocation_id))
            broken.append(allocation_id)
    due_later(broken, State.HELD, now)
    return dropped


def lapsed_drop(allocation_id: uuid.UUID, now: datetime, *, unchanged_since: datetime | None = None) -> bool:
    """Drop one expired hold; False when it moved on."""
    dropped = ledger.drop_hold(
        allocation_id=allocation_id,
        outcome=State.FAILED,
        reason="the hold expired",
        now=now,
        actor=COLLECTOR,
        unchanged_since=unchanged_since,
    )
    collected(CollectionCause.HOLD_EXPIRED, dropped)
    return dropped
