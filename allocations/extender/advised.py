"""What filtered pods ask for: bind needs it in advisory mode without a cluster to read the pod from.

Called by filter and bind, in that mode alone; collection deletes old rows. Invariants: any process finds what any other
filtered.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from allocations.models import AdvisedPod
from allocations.pod_request import PodRequest
from storage.transactions import atomic_retry


@atomic_retry
def record_request(pod_uid: str, pod_request: PodRequest, now: datetime) -> None:
    """Keep what a pod asks for, in place of what it asked for before."""
    AdvisedPod.objects.update_or_create(
        pod_uid=pod_uid, defaults={"request": msgspec.to_builtins(pod_request), "at": now}
    )


def recorded_request(pod_uid: str) -> PodRequest | None:
    """What the pod asked for, None unless it was filtered lately."""
    row = AdvisedPod.objects.filter(pod_uid=pod_uid).first()
    return None if row is None else msgspec.convert(row.request, PodRequest)
