"""The loop of slots (`allocations.scheduling.round_loop`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from allocations.choices import State as AllocationState
from allocations.scheduling.round_loop import Pace, Round, run_rounds
from inference.choices import State
from inference.models import Slot
from inference.rounds.memory import settle_one
from inference.rounds.run import Rounds, is_in_use
from inference.rounds.slow_binds import SlowBinds
from inference.wake import waker
from kube.watch_loop import RUN_SECONDS, Followed
from storage.clock import database_now
from storage.wake import Waker

LOCK: Final = "slots"
PACE: Final = Pace(least_seconds=0.1, part=2)
BUSY_SECONDS: Final = 1.0
"""The longest pause while slots wait for memory."""
MOST_SECONDS: Final = 5.0
"""Without anything that wakes the loop: idle slots grow old, measured memory changes."""


def run_slots(*, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises Redis' and database errors; the next run completes what was begun."""
    return run_rounds(LOCK, _rounds(), pace=PACE, seconds=seconds)


@contextmanager
def _rounds() -> Iterator[tuple[Waker, Round]]:
    with waker() as wakes, closing(SlowBinds(bind_slowly)) as slow:
        rounds = Rounds(slow.begin)
        yield wakes, lambda: BUSY_SECONDS if is_in_use() and rounds.run().busy else MOST_SECONDS


def bind_slowly(slot: Slot) -> None:
    """In a thread of its own: the slot as it is now."""
    found = Slot.objects.select_related("allocation").filter(pk=slot.pk, state=State.PLANNED).first()
    if found is not None and (found.allocation is None or found.allocation.state != AllocationState.BOUND):
        settle_one(found, now=database_now())
