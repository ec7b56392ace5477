"""Rounds of a loop, one after the other for as long as a task lasts, on the one worker that holds the loop's lock.

Called by the loops of queues, growth and slots. Invariants: the next round begins after `Pace.least_seconds` at the
earliest, sooner than the pause that a round asks for only where a message wakes the loop; a run ends when the lock is
lost or another worker has begun a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import structlog
from django.conf import settings

from allocations.errors import MovedOn
from kube.watch_loop import RUN_SECONDS, Followed
from storage.leader_lock import leader_lock
from storage.wake import Waker

log = structlog.get_logger(__name__)

Round = Callable[[], float]
"""One round. Returns the seconds until the next where nothing wakes the loop; 0: at once."""


class Pace(NamedTuple):
    """`least_seconds`: from the beginning of a round to that of the next. `part`: after a round that asks for a pause,
    at least so many times as long as the round took; long ones leave the process to others.
    """

    least_seconds: float
    part: int = 0


def run_rounds(
    name: str,
    rounds: AbstractContextManager[tuple[Waker, Round]],
    *,
    pace: Pace,
    seconds: float = RUN_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Followed:
    """One run. `name`: of the lock; `rounds` is entered by its holder.

    Raises Redis' errors and what a round raises; what was begun is completed by the next run.
    """
    stop = threading.Event()
    with leader_lock(settings.GPUPLANE_REDIS_URL, name, stop=stop) as held:
        if held is None:
            return Followed.ELSEWHERE
        with rounds as (wakes, one_round):
            ends = clock() + seconds
            while not stop.is_set() and clock() < ends:
                began = clock()
                try:
                    pause = one_round()
                except MovedOn as error:
                    log.info("rounds.overtaken", loop=name, why=str(error))
                    return Followed.STOPPED
                least = pace.least_seconds
                if pause > 0:
                    least = max(least, pace.part * (clock() - began))
                    wakes.wait(min(began + pause, ends) - clock(), stop)
                stop.wait(max(began + least - clock(), 0.0))
        return Followed.STOPPED if stop.is_set() else Followed.DONE
