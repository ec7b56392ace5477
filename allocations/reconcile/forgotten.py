"""Pods that wait although something came free after they were refused, because nobody told: a process died between commit and announcement.

Called by every comparison with the cluster. Kept true: each thing that came free is told once more at most, and only while pods wait
that were not asked for again since; without this they would wait for kube-scheduler's own five minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import Max, QuerySet

from allocations.models import Allocation, PodRefusal
from audit.announce import announce
from claims.models import GpuClaim
from kube.objects import Pod
from nodes.models import Device

QUIET = timedelta(seconds=15)
"""Announcing takes a second, and the scheduler asks again within its longest back-off (10 s): what is younger is not forgotten yet."""


class Reminder:
    """One a process: remembers up to when it has told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: datetime | None = None

    def remind(self, *, pods: Mapping[str, Pod], now: datetime) -> int:
        """Announce once more where pods were forgotten; how many. `pods`: those of the cluster, by UID."""
        refused = dict(
            PodRefusal.objects.filter(last_at__lt=now - QUIET, count__gt=0).values_list("pod_uid", "last_at")
        )
        waiting = {uid: at for uid, at in refused.items() if uid in pods and _waits(pods[uid])}
        if not waiting:
            return 0
        newest = _last_gain(min(waiting.values()), now - QUIET)
        with self._lock:
            if newest is None or (self._told is not None and newest <= self._told):
                return 0
            self._told = newest
        forgotten = sum(at < newest for at in waiting.values())
        if forgotten:
            announce()
        return forgotten


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp)


def _last_gain(after: datetime, before: datetime) -> datetime | None:
    """When devices came back last, or a device or a claim changed, within this time; None where nothing did."""
    moments = (
        _latest(Allocation.objects.filter(ended_at__gt=after, ended_at__lt=before), "ended_at"),
        _latest(
            Device.objects.filter(
                changed_at__gt=after, changed_at__lt=before, stranger="", conflict="", closed="", mig=False
            ),
            "changed_at",
        ),
        _latest(GpuClaim.objects.filter(changed_at__gt=after, changed_at__lt=before), "changed_at"),
    )
    return max((moment for moment in moments if moment is not None), default=None)


def _latest(rows: QuerySet[Allocation] | QuerySet[Device] | QuerySet[GpuClaim], column: str) -> datetime | None:
    found: datetime | None = rows.aggregate(latest=Max(column))["latest"]
    return found


REMINDER = Reminder()
"""That of this process."""
