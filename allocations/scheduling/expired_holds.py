"""Dropping of holds that have expired, and of those on nodes that are gone.

Called by placement before it refuses, which drops expired ones, by the beat and by garbage collection. Invariants: only
conditional moves, so any number may drop at once; a hold that a filter prolongs meanwhile stays; a hold that cannot be
dropped delays no other.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

import structlog
from django.db.models import QuerySet

from allocations import ledger
from allocations.choices import State
from allocations.counters import CollectionCause, collected
from allocations.ledger.back_off import BROKEN, due, due_later
from allocations.models import Allocation
from allocations.scheduling.attempt import COLLECTOR
from nodes.choices import NodeState

EXPIRED: Final = "the hold expired"

log = structlog.get_logger(__name__)


def expire_holds(now: datetime) -> int:
    """Drop expired holds; how many. Their nodes rank last for their pods for a while."""
    return _drop(Allocation.objects.filter(state=State.HELD, hold_until__lt=now), now, EXPIRED)


def drop_useless_holds(now: datetime) -> int:
    """Drop expired holds, and those on nodes that are gone; how many.

    kube-scheduler may not ask for a pod again whose node has gone: the pod would wait until its hold has expired.
    """
    gone = Allocation.objects.filter(state=State.HELD, node__state=NodeState.GONE)
    return expire_holds(now) + _drop(gone, now, "its node is gone")


def _drop(holds: QuerySet[Allocation], now: datetime, reason: str) -> int:
    dropped, broken = 0, []
    for allocation_id, changed_at in list(due(holds, now, "hold_until").values_list("id", "changed_at")):
        try:
            dropped += lapsed_drop(allocation_id, now, unchanged_since=changed_at, reason=reason)
        except BROKEN:
            log.exception("garbage_collection.hold_broken", allocation=str(allocation_id))
            broken.append(allocation_id)
    due_later(broken, State.HELD, now)
    return dropped


def lapsed_drop(
    allocation_id: uuid.UUID, now: datetime, *, unchanged_since: datetime | None = None, reason: str = EXPIRED
) -> bool:
    """Drop one expired hold; False when it moved on."""
    dropped = ledger.drop_hold(
        allocation_id=allocation_id,
        outcome=State.FAILED,
        reason=reason,
        now=now,
        actor=COLLECTOR,
        unchanged_since=unchanged_since,
    )
    collected(CollectionCause.HOLD_EXPIRED, dropped)
    return dropped
