"""What pods asked for lately, in memory: bind needs it in advisory mode without a cluster to read the pod from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from claims.dialects.request import DeviceRequest

MOST = 10_000
"""Pods remembered; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Recent:
    """What filter saw of a pod."""

    request: DeviceRequest
    claim_id: int | None
    confined: bool


_lock = threading.Lock()
_known: OrderedDict[str, Recent] = OrderedDict()


def remember(pod_uid: str, recent: Recent) -> None:
    """Keep what a pod asked for."""
    with _lock:
        _known[pod_uid] = recent
        _known.move_to_end(pod_uid)
        while len(_known) > MOST:
            _known.popitem(last=False)


def recall(pod_uid: str) -> Recent | None:
    """What it asked for, if this process saw it."""
    with _lock:
        return _known.get(pod_uid)
