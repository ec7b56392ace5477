"""What went wrong for a pod before: triggers of its that failed, and requests of its that were cancelled.

Read from the rows, so that a restart forgets nothing. Invariants: a pod is tried at most `TRIES` times in a row, with
back-off, elsewhere first; failures are forgotten `FORGOTTEN` after the last of them, and one when its pool changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.conf import settings
from django.db.models import F

from autoscaling.choices import RequestState, TriggerState
from autoscaling.models import Pool, Trigger

TRIES: Final = 3
FORGOTTEN: Final = timedelta(minutes=10)
BACK_OFF: Final = (timedelta(seconds=5), timedelta(seconds=15))
"""After the first failure, and after the second."""


class Failure(NamedTuple):
    """One trigger that failed. `since`: when the attempt began."""

    pool: str
    since: datetime
    at: datetime
    reason: str


class EarlierFailures:
    """By UID of the pod, the latest last."""

    def __init__(self, failed: Mapping[str, list[Failure]], cancelled: Mapping[str, str], now: datetime) -> None:
        self._failed = failed
        self._cancelled = cancelled
        self._now = now

    @classmethod
    def read(cls, now: datetime) -> EarlierFailures:
        """All that count."""
        failed: defaultdict[str, list[Failure]] = defaultdict(list)
        rows = Trigger.objects.filter(
            state=TriggerState.FAILED, ended_at__gt=now - FORGOTTEN - TRIES * longest_attempt()
        )
        columns = ("pods", "created_at", "ended_at", "reason", "request__pool")
        for one in rows.select_related("request").only(*columns).order_by("ended_at", "pk"):
            if one.ended_at is not None:
                failure = Failure(one.request.pool, one.created_at or one.ended_at, one.ended_at, one.reason)
                for uid in one.pods:
                    failed[uid].append(failure)
        cancelled = {}
        stopped = Trigger.objects.filter(state=TriggerState.WITHDRAWN, request__state=RequestState.CANCELLED)
        # not those that were withdrawn for another reason before, whose pods may have other triggers
        stopped = stopped.filter(reason=F("request__reason")).exclude(reason="")
        for one in stopped.select_related("request").only("pods", "request__reason"):
            cancelled.update(dict.fromkeys(one.pods, one.request.reason))
        return cls(failed, cancelled, now)

    def why_not_now(self, uid: str, pools: Sequence[Pool]) -> str:
        """Why no node is wanted for the pod now; empty where one may be."""
        if uid in self._cancelled:
            return self._cancelled[uid]
        count = self._counted(uid, pools)
        if not count:
            return ""
        last = count[-1]
        if len(count) >= TRIES:
            return f"{len(count)} attempts failed, the last in pool {last.pool}: {last.reason}"
        if self._now < last.at + BACK_OFF[len(count) - 1]:
            return f"it is tried again within seconds; pool {last.pool}: {last.reason}"
        return ""

    def pools_of(self, uid: str, pools: Sequence[Pool]) -> set[str]:
        """Names of pools in which it failed."""
        return {one.pool for one in self._counted(uid, pools)}

    def _counted(self, uid: str, pools: Iterable[Pool]) -> list[Failure]:
        changed = {pool.name: pool.changed_at for pool in pools}
        row: list[Failure] = []
        for one in self._failed.get(uid, ()):
            if row and one.since - row[-1].at > FORGOTTEN:
                row = []
            row.append(one)
        if row and self._now - row[-1].at > FORGOTTEN and len(row) >= TRIES:
            return []
        return [one for one in row if one.pool not in changed or changed[one.pool] <= one.at]


def longest_attempt() -> timedelta:
    """From a trigger pod to its failure, at most."""
    node = 2 * settings.GPUPLANE_REGISTRATION_SECONDS  # to be registered, then to be ready
    return timedelta(seconds=settings.GPUPLANE_TRIGGER_SECONDS + node + settings.GPUPLANE_INVENTORY_SECONDS)
