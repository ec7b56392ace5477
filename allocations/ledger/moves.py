"""`reserve`, `bind`, `release`: moving an allocation along its states, one conditional transaction each.

Called by the bind saga, garbage collection, REST and the watches. Kept true: every move names the
state it starts from and must change exactly one row, so two movers never both win; devices come back
in the same transaction that ends the allocation, which is announced; each move writes one event.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from access.transactions import atomic_retry
from allocations.choices import EDGES, State
from allocations.ledger.capacity import give_back
from allocations.ledger.sql import identity, moment
from audit.announce import announce
from audit.choices import Kind
from audit.cursors import hot_cursor
from audit.services import record
from nodes.revisions import next_revision

_KINDS = {
    State.RESERVED: Kind.ALLOCATION_RESERVED,
    State.BOUND: Kind.ALLOCATION_BOUND,
    State.RELEASING: Kind.ALLOCATION_RELEASING,
    State.RELEASED: Kind.ALLOCATION_RELEASED,
    State.FAILED: Kind.ALLOCATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class _Moved:
    """What an event tells about the row that moved."""

    namespace: str
    pod_name: str
    holder: str
    claim_name: str
    node: str

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.holder


def _move(
    cursor: Any,
    allocation_id: uuid.UUID,
    sources: Sequence[State],
    target: State,
    now: datetime,
    *,
    reserved_before: datetime | None = None,
    unchanged_since: datetime | None = None,
    **columns: Any,
) -> _Moved | None:
    """Set the state where it is one of `sources` (and `changed_at` still is `unchanged_since`); None when it was not."""
    for source in sources:
        if target not in EDGES[source]:
            raise ValueError(f"no move from {source} to {target}")
    sets = ", ".join(f"{column} = %s" for column in ("state", "changed_at", *columns))
    marks = ", ".join(["%s"] * len(sources))
    older = "" if reserved_before is None else "AND reserved_at < %s "
    same = "" if unchanged_since is None else "AND changed_at = %s "
    cursor.execute(
        f"UPDATE allocations_allocation SET {sets} WHERE id = %s AND state IN ({marks}) {older}{same}"  # noqa: S608 - column names from this module only
        "RETURNING namespace, pod_name, holder, claim_name, (SELECT name FROM nodes_node WHERE id = node_id)",
        [
            target.value,
            moment(now),
            *[moment(value) if isinstance(value, datetime) else value for value in columns.values()],
            identity(allocation_id),
            *[source.value for source in sources],
            *[moment(value) for value in (reserved_before, unchanged_since) if value is not None],
        ],
    )
    row = cursor.fetchone()
    return None if row is None else _Moved(*row)


def _tell(moved: _Moved, target: State, allocation_id: uuid.UUID, message: str, actor: str, now: datetime) -> None:
    record(
        kind=_KINDS[target],
        message=message,
        actor=actor,
        now=now,
        namespace=moved.namespace,
        name=moved.pod_name,
        node=moved.node,
        claim=moved.claim_name,
        allocation_id=allocation_id,
    )


@atomic_retry
def reserve(*, allocation_id: uuid.UUID, now: datetime, actor: str = "scheduler") -> bool:
    """Held → reserved: bind has begun. False when the hold is gone."""
    with hot_cursor() as cursor:
        moved = _move(cursor, allocation_id, (State.HELD,), State.RESERVED, now, reserved_at=now, hold_until=None)
    if moved is None:
        return False
    _tell(moved, State.RESERVED, allocation_id, f"{moved.label} reserved its devices on {moved.node}", actor, now)
    return True


def retake(*, allocation_id: uuid.UUID, now: datetime) -> bool:
    """Reserved stays reserved: a bind takes an earlier attempt up, so collection must wait anew. False when it moved on."""
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET reserved_at = %s WHERE id = %s AND state = 'reserved'",
            [moment(now), identity(allocation_id)],
        )
        return bool(cursor.rowcount == 1)


@atomic_retry
def bound(
    *, allocation_id: uuid.UUID, now: datetime, expires_at: datetime | None = None, actor: str = "scheduler"
) -> bool:
    """Reserved → bound: the pod runs there, or the REST client has its devices. False when it moved elsewhere."""
    with hot_cursor() as cursor:
        moved = _move(cursor, allocation_id, (State.RESERVED,), State.BOUND, now, bound_at=now, expires_at=expires_at)
    if moved is None:
        return False
    _tell(moved, State.BOUND, allocation_id, f"{moved.label} is bound to {moved.node}", actor, now)
    return True


@atomic_retry
def begin_release(
    *,
    allocation_id: uuid.UUID,
    sources: Sequence[State],
    outcome: State,
    reason: str,
    now: datetime,
    actor: str,
    reserved_before: datetime | None = None,
    unchanged_since: datetime | None = None,
) -> bool:
    """Reserved or bound → releasing: devices still count as used while the leases go. False when it moved elsewhere.

    `reserved_before`: only if no bind took the reservation up since. `unchanged_since`: only if `changed_at` still is
    that, so that nobody renewed it since.
    """
    with hot_cursor() as cursor:
        moved = _move(
            cursor,
            allocation_id,
            sources,
            State.RELEASING,
            now,
            reserved_before=reserved_before,
            unchanged_since=unchanged_since,
            outcome=outcome.value,
            reason=reason[:300],
            releasing_at=now,
        )
    if moved is None:
        return False
    _tell(moved, State.RELEASING, allocation_id, f"{moved.label} gives its devices back: {reason}", actor, now)
    return True


@atomic_retry
def finish_release(*, allocation_id: uuid.UUID, outcome: State, now: datetime, actor: str) -> bool:
    """Releasing → released or failed: leases are gone, capacity comes back. False when somebody else finished it."""
    revision = next_revision()
    with hot_cursor() as cursor:
        moved = _move(cursor, allocation_id, (State.RELEASING,), outcome, now, ended_at=now)
        if moved is None:
            return False
        count = give_back(cursor, allocation_id, revision)
    announce(node=moved.node)
    _tell(moved, outcome, allocation_id, f"{moved.label} returned {_devices(count)} of {moved.node}", actor, now)
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
    revision = next_revision()
    with hot_cursor() as cursor:
        moved = _move(
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
    _tell(moved, outcome, allocation_id, f"{moved.label} lost its hold on {moved.node}: {reason}", actor, now)
    return True


@atomic_retry
def renew(*, allocation_id: uuid.UUID, expires_at: datetime, ttl_seconds: int, now: datetime, actor: str) -> bool:
    """Set a new end of a bound allocation. False when it is no longer bound."""
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET expires_at = %s, ttl_seconds = %s, changed_at = %s "
            "WHERE id = %s AND state = 'bound' "
            "RETURNING namespace, pod_name, holder, claim_name, (SELECT name FROM nodes_node WHERE id = node_id)",
            [moment(expires_at), ttl_seconds, moment(now), identity(allocation_id)],
        )
        row = cursor.fetchone()
    if row is None:
        return False
    renewed = _Moved(*row)
    record(
        kind=Kind.CLAIM_RENEWED,
        message=f"{renewed.label} keeps its devices on {renewed.node} for {ttl_seconds} s from now",
        actor=actor,
        now=now,
        namespace=renewed.namespace,
        name=renewed.pod_name,
        node=renewed.node,
        claim=renewed.claim_name,
        allocation_id=allocation_id,
        data={"expires_at": expires_at.isoformat()},
    )
    return True


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
