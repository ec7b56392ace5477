"""The loop of the queues (`allocations.scheduling.round_loop`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from allocations.errors import NewerDecision
from allocations.models import GangState, PodRefusal, QueueState
from allocations.scheduling.queueing.rounds import Rounds
from allocations.scheduling.round_loop import Pace, Round, run_rounds
from audit.queue_wake import waker
from claims.models import GpuQueue
from kube.client import Cluster
from kube.watch_loop import RUN_SECONDS, Followed
from storage.wake import Waker

LOCK: Final = "queues"
PACE: Final = Pace(least_seconds=0.1, part=4)
MOST_SECONDS: Final = 5.0
"""Without anything that wakes the loop."""


def run_queues(*, cluster: Cluster | None, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises Redis' errors and database errors; the next run completes what was begun."""
    return run_rounds(LOCK, _rounds(cluster), pace=PACE, seconds=seconds)


@contextmanager
def _rounds(cluster: Cluster | None) -> Iterator[tuple[Waker, Round]]:
    with waker() as wakes:
        rounds = Rounds(cluster)
        yield wakes, lambda: run_round(rounds) if is_in_use() else MOST_SECONDS


def run_round(rounds: Rounds) -> float:
    """One round; the seconds until the next. One that a REST claim came before is followed by another at once.

    Raises NewerDecision when another worker has begun.
    """
    try:
        return 0.0 if rounds.run().again else MOST_SECONDS
    except NewerDecision:
        if not rounds.is_latest():
            raise
        return 0.0


def is_in_use() -> bool:
    """Whether there is anything to decide about, or to clear away."""
    return (
        PodRefusal.objects.filter(member__isnull=False).exists()
        or GpuQueue.objects.exists()
        or QueueState.objects.exists()
        or GangState.objects.exists()
    )
