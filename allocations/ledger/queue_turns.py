"""The fence of queue decisions: who may hold devices for workloads, decided on which state.

Called by the queueing loop and by REST claims that are in a queue. Invariants: of two workers only the one that began
its turn last can hold anything; a decision that was made before another admission is refused, so no limit is passed by
two at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F

from allocations.errors import MovedOn
from allocations.models import QueueTurn
from storage.transactions import atomic_retry

_ONLY = 1


@dataclass(slots=True)
class Fence:
    """`number`: of the turn; `admissions`: how many there were when the decision was begun."""

    number: int
    admissions: int


@atomic_retry
def begin_turn() -> Fence:
    """Begin a turn, which ends every other."""
    QueueTurn.objects.get_or_create(pk=_ONLY)
    QueueTurn.objects.filter(pk=_ONLY).update(number=F("number") + 1)
    return read_fence()


def read_fence() -> Fence:
    """The present turn and its admissions, for who decides beside the loop."""
    row, _ = QueueTurn.objects.get_or_create(pk=_ONLY)
    return Fence(row.number, row.admissions)


def pass_fence(fence: Fence) -> None:
    """Count an admission in the current transaction. Raises MovedOn when the decision is no longer the latest."""
    ours = QueueTurn.objects.filter(pk=_ONLY, number=fence.number, admissions=fence.admissions)
    if not ours.update(admissions=F("admissions") + 1):
        raise MovedOn("the queues were decided about by others meanwhile")
