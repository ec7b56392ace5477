"""The steps of a round, in their order. Called by `inference.loop`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from allocations.choices import LIVE
from allocations.models import Allocation
from claims.dialects.request import Dialect
from inference.choices import HOLDING, State
from inference.models import Model, Slot
from inference.rounds.fence import begin
from inference.rounds.memory import planned_slots, return_memory, settle
from inference.rounds.planning import plan
from inference.rounds.tidying import tidy
from inference.slot_pods import SlotPods
from storage.clock import database_now

CLEARED: Final = timedelta(minutes=10)
"""So long after the last slot there may be memory or pods of it to clear away."""


class RoundResult(NamedTuple):
    """`busy`: slots wait for memory, so the next round comes soon."""

    planned: list[str]
    busy: bool


class Rounds:
    """The rounds of one worker, which end those of any other. `slowly`: see `rounds.memory.settle`."""

    def __init__(self, slowly: Callable[[Slot], None] | None = None) -> None:
        self._number = begin()
        self._slowly = slowly
        self._pods = SlotPods()

    def run(self) -> RoundResult:
        """One round. Raises MovedOn and database errors; the next round goes on from the rows."""
        now = database_now()
        tidy(now=now)
        self._pods.follow(now=now)
        return_memory(now=now)
        settle(planned_slots(), now=now, slowly=self._slowly)
        new = plan(self._number, now=now)
        settle(new, now=database_now(), slowly=self._slowly)
        self._pods.make(now=database_now())
        return RoundResult([slot.pk for slot in new], busy=Slot.objects.filter(state=State.PLANNED).exists())


def is_in_use() -> bool:
    """Whether there is anything to plan, or to clear away."""
    if Model.objects.exists() or Slot.objects.filter(state__in=HOLDING).exists():
        return True
    if Allocation.objects.filter(dialect=Dialect.SLOT.value, state__in=LIVE).exists():
        return True
    lately = Slot.objects.filter(state=State.STOPPED, stopped_at__gt=database_now() - CLEARED)
    return lately.exists()
