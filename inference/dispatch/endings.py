"""What is written when requests are over, or wait again, and which places are given back.

Used by `inference.dispatch.rounds` inside its transaction. Invariants: a place is given back once, with the move that
takes the request out of `running`; what is said of a request that is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from inference.choices import RequestState
from inference.dispatch import rows
from inference.dispatch.records import Ending, Retry, StepResult
from inference.models import Request, Slot
from storage.cursors import Statement, Written

Moment = Callable[[float], datetime]
"""A reading of the gateway's monotonic clock as a time of the database."""


def moments_before(now: datetime, monotonic: float) -> Moment:
    """For readings until `monotonic`, which was read at `now`."""
    return lambda at: now - timedelta(seconds=max(0.0, monotonic - at))


class Leaving:
    """Endings and requests that come back, of one round."""

    def __init__(self, steps: Mapping[int, Ending | Retry], moment: Moment, *, now: datetime) -> None:
        """`steps`: by their index among all steps of the round."""
        self._steps = steps
        self.back: list[Statement] = []
        """Gives their places back. To be run with their models locked, before `moves`."""
        self.moves: list[Statement] = []
        self._whose: list[int] = []
        over = {step.id for step in steps.values() if isinstance(step, Ending)}
        retries = {(step.id, step.slot) for step in steps.values() if isinstance(step, Retry) and step.id not in over}
        if steps:
            self.back.append(rows.giving_back(sorted(over), sorted(retries), now=now))
        for place, step in steps.items():
            if isinstance(step, Ending):
                self.moves += rows.ending(step.id, ended(step, moment))
                self._whose += [place, place]
            elif step.id not in over:
                tried = {slot: moment(at).timestamp() for slot, at in step.tried.items()} | {step.slot: now.timestamp()}
                self.moves.append(rows.waiting_again(step.id, step.slot, step.reason, tried))
                self._whose.append(place)

    def results(self, back: Written, moved: Sequence[Written]) -> tuple[dict[int, StepResult], set[str]]:
        """Index of a step → what became of its request; and the slots whose count of requests is wrong."""
        freed: set[str] = set()
        results = dict.fromkeys(self._steps, StepResult.OVER)
        for place, statement, one in zip(self._whose, self.moves, moved, strict=True):
            step = self._steps[place]
            if isinstance(step, Retry) and one.rows:
                results[place] = StepResult.WAITS
                freed.add(step.slot)
            elif statement.returning == "slot_id":
                freed.update(slot_id for slot_id in one.returned if slot_id)
        return results, freed - set(back.returned)


def ended(step: Ending, moment: Moment) -> rows.Ended:
    """Columns of a request that is over."""
    first = None if step.first_byte_at is None else moment(step.first_byte_at)
    return rows.Ended(
        state=step.state, reason=step.reason, tokens=step.tokens, first_byte_at=first, ended_at=moment(step.at)
    )


def recount(slot_id: str) -> None:
    """Set `active` to the number of the slot's running requests."""
    # `immediate_places` takes places without the model's lock
    Slot.objects.select_for_update().filter(pk=slot_id).first()
    running = Request.objects.filter(slot=slot_id, state=RequestState.RUNNING).count()
    Slot.objects.filter(pk=slot_id).update(active=running)
