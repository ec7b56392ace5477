"""`hold`: take the devices of a decision for a short while, so that the next pod sees them taken.

Called by placement. Invariants: one transaction; a pod's earlier hold ends in the transaction that makes the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db import connection

from allocations.attempts import UNKNOWN, Attempt
from allocations.choices import State
from allocations.engine.decision import Decision, Grant
from allocations.errors import MovedOn
from allocations.ledger.device_reservations import Taker
from allocations.ledger.holder import Terms
from allocations.ledger.queue_fence import Fence, pass_fence
from allocations.ledger.reads import Live
from allocations.ledger.rows import AllocationRow, constraint_errors, write_taken, write_taken_at_once
from allocations.ledger.transitions import move
from allocations.models import Allocation
from audit.choices import EventKind
from audit.events import NewEvent
from storage.columns import identity
from storage.cursors import Statement, moment, on_postgresql, run_together
from storage.transactions import atomic_retry, one_trip_retry

PROLONGED_UP_TO = 3
"""Times its length that a short hold lasts in all, however often its pod is filtered again: not every failed attempt
can be seen, and a node on which the pod is never bound must not keep it for ever. A long hold is not prolonged past its
length, which is what kube-scheduler's own time-out of a bind allows.
"""
REPLACED = "replaced by a newer filter"


def hold(terms: Terms, *, decision: Decision, previous: Live | None, now: datetime, hold_seconds: int) -> uuid.UUID:
    """Take the devices of `decision` for the holder; returns the allocation's id.

    `previous` is the pod's own hold as it was read before planning: the same devices for the same request prolong it
    (up to `PROLONGED_UP_TO`), anything else replaces it. Raises LostRace when a device is no longer free, or reserved
    for another, MovedOn when `previous` changed meanwhile, PodHasOne when another attempt of the pod was quicker.
    """
    terms = msgspec.structs.replace(terms, request=decision.served(terms.request))
    until = now + timedelta(seconds=hold_seconds)
    if previous is not None and _is_same(previous, terms, decision):
        return _prolong(previous.id, min(until, _longest(previous, hold_seconds)), now, terms.attempt)
    row = _row(terms, decision, now, until)
    with constraint_errors(terms.holder, decision.grants):
        if previous is not None or not _hold_at_once(row, decision):
            _replace(row, decision.grants, _event(row, decision), previous)
    return row.id


class NewHold(msgspec.Struct, frozen=True):
    """A hold for one pod of a workload, or for one claim over REST. `seconds`: how long it lasts."""

    terms: Terms
    decision: Decision
    seconds: int


@atomic_retry
def hold_all(holds: Sequence[NewHold], *, fence: Fence, now: datetime) -> list[uuid.UUID]:
    """Take the devices of all these decisions, or of none; the ids of the allocations, in the same order.

    Raises LostRace and PodHasOne as `hold` does, and MovedOn where `fence` does not let the decision pass; the caller
    counts one admission more in `fence` afterwards.
    """
    pass_fence(fence)
    made = []
    for one in holds:
        terms = msgspec.structs.replace(one.terms, request=one.decision.served(one.terms.request))
        row = _row(terms, one.decision, now, now + timedelta(seconds=one.seconds))
        with constraint_errors(terms.holder, one.decision.grants):
            _replace(row, one.decision.grants, _event(row, one.decision), None)
        made.append(row.id)
    return made


@atomic_retry
def extend_holds(allocation_ids: Sequence[uuid.UUID], *, until: datetime, now: datetime) -> int:
    """Let these holds last until then at least; how many there still are."""
    held = Allocation.objects.filter(pk__in=allocation_ids, state=State.HELD)
    return held.filter(hold_until__lt=until).update(hold_until=until, changed_at=now)


def _row(terms: Terms, decision: Decision, now: datetime, until: datetime) -> AllocationRow:
    return AllocationRow(
        id=uuid.uuid4(),
        state=State.HELD,
        terms=terms,
        node=decision.node or "",
        summary=decision.summary,
        explanation={} if decision.verdicts is None else decision.verdicts.counts(),
        now=now,
        until=until,
    )


def _event(row: AllocationRow, decision: Decision) -> NewEvent:
    message = f"{row.terms.holder.label} holds {devices_text(decision.grants)} on {decision.node}"
    return row.event(EventKind.ALLOCATION_HELD, message, {"summary": decision.summary})


def _is_same(previous: Live, terms: Terms, decision: Decision) -> bool:
    """Whether the hold is what was decided now; the claim may have been edited, or made again, since."""
    return (
        previous.node == decision.node
        and (previous.request, previous.claim_id) == (terms.request, terms.claim_id)
        and set(previous.grants) == set(decision.grants)
    )


def _longest(previous: Live, hold_seconds: int) -> datetime:
    """Until when the hold may be prolonged; one that was long while its volumes were unbound keeps its time."""
    most = max(hold_seconds, PROLONGED_UP_TO * settings.GPUPLANE_HOLD_SECONDS)
    longest = previous.made_at + timedelta(seconds=most)
    return longest if previous.hold_until is None else max(longest, previous.hold_until)


_PROLONG = (
    "UPDATE allocations_allocation SET hold_until = %s, changed_at = %s{attempt} WHERE id = %s AND state = 'held'"
)
_SAME_ATTEMPT = _PROLONG.format(attempt="")
_NEXT_ATTEMPT = _PROLONG.format(
    attempt=(
        ", attempt_number = CASE WHEN attempt_version = %s THEN attempt_number + 1 ELSE 0 END, attempt_version = %s, "
        "failure_owed = (failure_seen = %s), failure_seen = %s, failure_credited = FALSE"
    )
)
"""The columns of the attempt before are compared and replaced in one statement."""


@one_trip_retry
def _prolong(allocation_id: uuid.UUID, until: datetime, now: datetime, attempt: Attempt) -> uuid.UUID:
    statement, seen = _SAME_ATTEMPT, []
    if attempt != UNKNOWN:
        statement, seen = _NEXT_ATTEMPT, [attempt.version, attempt.version, attempt.failure, attempt.failure]
    values = [moment(until), moment(now), *seen, identity(allocation_id)]
    ((prolonged,),) = run_together([[Statement(statement, values)]])
    if prolonged.rows != 1:
        raise MovedOn("the pod's hold changed meanwhile")
    return allocation_id


def _hold_at_once(row: AllocationRow, decision: Decision) -> bool:
    """Hold by one statement, where PostgreSQL can; False: nothing was written."""
    if not on_postgresql() or connection.in_atomic_block:
        return False
    return _written_at_once(row, decision.grants, _event(row, decision))


@one_trip_retry
def _written_at_once(row: AllocationRow, grants: Sequence[Grant], event: NewEvent) -> bool:
    return write_taken_at_once(row, grants, event, taker=_taker(row))


def _taker(row: AllocationRow) -> Taker:
    return Taker(row.terms.holder.pod_uid, row.terms.rank, row.now)


@atomic_retry
def _replace(row: AllocationRow, grants: Sequence[Grant], event: NewEvent, previous: Live | None) -> None:
    events = [] if previous is None else _let_go(previous, row)
    write_taken(row, grants, [*events, event], taker=_taker(row))


def _let_go(previous: Live, row: AllocationRow) -> list[NewEvent]:
    """Held → released, for the row that takes its place; the event. Raises MovedOn."""
    ended = move(
        [previous.id],
        (State.HELD,),
        State.RELEASED,
        now=row.now,
        actor=row.terms.actor,
        message=lambda one: f"{one.label} lost its hold on {one.node}: {REPLACED}",
        columns={"ended_at": row.now, "reason": REPLACED},
    )
    if not ended:
        raise MovedOn("the pod's hold changed meanwhile")
    return [*ended.values()]


def devices_text(grants: Sequence[Grant]) -> str:
    """`gpu 0,1 and rdma 0`, for people."""
    by_type: dict[str, list[int]] = {}
    for grant in grants:
        by_type.setdefault(grant.type, []).append(grant.minor)
    return " and ".join(f"{name} {','.join(map(str, sorted(minors)))}" for name, minors in by_type.items())
