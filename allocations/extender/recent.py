"""What pods asked for lately, in memory: bind needs it in advisory mode without a cluster to read the pod from."""

from __future__ import annotations

import threading
from collections import OrderedDict

from claims.dialects.request import DeviceRequest

MOST = 10_000
"""Pods remembered; the oldest go first."""

_lock = threading.Lock()
_known: OrderedDict[str, tuple[DeviceRequest, int | None]] = OrderedDict()


def remember(pod_uid: str, request: DeviceRequest, claim_id: int | None) -> None:
    """Keep what a pod asked for."""
    with _lock:
        _known[pod_uid] = (request, claim_id)
        _known.move_to_end(pod_uid)
        while len(_known) > MOST:
            _known.popitem(last=False)


def recall(pod_uid: str) -> tuple[DeviceRequest, int | None] | None:
    """What it asked for, if this process saw it."""
    with _lock:
        return _known.get(pod_uid)
