"""Whether a hold's attempt has failed, by what the API server shows of its pod, and the rows that it takes to know.

Called by the pod watch, by the watch of scheduling events and by every comparison. Invariants: one query where nothing
is new; that a failure was taken for an earlier attempt's is noted once, and only in the row that was judged.
"""

from __future__ import annotations

from allocations.attempts import (
    Attempt,
    Before,
    Verdict,
    failure_digest,
    judged_by_event,
    judged_by_pod,
)
from allocations.choices import State
from allocations.models import Allocation, PodRefusal
from allocations.reconcile.rows import Row
from kube.objects import Pod
from kube.scheduling_events import SchedulingEvent

NOT_SCHEDULED = "the pod was not scheduled"
"""Reason of a hold that ended with its attempt, as it was seen."""
REMEMBERED = 50
"""Holds of the pod that are looked back at."""


def failed_by_pod(row: Row, pod: Pod) -> bool:
    """Whether the pod, as it is shown now, tells that the attempt of this hold failed."""
    if judged_by_pod(row.held, pod, Before()) is Verdict.NOTHING:
        return False
    verdict = judged_by_pod(row.held, pod, _before(row))
    if verdict is Verdict.EARLIER:
        unchanged = Allocation.objects.filter(pk=row.id, state=State.HELD, changed_at=row.changed_at)
        unchanged.update(failure_seen=failure_digest(pod), failure_owed=False, failure_credited=True)
    return verdict is Verdict.FAILED


def failed_by_event(row: Row, event: SchedulingEvent) -> bool:
    """Whether the event tells that the attempt of this hold failed."""
    return (
        judged_by_event(
            row.held,
            version=event.involved_object.resource_version,
            note=event.message,
            times=event.times,
            before=_before(row),
        )
        is Verdict.FAILED
    )


def _before(row: Row) -> Before:
    others = Allocation.objects.filter(pod_uid=row.pod_uid).exclude(pk=row.id).exclude(attempt_version="")
    told = list(
        others.order_by("-created_at").values_list("attempt_version", "failure_seen", "attempt_number", "reason")[
            :REMEMBERED
        ]
    )
    refusal = PodRefusal.objects.filter(pod_uid=row.pod_uid, count__gt=0).values_list("reasons", flat=True).first()
    return Before(
        holds=tuple((Attempt(version, failure), number) for version, failure, number, _ in told),
        unaccounted=frozenset(failure for _, failure, _, reason in told if reason != NOT_SCHEDULED),
        refusals=tuple(refusal or ()),
    )
