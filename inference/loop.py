"""The loop of slots: rounds, for as long as a task lasts, on the one worker that holds the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import structlog
from django.conf import settings

from allocations.choices import State as AllocationState
from allocations.errors import MovedOn
from inference.choices import State
from inference.models import Slot
from inference.rounds.memory import settle_one
from inference.rounds.run import Rounds, is_in_use
from inference.rounds.slow_binds import SlowBinds
from inference.wake import waker
from kube.watch_loop import RUN_SECONDS, Followed
from storage.clock import database_now
from storage.leader_lock import leader_lock

LOCK: Final = "slots"
LEAST_SECONDS: Final = 0.1
"""From the beginning of a round to that of the next."""
PART: Final = 2
"""A round takes at most half of the time until the next."""
BUSY_SECONDS: Final = 1.0
"""The longest pause while slots wait for memory."""
MOST_SECONDS: Final = 5.0
"""Without anything that wakes the loop: idle slots grow old, measured memory changes."""

log = structlog.get_logger(__name__)


def run_slots(*, seconds: float = RUN_SECONDS, clock: Callable[[], float] = time.monotonic) -> Followed:
    """Rounds for so long. Raises Redis' and database errors; what was begun is made good by the next."""
    stop = threading.Event()
    with leader_lock(settings.GPUPLANE_REDIS_URL, LOCK, stop=stop) as held:
        if held is None:
            return Followed.ELSEWHERE
        with waker() as wakes, closing(SlowBinds(bind_slowly)) as slow:
            ends, rounds = clock() + seconds, Rounds(slow.begin)
            while not stop.is_set() and clock() < ends:
                began = clock()
                try:
                    busy = is_in_use() and rounds.run().busy
                except MovedOn as error:
                    log.info("slots.overtaken", why=str(error))
                    return Followed.STOPPED
                took = clock() - began
                wakes.wait(min(began + (BUSY_SECONDS if busy else MOST_SECONDS), ends) - clock(), stop)
                stop.wait(max(began + max(LEAST_SECONDS, PART * took) - clock(), 0.0))
        return Followed.STOPPED if stop.is_set() else Followed.DONE


def bind_slowly(slot: Slot) -> None:
    """In a thread of its own: the slot as it is now."""
    found = Slot.objects.select_related("allocation").filter(pk=slot.pk, state=State.PLANNED).first()
    if found is not None and (found.allocation is None or found.allocation.state != AllocationState.BOUND):
        settle_one(found, now=database_now())
