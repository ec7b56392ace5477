"""The loop: round after round for `RUN_SECONDS`, on the one worker that holds the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from django.conf import settings

from allocations.errors import MovedOn
from allocations.models import GangState, PodRefusal, QueueState
from allocations.scheduling.queueing.rounds import Rounds
from audit.queue_wake import waker
from claims.models import GpuQueue
from kube.client import Cluster
from kube.watch_loop import RUN_SECONDS, Followed
from storage.leader_lock import leader_lock

LOCK: Final = "queues"
LEAST_SECONDS: Final = 0.1
"""From the beginning of a round to that of the next."""
PART: Final = 4
"""A round that changes nothing takes at most a quarter of the time until the next: long ones leave the process to
others.
"""
MOST_SECONDS: Final = 5.0
"""Without anything that wakes the loop."""

log = structlog.get_logger(__name__)


def run_queues(
    *, cluster: Cluster | None, seconds: float = RUN_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Followed:
    """One run. Raises Redis' errors and database errors; the next run completes what was begun."""
    stop = threading.Event()
    with leader_lock(settings.GPUPLANE_REDIS_URL, LOCK, stop=stop) as held:
        if held is None:
            return Followed.ELSEWHERE
        with waker() as wakes:
            ends, rounds = clock() + seconds, Rounds(cluster)
            while not stop.is_set() and clock() < ends:
                began = clock()
                try:
                    again = is_in_use() and rounds.run().again
                except MovedOn as error:
                    log.info("queues.overtaken", why=str(error))
                    return Followed.STOPPED
                took = clock() - began
                if not again:
                    wakes.wait(min(began + MOST_SECONDS, ends) - clock(), stop)
                stop.wait(max(began + (LEAST_SECONDS if again else max(LEAST_SECONDS, PART * took)) - clock(), 0.0))
        return Followed.STOPPED if stop.is_set() else Followed.DONE


def is_in_use() -> bool:
    """Whether there is anything to decide about, or to clear away."""
    return (
        PodRefusal.objects.filter(member__isnull=False).exists()
        or GpuQueue.objects.exists()
        or QueueState.objects.exists()
        or GangState.objects.exists()
    )
