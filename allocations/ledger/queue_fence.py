"""The fence of queue decisions: who may hold devices for workloads, decided on which state.

Called by the queueing loop and by REST claims that are in a queue. Invariants: of two workers only the one that raised
the fence last can hold anything; a decision that was made before another admission is refused, so no limit is passed
by two at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F

from allocations.errors import NewerDecision
from allocations.models import QueueFence
from storage import fencing
from storage.transactions import atomic_retry


@dataclass(slots=True)
class Fence:
    """`number`: a fencing number; `admissions`: how many there were when the decision was begun."""

    number: int
    admissions: int


@atomic_retry
def raise_fence() -> Fence:
    """A new number: every decision under an earlier one is refused from now on."""
    fencing.begin(QueueFence)
    return read_fence()


def read_fence() -> Fence:
    """The fence as it is, for a decision beside the loop."""
    row, _ = QueueFence.objects.get_or_create(pk=fencing.ONLY)
    return Fence(row.number, row.admissions)


def pass_fence(fence: Fence) -> None:
    """Count an admission in the current transaction. Raises NewerDecision when the decision is no longer the latest."""
    ours = QueueFence.objects.filter(pk=fencing.ONLY, number=fence.number, admissions=fence.admissions)
    if not ours.update(admissions=F("admissions") + 1):
        raise NewerDecision
