"""Events on pods that wait for a node: which pool, which NodeClaim, how far; or why none is made for them.

Invariant: an event is written when what it says has changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from allocations.publish.pod_events import PodEvents
from autoscaling.models import PodGrowth
from autoscaling.selectors import growth_texts
from kube.client import Cluster

REASON: Final = "GpuScaling"
MOST: Final = 50


def write_pod_events(cluster: Cluster, *, now: datetime) -> int:
    """Write an event for every pod of which something else is said than before, `MOST` at most."""
    rows = list(PodGrowth.objects.all())
    texts = growth_texts(rows)
    events = PodEvents(cluster, reason=REASON, now=now)
    for row in rows:
        text = texts[row.pod_uid]
        if events.written >= MOST:
            break
        if text != row.told and events.write(
            text,
            namespace=row.namespace,
            name=row.pod_name,
            uid=row.pod_uid,
            kind="Normal" if row.pool else "Warning",
        ):
            PodGrowth.objects.filter(pk=row.pk).update(told=text)
    return events.written
