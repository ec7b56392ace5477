"""Rows that wait to be collected: which are due, and how long one waits that could not be moved on.

Called by garbage collection and the dropping of expired holds. Invariants: a row that could not be moved on waits
longer each time, and comes after those that were never tried, so it delays none of them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from django.db import DataError, IntegrityError
from django.db.models import F, Q, QuerySet

from allocations.choices import State
from allocations.models import Allocation

BATCH = 500
"""Rows tried at once."""
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(seconds=60)
"""The pause doubles each time, from the first to the longest."""
BROKEN = (IntegrityError, DataError, ValueError, KeyError, TypeError, msgspec.MsgspecError)
"""What a row raises that the database, or its reader, does not take: it is logged and waits, and delays no other."""


def due(rows: QuerySet[Allocation], now: datetime, oldest: str) -> QuerySet[Allocation]:
    """The rows to try now, `BATCH` at most: those never tried first, then by how long they have waited."""
    waited = rows.filter(Q(retry_at__isnull=True) | Q(retry_at__lte=now))
    return waited.order_by(F("retry_at").asc(nulls_first=True), oldest)[:BATCH]


def due_later(allocation_ids: Collection[uuid.UUID], state: State, now: datetime) -> None:
    """Put off those of these rows that are still in this state."""
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
