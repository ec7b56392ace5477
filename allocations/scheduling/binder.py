"""Binding and releasing: the tables of steps, and the one way through them.

Called by the extender's bind, by REST claims (which have no Binding), by garbage collection, which goes on where a bind
ended, and by whoever releases. A thread takes one attempt through (`bind`, `release_now`, `finish`); on the event loop
many attempts run at once, and share the ledger's steps (`Binder`).

Invariants:
- No request leaves inside a database transaction.
- The attempts at a reservation are numbered; one that was overtaken sends and undoes nothing any more.
- A process killed between any two steps leaves a row that garbage collection finishes or undoes by the same tables. A
  Lease that comes late is an orphan, which reconciling deletes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

from allocations.backends import Backends, current_backends
from allocations.choices import State
from allocations.leases.port import LeaseTaken
from allocations.ledger import Live, read_live
from allocations.ledger.binding import SCHEDULER
from allocations.scheduling import bind_steps, release_steps
from allocations.scheduling.attempt import DONE, Attempt, FinalState, StepOutcome, StepResult
from allocations.scheduling.batcher import Batcher
from allocations.scheduling.reservation_pods import steps as reservation_steps
from storage.clock import RunningClock
from storage.transactions import release_connection

Ledger = Callable[[Sequence[Attempt]], list[StepOutcome]]
Request = Callable[[Attempt], Coroutine[Any, Any, StepOutcome]]


def _always(_: Attempt) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """Takes a list of attempts, and answers with one outcome for each.

    `ledger`: in a thread, with a database connection; `request`: a coroutine instead, where there is an API server.

    `needed`: whether the attempt takes the step. `company`: worth a short wait for other attempts to share it.
    """

    name: str
    ledger: Ledger | None = None
    request: Request | None = None
    needed: Callable[[Attempt], bool] = _always
    company: bool = False

    def is_request(self, attempt: Attempt) -> bool:
        """Whether the step is a request, as it is where there is an API server."""
        return self.request is not None and attempt.backends.cluster is not None

    async def send(self, attempts: Sequence[Attempt]) -> list[StepOutcome]:
        """Send the requests of these attempts at once; one outcome for each."""
        assert self.request is not None, self.name
        if len(attempts) == 1:
            return [await self.request(attempts[0])]
        return await asyncio.gather(*map(self.request, attempts))

    def write(self, attempts: Sequence[Attempt]) -> list[StepOutcome]:
        """Write these attempts to the ledger in one transaction; one outcome for each."""
        assert self.ledger is not None, self.name
        return self.ledger(attempts)


RESERVE: Final = Step("reserve", bind_steps.reserve, needed=lambda attempt: not attempt.reserved)
LOOK: Final = Step("look", request=bind_steps.look, needed=bind_steps.needs_look)
# of a pod that runs already, reconciling takes the leases
# of GPUs that the node's kubelet chooses
JOIN: Final = Step("join groups", reservation_steps.join, needed=reservation_steps.needed)
MAKE: Final = Step("make reservation pods", request=reservation_steps.make, needed=reservation_steps.wanted)
NOTE: Final = Step("note reservation pods", reservation_steps.note, needed=reservation_steps.wanted)
WAIT: Final = Step("wait for reservation pods", request=reservation_steps.wait, needed=reservation_steps.unready)
PLACE: Final = Step("place groups", reservation_steps.place, needed=reservation_steps.unready)
GIVE_WAY: Final = Step("drop leases of guesses", request=reservation_steps.give_way, needed=reservation_steps.has_left)
LEASE: Final = Step("lease", bind_steps.lease_rows, bind_steps.lease, needed=lambda attempt: not attempt.bound)
CHECK: Final = Step("check", bind_steps.check, needed=bind_steps.needs_check)
SEND: Final = Step("send", request=bind_steps.send, needed=bind_steps.needs_sending)
CONFIRM: Final = Step("confirm", bind_steps.confirm, company=True)
RESERVATION_STEPS: Final = (JOIN, MAKE, NOTE, WAIT, PLACE, GIVE_WAY)
BIND_STEPS: Final = (RESERVE, LOOK, *RESERVATION_STEPS, LEASE, CHECK, SEND, CONFIRM)

BEGIN: Final = Step("begin", release_steps.begin)
DROP: Final = Step("drop", release_steps.drop_rows, release_steps.drop)
FINISH: Final = Step("finish", release_steps.finish)
END_UNUSED: Final = Step("end groups", reservation_steps.end_unused, needed=reservation_steps.releasable)
DELETE: Final = Step("delete reservation pods", request=reservation_steps.delete, needed=reservation_steps.has_ended)
END: Final = Step("note groups gone", reservation_steps.end, needed=reservation_steps.has_ended)
RELEASE_STEPS: Final = (BEGIN, DROP, FINISH, END_UNUSED, DELETE, END)
FINISH_STEPS: Final = RELEASE_STEPS[1:]

Course = Generator[Step, StepOutcome, bool]
"""Yields each step and is sent its outcome; returns whether the attempt went through."""


def _bind(attempt: Attempt) -> Course:
    position = 0
    while position < len(BIND_STEPS):
        step = BIND_STEPS[position]
        outcome = (yield step) if step.needed(attempt) else DONE
        if step in RESERVATION_STEPS and outcome.result is StepResult.FAILED and outcome.error is not None:
            outcome = bind_steps.given_up(attempt, outcome.error)  # a Binding of an attempt before may be under way
        match outcome.result:
            case StepResult.DONE:
                position += 1
            case StepResult.AGAIN:
                position = BIND_STEPS.index(CHECK)
            case StepResult.WAIT_AGAIN:
                position = BIND_STEPS.index(WAIT)
            case StepResult.FAILED:
                attempt.ending = _ending(outcome)
                yield from _release(attempt)
        if outcome.error is not None:
            raise outcome.error
    if attempt.ending is not None:  # the pod has ended meanwhile
        yield from _release(attempt)
    return True


def _ending(outcome: StepOutcome) -> FinalState:
    if isinstance(outcome.error, LeaseTaken):  # says nothing against the node
        return FinalState(State.RELEASED, str(outcome.error))
    return FinalState(State.FAILED, str(outcome.error))


def _release(attempt: Attempt, steps: Sequence[Step] = RELEASE_STEPS) -> Course:
    for step in steps:
        outcome = (yield step) if step.needed(attempt) else DONE
        if outcome.result is not StepResult.DONE:
            return False
    return True


def bind(live: Live, backends: Backends, *, now: datetime, actor: str = SCHEDULER) -> None:
    """Bind a held or reserved allocation; undo it where it fails for good. `now` by the database's clock.

    Raises BindFailed, OutcomeOpen, MovedOn, and LeaseTaken (undone as well) when somebody else has a device's Lease.
    """
    _run(attempt := Attempt(live, backends, RunningClock(now), actor), _bind(attempt))


def undo(live: Live, backends: Backends, reason: str, *, now: datetime, actor: str) -> bool:
    """Reserved → failed, for a reservation of which nothing was sent. True when the devices are back."""
    attempt = Attempt(live, backends, RunningClock(now), actor, ending=FinalState(State.FAILED, reason))
    return _run(attempt, _release(attempt))


def release_now(*, allocation_id: uuid.UUID, reason: str, now: datetime, actor: str) -> bool:
    """Bound → released. True when the devices are back; False when it moved on, or is left to collection."""
    live = read_live(allocation_id)
    if live is None:
        return False
    ending = FinalState(State.RELEASED, reason)
    attempt = Attempt(live, current_backends(), RunningClock(now), actor, sources=(State.BOUND,), ending=ending)
    return _run(attempt, _release(attempt))


def finish(allocation_id: uuid.UUID, backends: Backends, outcome: State, *, now: datetime, actor: str) -> bool:
    """Releasing → ended. True when the devices are back; False when it moved on, or the API server is away."""
    live = read_live(allocation_id)
    if live is None:
        return False
    attempt = Attempt(live, backends, RunningClock(now), actor, ending=FinalState(outcome, ""))
    return _run(attempt, _release(attempt, FINISH_STEPS))


def _run(attempt: Attempt, course: Course) -> bool:
    try:
        step = next(course)
        while True:
            step = course.send(_done(step, attempt))
    except StopIteration as ended:
        through: bool = ended.value
        return through


def _done(step: Step, attempt: Attempt) -> StepOutcome:
    cluster = attempt.backends.cluster
    if cluster is not None and step.is_request(attempt):
        release_connection()  # binds wait for the API server by the dozen
        (outcome,) = cluster.run(step.send([attempt]))
    else:
        (outcome,) = step.write([attempt])
    return outcome


CROWDED: Final = 8
"""With so many binds under way a step with `company` waits `COMPANY_SECONDS` for others."""
COMPANY_SECONDS: Final = 0.1


class InThread(Protocol):
    """Runs a function in a thread with a database connection."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Run `function(*args)`."""


class Binder:
    """Binds on the running event loop. `in_thread` runs functions that use the database."""

    def __init__(self, in_thread: InThread, *, under_way: Callable[[], int]) -> None:
        """`under_way`: the number of binds under way."""
        self._under_way = under_way
        self._batchers = {
            step.name: Batcher(
                partial(in_thread, step.write), pause=self.company_seconds if step.company else lambda: 0.0
            )
            for step in (*BIND_STEPS, *RELEASE_STEPS)
            if step.ledger is not None
        }

    def company_seconds(self) -> float:
        """How long a step with `company` waits for others."""
        return COMPANY_SECONDS if self._under_way() >= CROWDED else 0.0

    async def bind(self, attempt: Attempt) -> None:
        """Bind as the function of this name does."""
        course = _bind(attempt)
        try:
            step = next(course)
            while True:
                if step.is_request(attempt):
                    (outcome,) = await step.send([attempt])
                else:
                    outcome = await self._batchers[step.name].do(attempt)
                step = course.send(outcome)
        except StopIteration:
            return
