"""What pods asked for lately, in memory: bind needs it in advisory mode without a cluster to read the pod from."""

from __future__ import annotations

import threading
from collections import OrderedDict

from allocations.asking import Asks

MOST = 10_000
"""Pods remembered; the oldest go first."""

_lock = threading.Lock()
_known: OrderedDict[str, Asks] = OrderedDict()


def remember(pod_uid: str, asks: Asks) -> None:
    """Keep what a pod asked for."""
    with _lock:
        _known[pod_uid] = asks
        _known.move_to_end(pod_uid)
        while len(_known) > MOST:
            _known.popitem(last=False)


def recall(pod_uid: str) -> Asks | None:
    """What it asked for, if this process saw it."""
    with _lock:
        return _known.get(pod_uid)
