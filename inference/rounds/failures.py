"""Which models are put off since their slots failed: read from the slots' rows, so a restart forgets nothing.

Invariants: a slot that failed by itself puts its model, revision and LoRA off for longer each time, and is forgotten
`FORGOTTEN` later, whenever it was planned; one that was ready for `STEADY` counts as the first of its kind; a change of
the model, or its deletion, forgets all.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db.models import Q

from inference.choices import HOLDING
from inference.models import Slot

BACK_OFF: Final = tuple(timedelta(seconds=seconds) for seconds in (5, 15, 60, 300))
"""After the first failure in a row, the second, …; the last for all further ones."""
FORGOTTEN: Final = timedelta(minutes=15)
STEADY: Final = timedelta(minutes=1)

Kind = tuple[str, int, str]
"""Name of the model, its revision, LoRA."""


class PutOff(NamedTuple):
    """`attempts`: slots that failed in a row; `until`: when the next may be planned."""

    attempts: int
    until: datetime
    reason: str

    def is_over(self, now: datetime) -> bool:
        """Whether the next may be planned."""
        return now >= self.until

    @property
    def text(self) -> str:
        """For people."""
        return f"slots of it failed {self.attempts} times in a row, the last so: {self.reason}"


def read_failures(now: datetime) -> dict[Kind, PutOff]:
    """What failed last, of each kind whose newest slot failed."""
    found: dict[Kind, PutOff] = {}
    newest: set[Kind] = set()
    lately = Q(planned_at__gt=now - 4 * FORGOTTEN) | Q(stopped_at__gt=now - FORGOTTEN) | Q(state__in=HOLDING)
    rows = Slot.objects.filter(lately, model__isnull=False).order_by("-planned_at", "-pk")
    columns = ("model_name", "model_revision", "lora", "failed_at", "ready_at", "own_failure", "attempt", "reason")
    for slot in rows.only(*columns, "state"):
        kind = slot.model_name, slot.model_revision, slot.lora
        if kind in newest:
            continue
        if slot.failed_at is None or not slot.own_failure:
            if slot.ready_at is not None:
                newest.add(kind)
            continue
        newest.add(kind)
        if now - slot.failed_at > FORGOTTEN:
            continue
        steady = slot.ready_at is not None and slot.failed_at - slot.ready_at >= STEADY
        attempts = 1 if steady else slot.attempt
        found[kind] = PutOff(attempts, slot.failed_at + BACK_OFF[min(attempts, len(BACK_OFF)) - 1], slot.reason)
    return found
