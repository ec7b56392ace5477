"""What pods asked for when filter named their nodes and held nothing: bind needs it in advisory mode without a cluster to read the pod from.

Called by filter and bind, in that mode alone; collection deletes old rows. Kept true: whichever process binds, it finds what any other filtered.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from access.transactions import atomic_retry
from allocations.asking import Asks
from allocations.models import AdvisedPod


@atomic_retry
def asks_note(pod_uid: str, asks: Asks, now: datetime) -> None:
    """Keep what a pod asks for; its last word counts."""
    AdvisedPod.objects.update_or_create(pod_uid=pod_uid, defaults={"asks": msgspec.to_builtins(asks), "at": now})


def noted_asks(pod_uid: str) -> Asks | None:
    """What it asked for, if it was filtered lately."""
    row = AdvisedPod.objects.filter(pod_uid=pod_uid).first()
    return None if row is None else msgspec.convert(row.asks, Asks)
