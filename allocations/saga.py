"""bind as a saga: reserved → leases → Binding → bound, each step idempotent, undone in reverse.

Called by the extender's bind, by REST claims (which have no Binding), and by collection, which goes on with what a bind has left. Kept true:
nothing goes outside inside a database transaction. Every attempt at a reservation has a number of its own (`ledger.take_up`); one that was
overtaken sends nothing, and undoes nothing, any more. A Binding whose answer was lost, in this attempt or in one before it, is sent again
until its outcome is known (`allocations.bindings`), never undone on a guess; the devices count as used until then. A process killed between
any two steps leaves a row that collection finishes or undoes. A Lease that comes late is one too many, which reconciling takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from access.transactions import connection_let_go
from allocations import ledger
from allocations.bindings import (
    BindAttempt,
    BindFailed,
    OutcomeOpen,
    give_up,
    read_pod,
    send_binding,
    wants_of,
)
from allocations.choices import State
from allocations.errors import MovedOn, Overtaken
from allocations.leases.port import LeaseTaken
from allocations.ledger import Live
from allocations.ledger.binding import FIRST_ATTEMPT, SCHEDULER
from allocations.outside import Outside
from audit.clock import database_now
from kube.errors import KubeError, PermanentKubeError, TemporaryKubeError

log = structlog.get_logger(__name__)

BIND_DEADLINE = timedelta(seconds=20)
"""No attempt sends a Binding later than this after it began."""
COLLECTING_DEADLINE = timedelta(seconds=1)
"""Collection sends a Binding once, or for so long where it is refused for the moment, and again at a later turn.

Counted from the first sending: an API server that takes longer than this for the leases would else never be sent a Binding."""
COLLECTOR = "collector"


def step_reserve(attempt: BindAttempt) -> None:
    """Held → reserved. A reservation that an earlier attempt left is taken up where it stands. Raises MovedOn."""
    live = attempt.live
    if live.state is State.RESERVED:
        waits_from = None if attempt.actor == COLLECTOR else attempt.now  # for a bind to be through, collection waits
        number = ledger.take_up(allocation_id=live.id, attempt=live.bind_attempt, now=waits_from)
        if number is None:
            raise Overtaken
        attempt.resumed = True
        attempt.live = live.taken_up(number)
    elif ledger.reserve(allocation_id=live.id, now=attempt.now, actor=attempt.actor):
        attempt.live = live.taken_up(FIRST_ATTEMPT)
    else:
        raise MovedOn("the hold ended meanwhile")


def step_read(attempt: BindAttempt) -> None:
    """What an earlier attempt has left of the pod: bound by it, say. Raises BindFailed, OutcomeOpen."""
    if attempt.cluster is not None:
        connection_let_go()  # for the API server's answers, here and in the next steps, binds wait by the dozen
        if attempt.resumed:
            read_pod(attempt, attempt.cluster)


def step_lease(attempt: BindAttempt) -> None:
    """One lease a device. Raises LeaseTaken, KubeError, and OutcomeOpen where an attempt before this one may have bound the pod."""
    if attempt.bound:
        return  # reconciling sees to the leases of pods that run
    try:
        attempt.outside.leases.take(attempt.wants, attempt.live.holder.identity)
    except (LeaseTaken, PermanentKubeError) as error:
        if attempt.cluster is None or not attempt.resumed:
            raise
        try:
            give_up(attempt, attempt.cluster, str(error), unknown=True)
        except BindFailed as failed:
            raise error from failed
        log.warning("bind.bound_before", pod=attempt.live.holder.label, lease=str(error))


def step_bind(attempt: BindAttempt) -> None:
    """The Binding with the annotations; nothing to do without a cluster. Raises BindFailed, OutcomeOpen, MovedOn."""
    if attempt.cluster is not None and not attempt.bound:
        if attempt.actor == COLLECTOR:  # however long the steps before this one took
            attempt.deadline = time.monotonic() + COLLECTING_DEADLINE.total_seconds()
        send_binding(attempt, attempt.cluster)


def step_confirm(attempt: BindAttempt) -> None:
    """Reserved → bound. Raises MovedOn."""
    now = attempt.now
    ttl = attempt.live.request.ttl_seconds
    expires = now + timedelta(seconds=ttl) if ttl else None
    if not ledger.bound(allocation_id=attempt.live.id, now=now, expires_at=expires, actor=attempt.actor):
        raise MovedOn("the reservation was settled meanwhile")


BIND_STEPS: tuple[Callable[[BindAttempt], None], ...] = (step_reserve, step_read, step_lease, step_bind, step_confirm)


def carry_out(live: Live, outside: Outside, *, now: datetime, collecting: bool = False) -> None:
    """Run the steps for a held (or reserved) allocation; undo what was done when one fails for good. `now` by the database's clock.

    `collecting`: for collection, which has others to see to. Raises BindFailed, OutcomeOpen, MovedOn, and LeaseTaken (undone as well)
    when a stranger has a device.
    """
    began = time.monotonic()
    deadline = began + BIND_DEADLINE.total_seconds()
    actor = COLLECTOR if collecting else SCHEDULER
    attempt = BindAttempt(live, outside, began_at=now, began=began, deadline=deadline, actor=actor)
    try:
        for step in BIND_STEPS:
            step(attempt)
    except BindFailed as failed:
        undo(attempt.live, outside, str(failed), State.FAILED, actor=actor)
        raise
    except LeaseTaken as taken:
        undo(attempt.live, outside, f"{taken.want.name} is held by somebody else", State.RELEASED, actor=actor)
        raise
    except TemporaryKubeError as error:
        raise OutcomeOpen(f"the API server does not answer: {error}") from error
    except KubeError as error:
        undo(attempt.live, outside, f"the API server refused: {error}", State.FAILED, actor=actor)
        raise BindFailed(f"the API server refused: {error}") from error


def undo(live: Live, outside: Outside, reason: str, outcome: State, *, actor: str) -> bool:
    """Reserved → releasing → ended. True when the devices are back; False when it is no longer this attempt's, or collection has to go on."""
    begun = ledger.begin_release(
        allocation_id=live.id,
        sources=(State.RESERVED,),
        outcome=outcome,
        reason=reason,
        now=database_now(),
        actor=actor,
        bind_attempt=live.bind_attempt,
    )
    return begun and finish(live, outside, outcome, actor=actor)


def finish(live: Live, outside: Outside, outcome: State, *, actor: str) -> bool:
    """Drop the leases of a releasing allocation, then end it. False: the API server is away, try again later."""
    try:
        outside.leases.drop(wants_of(live), live.holder.identity)
    except KubeError as error:
        log.warning("release.leases_left", allocation=str(live.id), error=str(error))
        return False
    return ledger.finish_release(allocation_id=live.id, outcome=outcome, now=database_now(), actor=actor)
