"""When things happened, by the clocks of those to whom they happened: rows of the ledger, events of a watch.

A bound of seconds is compared with these, so that neither a test's polling nor a busy machine's late reader counts.
Everything runs on one machine, so there is one clock.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.gpuplane import Gpuplane
from tests.cluster.truth import select

_ALLOCATIONS = "SELECT pod_uid, bound_at, ended_at FROM allocations_allocation WHERE pod_uid <> '' ORDER BY created_at"
_REFUSALS = "SELECT pod_uid, last_at, count FROM allocations_podrefusal"
LONGEST_BACK_OFF = timedelta(seconds=10)
"""kube-scheduler's `podMaxBackoffSeconds`, as the chart ships it."""


def bound_moments(gpuplane: Gpuplane) -> dict[str, datetime]:
    """When each pod's allocation was bound, by pod UID; those that never were are missing."""
    return {uid: _moment(bound) for uid, bound, _ in select(gpuplane, _ALLOCATIONS)[0] if bound is not None}


def ended_moments(gpuplane: Gpuplane) -> dict[str, datetime]:
    """When the devices of each pod were back, by pod UID; those that still hold some are missing."""
    return {uid: _moment(ended) for uid, _, ended in select(gpuplane, _ALLOCATIONS)[0] if ended is not None}


def rested_at(gpuplane: Gpuplane, uid: str) -> datetime | None:
    """When kube-scheduler's back-off of a refused pod is over: 1 s after its first refusal, and twice as long after
    each. None: not refused.
    """
    for found, last, count in select(gpuplane, _REFUSALS)[0]:
        if found == uid:
            return _moment(last) + min(timedelta(seconds=2 ** (count - 1)), LONGEST_BACK_OFF)
    return None


def end_heard(seen: Observer, pod: Json) -> datetime:
    """When the watch told that the pod's devices are free: its first event that says finished, or that it is gone."""
    meta = pod["metadata"]
    key = f"{meta['namespace']}/{meta['name']}/{meta['uid']}"
    versions = seen.history[key]
    over = [one for one in versions if one.get("status", {}).get("phase") in {"Succeeded", "Failed"}]
    assert over or key in seen.gone, f"{key} has not ended"
    return seen.heard[(over or versions[-1:])[0]["metadata"]["resourceVersion"]]


def _moment(told: Any) -> datetime:
    """A column of either database; SQLite keeps UTC as text."""
    read = told if isinstance(told, datetime) else datetime.fromisoformat(told)
    return read if read.tzinfo else read.replace(tzinfo=UTC)
