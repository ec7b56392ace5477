"""Whether the scheduling attempt of a hold has failed, by its pod or by an event.

Called by the pod watch, by the watch of scheduling events and by every comparison. Invariants: a pod that
shows nothing new costs no query; a failure that is taken for an earlier attempt's is noted once, and only in the row
that was judged.
"""

from __future__ import annotations

from allocations.attempts import (
    Attempt,
    EarlierAttempts,
    Verdict,
    failure_digest,
    verdict_of_event,
    verdict_of_pod,
)
from allocations.choices import State
from allocations.models import Allocation, PodRefusal
from allocations.reconcile.rows import Row
from kube.objects import Pod
from kube.scheduling_events import SchedulingEvent

NOT_SCHEDULED = "the pod was not scheduled"
"""Reason of a hold that ended with its failed attempt."""
REMEMBERED = 50
"""Earlier holds of the pod that count."""


def failed_by_pod(row: Row, pod: Pod) -> bool:
    """Whether the pod shows that the attempt of this hold failed."""
    if verdict_of_pod(row.held, pod, EarlierAttempts()) is Verdict.NOTHING:
        return False
    verdict = verdict_of_pod(row.held, pod, _before(row))
    if verdict is Verdict.EARLIER:
        unchanged = Allocation.objects.filter(pk=row.id, state=State.HELD, changed_at=row.changed_at)
        unchanged.update(failure_seen=failure_digest(pod), failure_owed=False, failure_credited=True)
    return verdict is Verdict.FAILED


def failed_by_event(row: Row, event: SchedulingEvent) -> bool:
    """Whether the event says that the attempt of this hold failed."""
    verdict = verdict_of_event(
        row.held,
        version=event.involved_object.resource_version,
        note=event.message,
        times=event.times,
        before=_before(row),
    )
    return verdict is Verdict.FAILED


def _before(row: Row) -> EarlierAttempts:
    others = Allocation.objects.filter(pod_uid=row.pod_uid).exclude(pk=row.id).exclude(attempt_version="")
    columns = ("attempt_version", "failure_seen", "attempt_number", "reason")
    earlier = list(others.order_by("-created_at").values_list(*columns)[:REMEMBERED])
    refusal = PodRefusal.objects.filter(pod_uid=row.pod_uid, count__gt=0).values_list("reasons", flat=True).first()
    return EarlierAttempts(
        holds=tuple((Attempt(version, failure), number) for version, failure, number, _ in earlier),
        unaccounted=frozenset(failure for _, failure, _, reason in earlier if reason != NOT_SCHEDULED),
        refusals=tuple(refusal or ()),
    )
