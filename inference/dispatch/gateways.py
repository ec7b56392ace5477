"""Which web processes pass requests on. Each has a row that it renews; what it served ends with it.

Called by the gateways themselves and by the task `dispatch_requests`. Invariants: a gateway that has not renewed its
row for LEASE_SECONDS sends nothing any more and has cut its streams; others end its row after SILENT_SECONDS, so its
places are given to others only when nothing of it runs; a row that has ended is never renewed.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import Final

from inference.choices import REQUEST_OPEN, RequestState
from inference.dispatch.records import Ending, Recheck, Started
from inference.dispatch.rounds import dispatch
from inference.models import Gateway, Request, Turn
from storage.transactions import atomic_retry

RENEW_SECONDS: Final = 5.0
VALID_SECONDS: Final = 20.0
"""By the gateway's own clock, from before the last renewal was sent."""
SILENT_SECONDS: Final = 30.0
"""By the database's clock."""
KEPT_SECONDS: Final = 86_400.0
"""Of rows of gateways that have ended, and of turns."""
AT_ONCE: Final = 200
LOST: Final = "the web process that served it has ended"


@atomic_retry
def register(*, host: str, now: datetime) -> str:
    """A row for a new gateway; returns its id."""
    gateway_id = secrets.token_hex(8)
    Gateway.objects.create(pk=gateway_id, host=host[:253], started_at=now, seen_at=now)
    return gateway_id


@atomic_retry
def renew(gateway_id: str, *, now: datetime) -> bool:
    """Whether the gateway goes on; False where others have ended it."""
    return bool(Gateway.objects.filter(pk=gateway_id, ended_at__isnull=True).update(seen_at=now))


@atomic_retry
def end(gateway_id: str, *, now: datetime) -> None:
    """The gateway stops."""
    Gateway.objects.filter(pk=gateway_id, ended_at__isnull=True).update(ended_at=now)


@atomic_retry
def end_silent(*, now: datetime, even_since: datetime | None = None) -> int:
    """End gateways that have not been heard of. Returns their number.

    `even_since`: of `storage.clock.ClockReading`; after the clock was set forward a gateway is given as long to renew
    its row.
    """
    before = now - timedelta(seconds=SILENT_SECONDS)
    if even_since is not None and even_since > before:
        return 0
    return Gateway.objects.filter(ended_at__isnull=True, seen_at__lt=before).update(ended_at=now)


def fail_orphans(*, now: datetime, queue_length: int) -> list[Started]:
    """End what gateways served that have ended, and give the places to others. Returns whom."""
    rows = Request.objects.filter(state__in=REQUEST_OPEN, gateway__ended_at__isnull=False).order_by("pk")
    orphans = list(rows.values_list("pk", "model_name"))
    started: list[Started] = []
    for first in range(0, len(orphans), AT_ONCE):
        steps = [
            Ending(id=pk, model=name, state=RequestState.FAILED, reason=LOST, at=0.0)
            for pk, name in orphans[first : first + AT_ONCE]
        ]
        started += dispatch(steps, gateway="", now=now, monotonic=0.0, queue_length=queue_length).started
    return started


def dispatch_waiting(*, now: datetime, queue_length: int) -> list[Started]:
    """One round for every model whose requests wait, one after the other."""
    names = Request.objects.filter(state=RequestState.WAITING).order_by().values_list("model_name").distinct()
    started: list[Started] = []
    for (name,) in sorted(names):
        step = Recheck(model=name)
        started += dispatch([step], gateway="", now=now, monotonic=0.0, queue_length=queue_length).started
    return started


@atomic_retry
def prune(*, now: datetime) -> int:
    """Delete rows of gateways that ended long ago, and old turns."""
    before = now - timedelta(seconds=KEPT_SECONDS)
    gateways, _ = Gateway.objects.filter(ended_at__lt=before).delete()
    turns, _ = Turn.objects.filter(served_at__lt=before).delete()
    return gateways + turns
