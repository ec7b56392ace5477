"""`reserve`, `take_up`, `current`, `bound` and `note_ended`: the verbs of a bind, for one allocation or for many in one
transaction.

Called by the steps of a bind. Invariants: each is one conditional move and one event an allocation, committed when the
call returns. A commit costs the same for one row as for thirty. The attempts at a reservation are numbered; the highest
number is that of whoever took it up last.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from allocations.choices import State
from allocations.ledger.reads import Live, read_held
from allocations.ledger.transitions import move, record_moves
from storage.columns import identity, read_identity
from storage.cursors import hot_cursor, moment
from storage.transactions import atomic_retry

SCHEDULER = "scheduler"
FIRST_ATTEMPT = 1


@atomic_retry
def reserve_held(nodes: Mapping[str, str], *, now: datetime) -> dict[str, Live]:
    """Held → reserved for those of these pods that hold usable devices on their node; by pod UID.

    `nodes`: pod UID → the node that it is to be bound to.
    """
    held = read_held(list(nodes))
    found = {uid: live for uid, live in held.items() if live.node == nodes[uid] and live.usable}
    moved = _reserve([live.id for live in found.values()], now, SCHEDULER)
    return {uid: live.taken_up(FIRST_ATTEMPT) for uid, live in found.items() if live.id in moved}


@atomic_retry
def reserve(allocation_ids: Sequence[uuid.UUID], *, now: datetime, actor: str = SCHEDULER) -> set[uuid.UUID]:
    """Held → reserved, by `FIRST_ATTEMPT`; the ids of those that moved."""
    return _reserve(allocation_ids, now, actor)


@atomic_retry
def bound(
    allocation_ids: Sequence[uuid.UUID],
    *,
    now: datetime,
    expires_at: datetime | None = None,
    actor: str = SCHEDULER,
    ended: bool = False,
) -> set[uuid.UUID]:
    """Reserved → bound, for those whose pod has not `ended` (`note_ended`), or those whose pod has; the ids of those
    that moved.
    """
    moved = move(
        allocation_ids,
        (State.RESERVED,),
        State.BOUND,
        now=now,
        actor=actor,
        message=lambda one: f"{one.label} is bound to {one.node}",
        columns={"bound_at": now, "expires_at": expires_at},
        outcome=State.RELEASED.value if ended else "",
    )
    return record_moves(moved)


@atomic_retry
def note_ended(*, allocation_id: uuid.UUID, reason: str) -> bool:
    """Note at a reservation that its pod has ended, so that whoever confirms the bind releases it. False when it is no
    longer reserved.
    """
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET outcome = 'released', reason = %s WHERE id = %s AND state = 'reserved'",
            [reason[:300], identity(allocation_id)],
        )
        noted: bool = cursor.rowcount == 1
    return noted


@atomic_retry
def take_up(*, allocation_id: uuid.UUID, attempt: int, now: datetime | None) -> int | None:
    """Start a new attempt at a reservation; its number, None when it moved on, or another attempt was started.

    `attempt`: the number as it was read. The attempt before finds out before sending (`current`). `now`: collection
    leaves the reservation alone for a while from then on; None: for no longer than before.
    """
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET bind_attempt = bind_attempt + 1, reserved_at = COALESCE(%s, reserved_at)"
            " WHERE id = %s AND state = 'reserved' AND bind_attempt = %s",
            [moment(now), identity(allocation_id), attempt],
        )
        return attempt + 1 if cursor.rowcount == 1 else None


def current(attempts: Mapping[uuid.UUID, int]) -> set[uuid.UUID]:
    """Those of these reservations (allocation → attempt) whose attempt was not overtaken; one query."""
    marks = ", ".join(["%s"] * len(attempts))
    with hot_cursor() as cursor:
        cursor.execute(
            "SELECT id, bind_attempt FROM allocations_allocation "  # noqa: S608 - marks
            f"WHERE id IN ({marks}) AND state = 'reserved'",
            [identity(one) for one in attempts],
        )
        found = {read_identity(raw): number for raw, number in cursor.fetchall()}
    return {one for one, number in attempts.items() if found.get(one) == number}


def _reserve(allocation_ids: Sequence[uuid.UUID], now: datetime, actor: str) -> set[uuid.UUID]:
    moved = move(
        allocation_ids,
        (State.HELD,),
        State.RESERVED,
        now=now,
        actor=actor,
        message=lambda one: f"{one.label} reserved its devices on {one.node}",
        columns={"reserved_at": now, "hold_until": None, "bind_attempt": FIRST_ATTEMPT},
    )
    return record_moves(moved)
