"""Prometheus counters of collection, comparison, preemption and reservation pods.

Incremented by `scheduling`, `reconcile` and `watching`, in whichever process. Invariants: all are counters, or
histograms, with labels from small sets, so that those of workers, which are not scraped, can be added up in Redis
(`gpuplane.metrics_relay`). What a gauge would show of the last run is a counter too: `increase()` over a few minutes
shows whether runs go on and find anything.
"""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import Counter, Histogram

COLLECTED = Counter("gpuplane_collected", "Allocations and leases that were ended, by what ended them", ["cause"])
COLLECTIONS = Counter("gpuplane_collections", "Runs of garbage collection that came to their end")
COMPARISONS = Counter("gpuplane_comparisons", "Comparisons of the ledger with the cluster", ["outcome"])
DIFFERENCES = Counter("gpuplane_differences", "Differences that comparisons found and could not repair, each time anew")
REPAIRED = Counter("gpuplane_repaired", "What comparisons put right", ["what"])
RESERVATIONS_BEGUN = Counter("gpuplane_making_way_begun", "Preemption reservations that were written")
RESERVATIONS_ENDED = Counter(
    "gpuplane_making_way_ended", "Preemption reservations that ended, in vain or not", ["vain"]
)
RESERVATION_SECONDS = Histogram(
    "gpuplane_reservation_seconds",
    "From when a reservation pod was made until its GPU was known and given to who waited for it",
    buckets=(0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60),
)
RESERVATIONS_FAILED = Counter(
    "gpuplane_reservations_failed", "Reservation pods in vain, by the kind of reason", ["reason"]
)


class ReservationFailure(StrEnum):
    """Why a reservation pod was in vain."""

    REFUSED = "refused"
    """The API server does not take the pod."""
    POD_ENDED = "pod-ended"
    """The kubelet refused the pod, or it failed or was deleted before it told its GPUs."""
    TIMED_OUT = "timed-out"
    """It reported no GPU in time."""
    OTHER_GPU = "other-gpu"
    """The GPUs that it told cannot be the group's."""
    UNPROTECTED = "unprotected"
    """A new pod for an unprotected group did not get the group's GPUs."""


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
for _failure in ReservationFailure:
    RESERVATIONS_FAILED.labels(_failure.value)
for _vain in ("yes", "no"):
    RESERVATIONS_ENDED.labels(_vain)


def collected(cause: CollectionCause, count: int = 1) -> None:
    """Count ended rows."""
    COLLECTED.labels(cause.value).inc(count)


def reservation_failed(reason: ReservationFailure) -> None:
    """Count a reservation pod in vain."""
    RESERVATIONS_FAILED.labels(reason.value).inc()
