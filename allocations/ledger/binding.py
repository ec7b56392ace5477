"""`reserve`, `take_up`, `current` and `bound`: what every bind asks of the ledger, for one allocation or for many in one transaction.

Called by the bind saga, by the binds that come together, and by collection. Kept true: each is one conditional move and one event an
allocation, and is committed when the call returns. A commit costs the same for one row as for thirty. Each attempt at a reservation has
a number of its own, the highest is that of whoever took it up last.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from access.transactions import atomic_retry
from allocations.choices import State
from allocations.ledger.moving import Moved, move, move_many, tell
from allocations.ledger.own import Live, read_held
from allocations.ledger.sql import identity, moment, read_identity
from audit.cursors import hot_cursor

SCHEDULER = "scheduler"
FIRST_ATTEMPT = 1


@atomic_retry
def reserve_held(*, nodes: Mapping[str, str], now: datetime, fit: Callable[[Live], bool]) -> dict[str, Live]:
    """Held → reserved for all of these pods at once. `nodes`: pod UID → the node that it is to be bound to.

    By pod UID, those whose bind has begun: they hold devices on that node that can be given still, and `fit` takes them.
    All others are left as they are.
    """
    found = {
        uid: live
        for uid, live in read_held(list(nodes)).items()
        if live.node == nodes[uid] and live.usable and fit(live)
    }
    moved = _reserve([live.id for live in found.values()], now, SCHEDULER)
    return {uid: live.taken_up(FIRST_ATTEMPT) for uid, live in found.items() if live.id in moved}


@atomic_retry
def reserve(*, allocation_id: uuid.UUID, now: datetime, actor: str = SCHEDULER) -> bool:
    """Held → reserved: bind has begun, by `FIRST_ATTEMPT`. False when the hold is gone."""
    return allocation_id in _reserve([allocation_id], now, actor)


@atomic_retry
def bound_many(*, allocation_ids: Sequence[uuid.UUID], now: datetime, actor: str = SCHEDULER) -> set[uuid.UUID]:
    """Reserved → bound for all of them at once; those that were."""
    return _bound(allocation_ids, now, actor)


@atomic_retry
def bound(
    *, allocation_id: uuid.UUID, now: datetime, expires_at: datetime | None = None, actor: str = SCHEDULER
) -> bool:
    """Reserved → bound: the pod runs there, or the REST client has its devices. False when it moved elsewhere."""
    if expires_at is None:
        return allocation_id in _bound([allocation_id], now, actor)
    with hot_cursor() as cursor:
        moved = move(cursor, allocation_id, (State.RESERVED,), State.BOUND, now, bound_at=now, expires_at=expires_at)
    if moved is None:
        return False
    tell({allocation_id: moved}, State.BOUND, _is_bound, actor, now)
    return True


@atomic_retry
def take_up(*, allocation_id: uuid.UUID, attempt: int, now: datetime | None) -> int | None:
    """Reserved stays reserved, by a new attempt: its number. None when it moved on, or somebody else took it up.

    `attempt`: that of the reservation as it was read. Whoever had it finds out before sending (`current`). `now`: collection
    leaves it alone for a while from then on; None: for no longer than before.
    """
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET bind_attempt = bind_attempt + 1, reserved_at = COALESCE(%s, reserved_at) "
            "WHERE id = %s AND state = 'reserved' AND bind_attempt = %s",
            [moment(now), identity(allocation_id), attempt],
        )
        return attempt + 1 if cursor.rowcount == 1 else None


def current(attempts: Mapping[uuid.UUID, int]) -> set[uuid.UUID]:
    """Those of these reservations (allocation → attempt) that are still the attempt's own: one query."""
    marks = ", ".join(["%s"] * len(attempts))
    with hot_cursor() as cursor:
        cursor.execute(
            f"SELECT id, bind_attempt FROM allocations_allocation WHERE id IN ({marks}) AND state = 'reserved'",  # noqa: S608 - marks
            [identity(one) for one in attempts],
        )
        found = {read_identity(raw): number for raw, number in cursor.fetchall()}
    return {one for one, number in attempts.items() if found.get(one) == number}


def _reserve(allocation_ids: Sequence[uuid.UUID], now: datetime, actor: str) -> set[uuid.UUID]:
    with hot_cursor() as cursor:
        first = f", bind_attempt = {FIRST_ATTEMPT}"
        moved = move_many(cursor, allocation_ids, State.HELD, State.RESERVED, now, stamped="reserved_at", also=first)
    tell(moved, State.RESERVED, lambda one: f"{one.label} reserved its devices on {one.node}", actor, now)
    return set(moved)


def _bound(allocation_ids: Sequence[uuid.UUID], now: datetime, actor: str) -> set[uuid.UUID]:
    with hot_cursor() as cursor:
        moved = move_many(cursor, allocation_ids, State.RESERVED, State.BOUND, now, stamped="bound_at")
    tell(moved, State.BOUND, _is_bound, actor, now)
    return set(moved)


def _is_bound(moved: Moved) -> str:
    return f"{moved.label} is bound to {moved.node}"
