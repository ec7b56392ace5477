"""`hold`: the first verb. A decision becomes devices taken for a short while, so that the next pod sees them.

Called by the extender's filter (and by bind and REST claims, which go on at once). Kept true: one
transaction; a pod's earlier hold goes in the same transaction that makes the new one.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError

from access.transactions import atomic_retry
from allocations.attempts import UNKNOWN, Attempt
from allocations.engine.decision import Decision, Grant
from allocations.errors import MovedOn
from allocations.ledger.capacity import give_back
from allocations.ledger.holder import Holder
from allocations.ledger.keeping import Taker
from allocations.ledger.own import Live
from allocations.ledger.rows import AllocationRow, meaning_of, write_taken
from allocations.ledger.sql import identity, moment
from audit.announce import announce
from audit.choices import Kind
from audit.cursors import hot_cursor
from audit.happenings import Happening
from claims.dialects.request import DeviceRequest
from nodes.revisions import next_stamp

PROLONGED_UP_TO = 3
"""Times its length that a short hold lasts in all, however often its pod is filtered again: a node on which the pod is
never bound must not catch it for ever, and not every failed attempt can be seen from outside. A long hold is not
prolonged past its length, which is what kube-scheduler's own time-out of a bind allows."""


REPLACED = "replaced by a newer filter"

EXPLAINED_UP_TO = 256
"""Candidates up to which a success keeps, and tells, why others lost; past it that is left to explain."""


def hold(
    *,
    holder: Holder,
    request: DeviceRequest,
    decision: Decision,
    claim_id: int | None,
    previous: Live | None,
    now: datetime,
    hold_seconds: int,
    priority: int | None = None,
    rank: int | None = None,
    confined: bool = True,
    actor: str = "scheduler",
    attempt: Attempt = UNKNOWN,
) -> uuid.UUID:
    """Take the devices of `decision` for `holder`; returns the allocation's id.

    `previous` is the pod's own hold as it was read before planning: the same devices for the same request prolong it
    (up to `PROLONGED_UP_TO`), anything else replaces it. `priority`: the pod's, None where preemption
    cannot evict the holder. `rank`: the priority by which promises to preemptors are kept from it, None below every pod.
    `confined`: the pod's containers carry our reference (CLAIM-7). `attempt`: the attempt of the scheduler that the hold is for. Raises
    LostRace when a device is no longer free, or promised to another, MovedOn when `previous` changed meanwhile, PodHasOne
    when another attempt of the pod was quicker.
    """
    request = decision.served(request)
    until = now + timedelta(seconds=hold_seconds)
    if previous is not None and _is_same(previous, request, decision, claim_id):
        return _prolong(previous.id, min(until, _longest(previous, hold_seconds)), now, attempt)
    allocation_id = uuid.uuid4()
    try:
        _replace(
            allocation_id,
            Taker(holder.pod_uid, rank, now),
            holder,
            request,
            decision,
            claim_id,
            previous,
            now,
            until,
            priority,
            confined,
            actor,
            attempt,
        )
    except IntegrityError as error:
        known = meaning_of(error, holder, decision.grants)
        if known is None:
            raise
        raise known from error
    return allocation_id


def _is_same(previous: Live, request: DeviceRequest, decision: Decision, claim_id: int | None) -> bool:
    """Whether the hold stands for what was decided now; the claim may have been edited, or made again, since."""
    return (
        previous.node == decision.node
        and (previous.request, previous.claim_id) == (request, claim_id)
        and set(previous.grants) == set(decision.grants)
    )


def _longest(previous: Live, hold_seconds: int) -> datetime:
    """Up to when the hold may be prolonged; one that was long when its volumes were unbound keeps the time it has."""
    most = max(hold_seconds, PROLONGED_UP_TO * settings.GPUPLANE_HOLD_SECONDS)
    longest = previous.made_at + timedelta(seconds=most)
    return longest if previous.hold_until is None else max(longest, previous.hold_until)


_PROLONG = (
    "UPDATE allocations_allocation SET hold_until = %s, changed_at = %s{attempt} WHERE id = %s AND state = 'held'"
)
_SAME_ATTEMPT = _PROLONG.format(attempt="")
_NEXT_ATTEMPT = _PROLONG.format(
    attempt=", attempt_number = CASE WHEN attempt_version = %s THEN attempt_number + 1 ELSE 0 END, attempt_version = %s, "
    "failure_owed = (failure_seen = %s), failure_seen = %s, failure_credited = FALSE"
)
"""What the row said of the attempt before is compared with what it says from now on, in one statement."""


@atomic_retry
def _prolong(allocation_id: uuid.UUID, until: datetime, now: datetime, attempt: Attempt) -> uuid.UUID:
    with hot_cursor() as cursor:
        if attempt == UNKNOWN:
            cursor.execute(_SAME_ATTEMPT, [moment(until), moment(now), identity(allocation_id)])
        else:
            seen = [attempt.version, attempt.version, attempt.failure, attempt.failure]
            cursor.execute(_NEXT_ATTEMPT, [moment(until), moment(now), *seen, identity(allocation_id)])
        if cursor.rowcount != 1:
            raise MovedOn("the pod's hold changed meanwhile")
    return allocation_id


@atomic_retry
def _replace(
    allocation_id: uuid.UUID,
    taker: Taker,
    holder: Holder,
    request: DeviceRequest,
    decision: Decision,
    claim_id: int | None,
    previous: Live | None,
    now: datetime,
    until: datetime,
    priority: int | None,
    confined: bool,
    actor: str,
    attempt: Attempt,
) -> None:
    if previous is not None:
        _let_go(previous, now)
    told = Happening(
        kind=Kind.ALLOCATION_HELD,
        message=f"{holder.label} holds {devices_text(decision.grants)} on {decision.node}",
        actor=actor,
        at=now,
        namespace=holder.namespace,
        name=holder.pod_name,
        node=decision.node or "",
        claim=request.claim,
        allocation_id=allocation_id,
        data={"summary": decision.summary},
    )
    row = AllocationRow(
        id=allocation_id,
        holder=holder,
        request=request,
        node=decision.node or "",
        claim_id=claim_id,
        summary=decision.summary,
        explanation=decision.counts() if len(decision.candidates) <= EXPLAINED_UP_TO else {},
        actor=actor,
        now=now,
        until=until,
        priority=priority,
        confined=confined,
        attempt=attempt,
    )
    write_taken(row, decision.grants, told, taker=taker)


def _let_go(previous: Live, now: datetime) -> None:
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET state = 'released', reason = %s, ended_at = %s, changed_at = %s "
            "WHERE id = %s AND state = 'held'",
            [REPLACED, moment(now), moment(now), identity(previous.id)],
        )
        if cursor.rowcount != 1:
            raise MovedOn("the pod's hold changed meanwhile")
        give_back(cursor, previous.id, next_stamp())
    announce(node=previous.node)


def devices_text(grants: tuple[Grant, ...]) -> str:
    """`gpu 0,1 and rdma 0`, for people."""
    by_type: dict[str, list[int]] = {}
    for grant in grants:
        by_type.setdefault(grant.type, []).append(grant.minor)
    return " and ".join(f"{name} {','.join(map(str, sorted(minors)))}" for name, minors in by_type.items())
