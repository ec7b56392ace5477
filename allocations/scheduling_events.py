"""The watch of events FailedScheduling: a hold ends with its attempt also where the pod itself shows nothing new (LEASE-3).

Called by `allocations.tasks.watch_scheduling_events`, one turn at a time, on the queue of the watches. kube-scheduler
patches a pod only where the text of its failure is another, so the second failure of one kind is told by the event alone.
Invariants: it asks for these events only and reads from now on, without a list; one query an event that is no hold's;
what is missed while it loses its place ends by the hold's time.
"""

from __future__ import annotations

from django.conf import settings

from allocations import ledger
from allocations.choices import State
from allocations.counters import Cause, collected
from allocations.models import Allocation
from allocations.reconcile.failed import NOT_SCHEDULED, failed_by_event
from allocations.reconcile.rows import live_rows
from audit.clock import database_now
from kube.client import Cluster
from kube.following import TURN_SECONDS, Followed, follow
from kube.resources import EVENTS
from kube.scheduling_events import SELECTOR, SchedulingEvent
from kube.watch import Changed, Event

ACTOR = "watch"
NAME = "scheduling-events"


def watch_scheduling_events(*, cluster: Cluster, seconds: float = TURN_SECONDS) -> Followed:
    """One turn. Raises `kube.errors` when it ends with the cluster out of reach, and Redis' errors."""
    return follow(
        cluster,
        redis_url=settings.GPUPLANE_REDIS_URL,
        name=NAME,
        resource=EVENTS,
        kind=SchedulingEvent,
        handle=handle,
        field_selector=SELECTOR,
        from_now=True,
        seconds=seconds,
    )


def handle(event: Event[SchedulingEvent]) -> None:
    """One event. Raises DatabaseError: the next turn gets it again."""
    if not isinstance(event, Changed) or event.type == "DELETED":
        return
    about = event.object.involved_object
    if not about.uid or not _is_held(about.uid, about.resource_version):
        return
    for row in live_rows(pod_uid=about.uid):
        if row.state is State.HELD and failed_by_event(row, event.object):
            dropped = ledger.drop_hold(
                allocation_id=row.id,
                outcome=State.FAILED,
                reason=NOT_SCHEDULED,
                now=database_now(),
                actor=ACTOR,
                unchanged_since=row.changed_at,
            )
            collected(Cause.HOLD_OVER, dropped)


def _is_held(pod_uid: str, version: str) -> bool:
    return Allocation.objects.filter(pod_uid=pod_uid, state=State.HELD, attempt_version=version).exists()
