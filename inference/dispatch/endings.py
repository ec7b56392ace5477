"""What is written when requests are over, or wait again, and which places are given back.

Used by `inference.dispatch.rounds` inside its transaction. Invariants: a place is given back once, with the move that
takes the request out of `running`; what is said of a request that is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from inference.choices import RequestState
from inference.dispatch import rows
from inference.dispatch.records import Again, Ending, Standing
from inference.models import Request, Slot
from storage.cursors import Statement, Written

Moment = Callable[[float], datetime]
"""A reading of the gateway's monotonic clock as a time of the database."""


class Leaving:
    """Endings and requests that come back, of one round."""

    def __init__(self, steps: Mapping[int, Ending | Again], moment: Moment, *, now: datetime) -> None:
        """`steps`: by their place among all."""
        self._steps = steps
        self.statements: list[Statement] = []
        """To be run together with their models locked: places are given back, then the requests are moved."""
        self._whose: list[int] = []
        if steps:
            over = [step.id for step in steps.values() if isinstance(step, Ending)]
            again = [(step.id, step.slot) for step in steps.values() if isinstance(step, Again)]
            self.statements.append(rows.giving_back(over, again, now=now))
        for place, step in steps.items():
            if isinstance(step, Ending):
                self.statements += rows.ending(step.id, ended(step, moment))
                self._whose += [place, place]
            else:
                tried = {slot: moment(at).timestamp() for slot, at in step.tried.items()} | {step.slot: now.timestamp()}
                self.statements.append(rows.waiting_again(step.id, step.slot, step.reason, tried))
                self._whose.append(place)

    def standings(self, written: Sequence[Written]) -> tuple[dict[int, Standing], set[str]]:
        """Place of a step → what became of its request; and the slots whose count of requests is wrong."""
        freed: set[str] = set()
        standings = dict.fromkeys(self._steps, Standing.OVER)
        back, *moved = written
        for place, statement, one in zip(self._whose, self.statements[1:], moved, strict=True):
            step = self._steps[place]
            if isinstance(step, Again) and one.rows:
                standings[place] = Standing.WAITS
                freed.add(step.slot)
            elif statement.returning == "slot_id":
                freed.update(slot_id for slot_id in one.returned if slot_id)
        return standings, freed - set(back.returned)


def ended(step: Ending, moment: Moment) -> rows.Ended:
    """Columns of a request that is over."""
    first = None if step.first_byte_at is None else moment(step.first_byte_at)
    return rows.Ended(
        state=step.state, reason=step.reason, tokens=step.tokens, first_byte_at=first, ended_at=moment(step.at)
    )


def recount(slot_id: str) -> None:
    """Set `active` to the number of the slot's running requests."""
    running = Request.objects.filter(slot=slot_id, state=RequestState.RUNNING).count()
    Slot.objects.filter(pk=slot_id).update(active=running)
