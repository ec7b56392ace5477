"""Announce again what came free after pods were refused: a process may have died between commit and announcement.
And announce that a node begins groups again, since its back-off (`allocations.ledger.groups`) is over.

Called by every comparison with the cluster. Invariants: a change is announced again at most once, and only while pods
wait that were not filtered since; else they would wait for kube-scheduler's own five minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import Max, QuerySet

from allocations.models import Allocation, GroupBackOff, PodRefusal
from audit.requeue_notify import announce
from claims.models import GpuClaim
from kube.objects import Pod
from nodes.models import Device

QUIET = timedelta(seconds=15)
"""Announcing takes a second, and kube-scheduler filters again within its longest back-off (10 s)."""


class RequeueNotifier:
    """One a process. Remembers the newest change that it announced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: datetime | None = None

    def remind(self, *, pods: Mapping[str, Pod], now: datetime) -> int:
        """Announce again where pods were missed; how many. `pods`: those of the cluster, by UID."""
        refused = dict(
            PodRefusal.objects.filter(last_at__lt=now - QUIET, count__gt=0).values_list("pod_uid", "last_at")
        )
        waiting = {uid: at for uid, at in refused.items() if uid in pods and _waits(pods[uid])}
        if not waiting:
            return 0
        gains = (_last_gain(min(waiting.values()), now - QUIET), _last_back_off(min(waiting.values()), now))
        newest = max((moment for moment in gains if moment is not None), default=None)
        with self._lock:
            if newest is None or (self._announced is not None and newest <= self._announced):
                return 0
            self._announced = newest
        missed = sum(at < newest for at in waiting.values())
        if missed:
            announce()
        return missed


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp)


def _last_gain(after: datetime, before: datetime) -> datetime | None:
    """When a device came back, or a device or a claim changed, last within this time; None where nothing did."""
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


def _last_back_off(after: datetime, now: datetime) -> datetime | None:
    """When a node was allowed last to begin groups again, which nobody announces: nothing is written then."""
    return _latest(GroupBackOff.objects.filter(until__gt=after, until__lte=now), "until")


def _latest(
    rows: QuerySet[Allocation] | QuerySet[Device] | QuerySet[GpuClaim] | QuerySet[GroupBackOff], column: str
) -> datetime | None:
    found: datetime | None = rows.aggregate(latest=Max(column))["latest"]
    return found


REMINDER = RequeueNotifier()
"""The process's."""
