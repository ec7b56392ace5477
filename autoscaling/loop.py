"""The growth loop: rounds, for as long as a task lasts, on the one worker that holds the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from django.conf import settings

from allocations.errors import MovedOn
from audit.queue_wake import waker
from autoscaling.rounds.run import Rounds
from kube.client import Cluster
from kube.watch_loop import RUN_SECONDS, Followed
from storage.clock import database_now
from storage.leader_lock import leader_lock

LOCK: Final = "growth"
LEAST_SECONDS: Final = 0.5
"""From the beginning of a round to that of the next."""
BUSY_SECONDS: Final = 1.0
"""The same while something is under way and nothing wakes the loop."""
MOST_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


def run_growth(
    *, cluster: Cluster, seconds: float = RUN_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Followed:
    """Rounds for so long. Raises `kube.errors`, Redis' and database errors; what was begun is made good by the next."""
    stop = threading.Event()
    with leader_lock(settings.GPUPLANE_REDIS_URL, LOCK, stop=stop) as held:
        if held is None:
            return Followed.ELSEWHERE
        with waker() as wakes:
            ends, rounds = clock() + seconds, Rounds(cluster)
            while not stop.is_set() and clock() < ends:
                began = clock()
                try:
                    result = rounds.run()
                except MovedOn as error:
                    log.info("growth.overtaken", why=str(error))
                    return Followed.STOPPED
                longest = BUSY_SECONDS if result.busy else MOST_SECONDS
                if result.next_due is not None:
                    longest = min(longest, max((result.next_due - database_now()).total_seconds(), 0.0))
                wakes.wait(min(began + longest, ends) - clock(), stop)
                stop.wait(max(began + LEAST_SECONDS - clock(), 0.0))
        return Followed.STOPPED if stop.is_set() else Followed.DONE
