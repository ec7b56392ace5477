"""Prometheus counters of collection, comparison and preemption.

Incremented by `scheduling`, `reconcile` and `watching`, in whichever process. Invariants: all are counters with labels
from small sets, so that those of workers, which are not scraped, can be added up in Redis (`gpuplane.metrics_relay`).
What a gauge would show of the last run is a counter too: `increase()` over a few minutes shows whether runs go on and
find anything.
"""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import Counter

COLLECTED = Counter("gpuplane_collected", "Allocations and leases that were ended, by what ended them", ["cause"])
COLLECTIONS = Counter("gpuplane_collections", "Turns of garbage collection that came to their end")
COMPARISONS = Counter("gpuplane_comparisons", "Comparisons of the ledger with the cluster", ["outcome"])
DIFFERENCES = Counter("gpuplane_differences", "Differences that comparisons found and could not repair, each time anew")
REPAIRED = Counter("gpuplane_repaired", "What comparisons put right", ["what"])
WAYS_BEGUN = Counter("gpuplane_making_way_begun", "Promises of devices for which others have to go")
WAYS_ENDED = Counter("gpuplane_making_way_ended", "Such promises ended, in vain or not", ["vain"])


class CollectionCause(StrEnum):
    """What ended an allocation, or a lease, that nobody released."""

    POD_ENDED = "pod-ended"
    """Seen by the watch, the usual way."""
    POD_GONE = "pod-gone"
    """Found by a comparison; the watch missed it."""
    HOLD_EXPIRED = "hold-expired"
    HOLD_OVER = "hold-over"
    """Its pod ended, or was not scheduled."""
    BIND_INTERRUPTED = "bind-interrupted"
    RELEASE_INTERRUPTED = "release-interrupted"
    TIME_OVER = "time-over"
    LEASE_LEFT_OVER = "lease-left-over"
    """A lease without an allocation."""


class ComparisonOutcome(StrEnum):
    """How a comparison ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    """The cluster did not answer, or stopped."""


class RepairKind(StrEnum):
    """Fields of `allocations.reconcile.Reconciled` that count a repair."""

    RECOUNTED = "recounted"
    ADOPTED = "adopted"
    CORRECTED = "corrected"
    LEASES_TAKEN = "leases_taken"
    STRANGERS_MARKED = "strangers_marked"
    STRANGERS_CLEARED = "strangers_cleared"
    OPENED = "opened"


# Every series exists from the start: a first event would otherwise be no increase.
for _cause in CollectionCause:
    COLLECTED.labels(_cause.value)
for _outcome in ComparisonOutcome:
    COMPARISONS.labels(_outcome.value)
for _what in RepairKind:
    REPAIRED.labels(_what.value)
for _vain in ("yes", "no"):
    WAYS_ENDED.labels(_vain)


def collected(cause: CollectionCause, count: int = 1) -> None:
    """Count ended rows."""
    COLLECTED.labels(cause.value).inc(count)
