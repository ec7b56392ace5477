"""Kubernetes events on waiting pods: all nodes, by their reasons (VIEW-3).

kube-scheduler's own event has the reasons of one attempt; this one has those of explain, in one sentence. Called by a
periodic task, and half a second after the queues found new reasons. Invariants: a pod gets another event only when its
reasons change, not their numbers nor its place in the queue; a pod that waits for less than `SETTLED`
(`SETTLED_IN_QUEUE`) gets none; a burst of refusals becomes at most `MOST` events a run, of those that wait longest
first.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Exists, OuterRef, Q

from allocations.choices import LIVE
from allocations.engine.queueing.ordinals import ORDINAL
from allocations.engine.reasons import summary_text
from allocations.models import Allocation, PodRefusal
from allocations.publish.pod_events import PodEvents
from allocations.waiting import SOON
from kube.client import Cluster

REASON: Final = "WaitingForDevices"
SETTLED: Final = timedelta(seconds=2)
"""A younger refusal may be over before anybody reads the event."""
SETTLED_IN_QUEUE: Final = timedelta(seconds=0.4)
"""The queues decide about a pod within a moment, once all pods of its gang are there."""
RECENT: Final = timedelta(minutes=10)
"""kube-scheduler filters a waiting pod every five minutes; one that was not filtered in twice that is unknown."""
MOST: Final = 100
RUN_SECONDS: Final = 20.0
"""A run begins no further event after so long."""

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def write(*, cluster: Cluster, now: datetime) -> int:
    """Write an event for every pod whose reasons have changed since its last, `MOST` at most; how many were written.

    A namespace whose events cannot be written for the moment waits for the next run, and delays no other.
    """
    events = PodEvents(cluster, reason=REASON, now=now, most=MOST, seconds=RUN_SECONDS)
    for refusal in _unpublished(now):
        if refusal.namespace in events.failing:
            continue
        if events.over:
            break
        message = refusal.summary
        if refusal.member is None:
            message = summary_text(sum(refusal.reasons.values()), refusal.reasons.items())
        if events.write(message, namespace=refusal.namespace, name=refusal.pod_name, uid=refusal.pod_uid):
            PodRefusal.objects.filter(pk=refusal.pk).update(event_reasons=_reasons(refusal))
    return events.written


def _unpublished(now: datetime) -> list[PodRefusal]:
    holding = Allocation.objects.filter(state__in=LIVE, pod_uid=OuterRef("pod_uid"))
    recent = Q(last_at__gt=now - RECENT) | Q(seen_at__gt=now - RECENT)
    settled = Q(first_at__lt=now - SETTLED) | Q(first_at__lt=now - SETTLED_IN_QUEUE, member__isnull=False)
    waiting = PodRefusal.objects.filter(~Exists(holding), recent, settled).exclude(summary=SOON)
    rows = waiting.order_by("first_at", "pk").defer("request").iterator(chunk_size=500)
    return [refusal for refusal in rows if _reasons(refusal) != refusal.event_reasons]


def _reasons(refusal: PodRefusal) -> list[str]:
    """The reasons that an event states; of queues without numbers and places, which change with each admission."""
    if refusal.member is None:
        return sorted(refusal.reasons)
    return [_NUMBER.sub("#", ORDINAL.sub("#", refusal.summary))]
