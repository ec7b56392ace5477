"""Events on pods that wait for a node: which pool, which NodeClaim, how far; or why none is made for them.

Called by a periodic task, not by the rounds: nodes wait neither for events nor for an API server that is slow to take
them. Invariants: an event is written when what it says has changed; a burst becomes at most `MOST` events a run, of
those whose answer is the oldest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from allocations.publish.pod_events import PodEvents
from autoscaling.models import PodGrowth
from autoscaling.selectors import growth_texts
from kube.client import Cluster

REASON: Final = "GpuScaling"
MOST: Final = 100
RUN_SECONDS: Final = 4.0
"""A run begins no further event after so long."""


def write_pod_events(cluster: Cluster, *, now: datetime, clock: Callable[[], float] = time.monotonic) -> int:
    """Write an event for every pod of which something else is said than before; how many were written."""
    rows = list(PodGrowth.objects.order_by("changed_at", "pk"))
    texts = growth_texts(rows)
    events = PodEvents(cluster, reason=REASON, now=now, most=MOST, seconds=RUN_SECONDS, clock=clock)
    for row in rows:
        text = texts[row.pod_uid]
        if events.over:
            break
        if text != row.event_text and events.write(
            text,
            namespace=row.namespace,
            name=row.pod_name,
            uid=row.pod_uid,
            kind="Normal" if row.pool else "Warning",
        ):
            PodGrowth.objects.filter(pk=row.pk).update(event_text=text)
    return events.written
