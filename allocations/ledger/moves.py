"""Release, expiry and renewal: moving an allocation on when it ends or lasts longer, one conditional transaction each.

Called by garbage collection, the bind saga's undoing, REST and the watches. Kept true: devices come back in the
same transaction that ends the allocation, which is announced; each move writes one event.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from access.transactions import atomic_retry
from allocations.choices import State
from allocations.ledger.capacity import give_back
from allocations.ledger.moving import NOT_STUCK, TOLD, Moved, happening, move, tell
from allocations.ledger.sql import identity, moment
from audit.announce import announce
from audit.choices import Kind
from audit.cursors import hot_cursor
from audit.services import record_many
from nodes.revisions import next_stamp


@atomic_retry
def begin_release(
    *,
    allocation_id: uuid.UUID,
    sources: Sequence[State],
    outcome: State,
    reason: str,
    now: datetime,
    actor: str,
    bind_attempt: int | None = None,
    unchanged_since: datetime | None = None,
) -> bool:
    """Reserved or bound → releasing: devices still count as used while the leases go. False when it moved elsewhere.

    `bind_attempt`: only if nobody took the reservation up since. `unchanged_since`: only if `changed_at` still is
    that, so that nobody renewed it since.
    """
    with hot_cursor() as cursor:
        moved = move(
            cursor,
            allocation_id,
            sources,
            State.RELEASING,
            now,
            bind_attempt=bind_attempt,
            unchanged_since=unchanged_since,
            outcome=outcome.value,
            reason=reason[:300],
            releasing_at=now,
        )
    if moved is None:
        return False
    tell(
        {allocation_id: moved}, State.RELEASING, lambda one: f"{one.label} gives its devices back: {reason}", actor, now
    )
    return True


@atomic_retry
def finish_release(*, allocation_id: uuid.UUID, outcome: State, now: datetime, actor: str) -> bool:
    """Releasing → released or failed: leases are gone, capacity comes back. False when somebody else finished it."""
    revision = next_stamp()
    with hot_cursor() as cursor:
        moved = move(cursor, allocation_id, (State.RELEASING,), outcome, now, ended_at=now)
        if moved is None:
            return False
        count = give_back(cursor, allocation_id, revision)
    announce(node=moved.node)
    tell(
        {allocation_id: moved}, outcome, lambda one: f"{one.label} returned {_devices(count)} of {one.node}", actor, now
    )
    return True


@atomic_retry
def drop_hold(
    *,
    allocation_id: uuid.UUID,
    outcome: State,
    reason: str,
    now: datetime,
    actor: str,
    unchanged_since: datetime | None = None,
) -> bool:
    """Held → released or failed: a hold has no leases, so its devices come back at once.

    `failed` makes the node rank last for the pod for a while; `released` does not. False when it moved on, or
    when its `changed_at` is no longer `unchanged_since`: a newer filter prolonged it.
    """
    revision = next_stamp()
    with hot_cursor() as cursor:
        moved = move(
            cursor,
            allocation_id,
            (State.HELD,),
            outcome,
            now,
            unchanged_since=unchanged_since,
            ended_at=now,
            reason=reason[:300],
        )
        if moved is None:
            return False
        give_back(cursor, allocation_id, revision)
    announce(node=moved.node)
    tell({allocation_id: moved}, outcome, lambda one: f"{one.label} lost its hold on {one.node}: {reason}", actor, now)
    return True


@atomic_retry
def renew(*, allocation_id: uuid.UUID, expires_at: datetime, ttl_seconds: int, now: datetime, actor: str) -> bool:
    """Set a new end of a bound allocation. False when it is no longer bound."""
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET expires_at = %s, ttl_seconds = %s, changed_at = %s, "  # noqa: S608 - constants
            f"{NOT_STUCK} WHERE id = %s AND state = 'bound' RETURNING {TOLD}",
            [moment(expires_at), ttl_seconds, moment(now), identity(allocation_id)],
        )
        row = cursor.fetchone()
    if row is None:
        return False
    renewed = Moved(*row)
    message = f"{renewed.label} keeps its devices on {renewed.node} for {ttl_seconds} s from now"
    data = {"expires_at": expires_at.isoformat()}
    record_many([happening(Kind.CLAIM_RENEWED, renewed, allocation_id, message, actor, now, data)])
    return True


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
