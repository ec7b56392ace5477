"""What the extender counts for Prometheus: how long each verb takes and how it ends, and why pods are refused.

Called by `allocations.extender.views` and `filter`; the web process shows it on its own `/metrics`. Kept true: labels come from small sets
and never name a node, a pod or a number; counting costs microseconds of a verb that takes milliseconds. A verb's time is its work: what it
waits for a thread before stands in `gpuplane_cluster_request_seconds`, which the door counts.
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

NOT_REGISTERED: Final = "not-registered"
BEING_UNDONE: Final = "being-undone"
ELSEWHERE: Final = "elsewhere"
RACING: Final = "racing"
MALFORMED: Final = "pod-malformed"
LEDGER_AWAY: Final = "ledger-away"

SECONDS = Histogram(
    "gpuplane_extender_seconds", "Work of a verb, by how it ended", ["verb", "outcome"], buckets=BUCKETS
)
REFUSALS = Counter(
    "gpuplane_filter_refusals", "Refusals by filter, under each sort of reason that they gave", ["reason"]
)


class Outcome(StrEnum):
    """How a verb ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """With a reason: filter lets no node through, bind tells an Error."""
    ERROR = "error"
    """The question cannot be read, or the ledger not be reached."""


class Timed:
    """One run of a verb; whoever answers says how it ended. An exception is an error."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome = Outcome.ERROR


class Verb:
    """One verb's histogram, its children looked up once."""

    def __init__(self, name: str) -> None:
        self._seconds = {outcome: SECONDS.labels(name, outcome.value) for outcome in Outcome}

    @contextmanager
    def timed(self) -> Iterator[Timed]:
        """Time the body of the `with`."""
        timed, began = Timed(), time.perf_counter()
        try:
            yield timed
        finally:
            self._seconds[timed.outcome].observe(time.perf_counter() - began)


FILTER, PRIORITIZE, BIND, PREEMPT = map(Verb, ("filter", "prioritize", "bind", "preempt"))

_reasons: set[str] = set()


def refused(reasons: Iterable[str]) -> None:
    """Count one refusal by filter: a rule of claims and dialects, or the sorts of reason that the engine had for nodes."""
    for reason in reasons:
        if reason not in _reasons and len(_reasons) < MOST_REASONS:
            _reasons.add(reason)
        REFUSALS.labels(reason if reason in _reasons else OTHER).inc()
