"""The growth loop (`allocations.scheduling.round_loop`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from allocations.scheduling.round_loop import Pace, Round, run_rounds
from audit.queue_wake import waker
from autoscaling.rounds.run import RoundResult, Rounds
from kube.client import Cluster
from kube.watch_loop import RUN_SECONDS, Followed
from storage.clock import database_now
from storage.wake import Waker

LOCK: Final = "growth"
PACE: Final = Pace(least_seconds=0.5)
BUSY_SECONDS: Final = 1.0
"""The longest pause while something is under way."""
MOST_SECONDS: Final = 5.0


def run_growth(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors`, Redis' and database errors; the next run completes what was begun."""
    return run_rounds(LOCK, _rounds(cluster), pace=PACE, seconds=seconds)


@contextmanager
def _rounds(cluster: Cluster) -> Iterator[tuple[Waker, Round]]:
    with waker() as wakes:
        rounds = Rounds(cluster)
        yield wakes, lambda: _pause(rounds.run())


def _pause(result: RoundResult) -> float:
    longest = BUSY_SECONDS if result.busy else MOST_SECONDS
    if result.next_due is None:
        return longest
    return min(longest, max((result.next_due - database_now()).total_seconds(), 0.0))
