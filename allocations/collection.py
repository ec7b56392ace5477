"""Garbage collection: what was left behind is finished or undone, a bounded number of rows a turn.

Called by the beat (`allocations.tasks`), by filter before it refuses (holds only), and by the tests
that kill processes. Kept true: only conditional moves, so any number of collectors may run at once;
nothing is collected on stale knowledge (a row younger than its limit, an API server that is away);
a row that could not be moved on waits longer each time, and comes after those that were never tried, so it starves nobody.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

import msgspec
import structlog
from django.db import DataError, IntegrityError
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from access.transactions import atomic_retry
from allocations import ledger
from allocations.choices import LIVE, State
from allocations.counters import Cause, collected
from allocations.models import AdvisedPod, Allocation, PodRefusal
from allocations.saga import COLLECTOR
from nodes.choices import Presence
from nodes.models import Device

log = structlog.get_logger(__name__)

BATCH = 500
"""Rows a turn."""
RESERVED_LIMIT = timedelta(seconds=32)
"""The attempt that made a reservation older than this has given up: its deadline (20 s) and its last request's time-outs (5 s to connect, 5 s to read) passed."""
RELEASING_LIMIT = timedelta(seconds=5)
"""A release older than this was interrupted and is taken up again."""
REFUSAL_LIMIT = timedelta(minutes=15)
"""A pod that was not asked for again for so long is no longer waiting."""
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(seconds=60)
"""A row that could not be moved on is tried again after the first, then after twice as long each time. No longer than the last: once the API server
is back nobody waits for more."""
BROKEN = (IntegrityError, DataError, ValueError, KeyError, TypeError, msgspec.MsgspecError)
"""What a row raises that the database, or its reader, does not take: it is logged and waits, and no other row waits behind it."""
TOMBSTONE_LIMIT = timedelta(minutes=10)
"""Removed devices stay that long, so that every picture sees them go."""
ACTOR = COLLECTOR


def expire_holds(now: datetime) -> int:
    """Drop holds that are past their time; returns how many. The node ranks last for their pods for a while.

    One that its pod's filter prolongs meanwhile stays.
    """
    expired = _due(Allocation.objects.filter(state=State.HELD, hold_until__lt=now), now, "hold_until")
    dropped, broken = 0, []
    for allocation_id, changed_at in list(expired.values_list("id", "changed_at")[:BATCH]):
        try:
            dropped += lapsed_drop(allocation_id, now, unchanged_since=changed_at)
        except BROKEN:
            log.exception("collection.hold_broken", allocation=str(allocation_id))
            broken.append(allocation_id)
    put_off(broken, State.HELD, now)
    return dropped


def put_off(allocation_ids: Collection[uuid.UUID], state: State, now: datetime) -> None:
    """These could not be moved on from this state: they are due again later. One that has moved meanwhile is left alone."""
    if not allocation_ids:
        return
    rows = Allocation.objects.filter(pk__in=allocation_ids, state=state)
    by_retries: dict[int, list[uuid.UUID]] = defaultdict(list)
    for pk, retries in rows.values_list("pk", "retries"):
        by_retries[retries].append(pk)
    for retries, some in by_retries.items():
        pause = min(FIRST_PAUSE * 2 ** min(retries, 10), LONGEST_PAUSE)
        tried = Allocation.objects.filter(pk__in=some, state=state, retries=retries)
        tried.update(retries=min(retries + 1, 1000), retry_at=now + pause)


def _due(rows: QuerySet[Allocation], now: datetime, oldest: str) -> QuerySet[Allocation]:
    """Those that may be tried now: who was never tried before first, then who has waited longest."""
    waited = rows.filter(Q(retry_at__isnull=True) | Q(retry_at__lte=now))
    return waited.order_by(F("retry_at").asc(nulls_first=True), oldest)


def lapsed_drop(allocation_id: uuid.UUID, now: datetime, *, unchanged_since: datetime | None = None) -> bool:
    """Drop one hold that is past its time; False when somebody else was quicker."""
    dropped = ledger.drop_hold(
        allocation_id=allocation_id,
        outcome=State.FAILED,
        reason="the hold expired",
        now=now,
        actor=ACTOR,
        unchanged_since=unchanged_since,
    )
    collected(Cause.HOLD_EXPIRED, dropped)
    return dropped


def stale_reservations(now: datetime) -> Iterable[uuid.UUID]:
    """Reservations with no bind behind them any more."""
    rows = Allocation.objects.filter(state=State.RESERVED, reserved_at__lt=now - RESERVED_LIMIT)
    return list(_due(rows, now, "reserved_at").values_list("id", flat=True)[:BATCH])


def stale_releases(now: datetime) -> Iterable[tuple[uuid.UUID, State]]:
    """Interrupted releases and what they end in."""
    rows = Allocation.objects.filter(state=State.RELEASING, releasing_at__lt=now - RELEASING_LIMIT)
    found = _due(rows, now, "releasing_at").values_list("id", "outcome")[:BATCH]
    return [(allocation_id, State(outcome)) for allocation_id, outcome in found]


def ended_by_time(now: datetime) -> Iterable[Allocation]:
    """Bound allocations whose ttlSeconds is over."""
    return list(_due(Allocation.objects.filter(state=State.BOUND, expires_at__lt=now), now, "expires_at")[:BATCH])


def forget_refusals(now: datetime) -> int:
    """Delete refusals of pods that were placed since, or were neither asked for again nor seen to wait for long, and old advice."""
    AdvisedPod.objects.filter(at__lt=now - REFUSAL_LIMIT).delete()
    placed = Allocation.objects.filter(pod_uid=OuterRef("pod_uid"), state__in=LIVE)
    deleted = PodRefusal.objects.filter(Exists(placed)).delete()[0]
    unseen = Q(seen_at__isnull=True) | Q(seen_at__lt=now - REFUSAL_LIMIT)
    return deleted + PodRefusal.objects.filter(unseen, last_at__lt=now - REFUSAL_LIMIT).delete()[0]


@atomic_retry
def bury_tombstones(now: datetime) -> int:
    """Delete rows of devices that went long ago; their past grants keep uuid, type and minor.

    Under their locks, since an inventory may bring one back at this moment.
    """
    old = Device.objects.filter(presence=Presence.REMOVED, changed_at__lt=now - TOMBSTONE_LIMIT)
    locked = list(old.select_for_update().order_by("pk").values_list("pk", flat=True)[:BATCH])
    return Device.objects.filter(pk__in=locked).delete()[0]
