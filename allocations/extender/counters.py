"""Metrics of the extender: how long each verb takes and how it ends, and why pods are refused.

Written by `allocations.extender.views` and `filter`; the web process shows them at its own `/metrics`. Invariants:
labels come from small sets and never name a node, a pod or a number. A verb's time is its work; with the wait for a
thread before it, it is in `gpuplane_cluster_request_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from prometheus_client import Counter, Histogram

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
"""Seconds. A bind may take its deadline of 20 s, and kube-scheduler waits 60 s for an extender."""
MOST_REASONS: Final = 100
OTHER: Final = "other"

SECONDS = Histogram(
    "gpuplane_extender_seconds", "Work of a verb, by how it ended", ["verb", "outcome"], buckets=BUCKETS
)
REFUSALS = Counter(
    "gpuplane_filter_refusals", "Refusals by filter, under each sort of reason that they gave", ["reason"]
)


class VerbOutcome(StrEnum):
    """How a verb ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """With a reason: filter lets no node through, bind answers an Error."""
    ERROR = "error"
    """The request cannot be read, or the ledger not be reached."""


class VerbTimer:
    """One run of a verb. `outcome` is set by whoever answers; an exception is an error."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome = VerbOutcome.ERROR


class Verb:
    """The histogram of one verb."""

    def __init__(self, name: str) -> None:
        self._seconds = {outcome: SECONDS.labels(name, outcome.value) for outcome in VerbOutcome}

    @contextmanager
    def timed(self) -> Iterator[VerbTimer]:
        """Time the body of the `with`."""
        timed, began = VerbTimer(), time.perf_counter()
        try:
            yield timed
        finally:
            self._seconds[timed.outcome].observe(time.perf_counter() - began)


FILTER, PRIORITIZE, BIND, PREEMPT = map(Verb, ("filter", "prioritize", "bind", "preempt"))

_reasons: set[str] = set()


def refused(kinds: Iterable[str]) -> None:
    """Count one refusal by filter under each kind of reason."""
    for reason in kinds:
        if reason not in _reasons and len(_reasons) < MOST_REASONS:
            _reasons.add(reason)
        REFUSALS.labels(reason if reason in _reasons else OTHER).inc()
