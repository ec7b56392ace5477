"""`reserve`, `take_up`, `current`, `bound` and `note_ended`: the verbs of a bind, for one allocation or for many in one
transaction.

Called by the steps of a bind. Invariants: each is one conditional move and one event an allocation, committed when the
call returns. A commit costs the same for one row as for thirty. The attempts at a reservation are numbered; the highest
number is that of whoever took it up last.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from allocations.choices import State
from allocations.ledger.reads import Live, lives_of, read_held
from allocations.ledger.transitions import LiveMove, move_live, reserving_held
from allocations.models import Allocation
from storage.clock import RunningClock
from storage.columns import identity, read_identity
from storage.cursors import Query, Statement, marks, moment, on_postgresql, run_together
from storage.transactions import atomic_retry, one_trip_retry

SCHEDULER = "scheduler"
FIRST_ATTEMPT = 1
RESERVED = "{label} reserved its devices on {node}"


def reserve_held(
    nodes: Mapping[str, str], *, read_clock: Callable[[], datetime]
) -> tuple[dict[str, Live], RunningClock]:
    """Held → reserved for those of these pods that hold usable devices on their node, by pod UID; and the database's
    clock as it was then.

    `nodes`: pod UID → the node that it is to be bound to. On PostgreSQL it is one round trip, whose statement reads the
    clock itself. `read_clock`: reads it elsewhere, and where nothing was reserved.
    """
    if on_postgresql():
        found, clock = _reserve_held_at_once(nodes)
        return found, clock or RunningClock(read_clock())
    clock = RunningClock(read_clock())
    return _reserve_held(nodes, clock.now), clock


@atomic_retry
def _reserve_held(nodes: Mapping[str, str], now: datetime) -> dict[str, Live]:
    held = read_held(list(nodes))
    found = {uid: live for uid, live in held.items() if live.node == nodes[uid] and live.usable}
    moved = move_live([_reserving([live.id for live in found.values()], now)], now=now, actor=SCHEDULER)
    return {uid: live.taken_up(FIRST_ATTEMPT) for uid, live in found.items() if live.id in moved}


@one_trip_retry
def _reserve_held_at_once(nodes: Mapping[str, str]) -> tuple[dict[str, Live], RunningClock | None]:
    began = time.monotonic()  # before the database's clock is read, so that no deadline is later than it thinks
    (rows,) = run_together([reserving_held(nodes, attempt=FIRST_ATTEMPT, message=RESERVED, actor=SCHEDULER)])
    found = {uid: live.taken_up(FIRST_ATTEMPT) for uid, live in lives_of([row[:-1] for row in rows]).items()}
    return found, RunningClock(rows[0][-1].astimezone(UTC), began) if rows else None


@one_trip_retry
def reserve(allocation_ids: Sequence[uuid.UUID], *, now: datetime, actor: str = SCHEDULER) -> set[uuid.UUID]:
    """Held → reserved, by `FIRST_ATTEMPT`; the ids of those that moved."""
    return move_live([_reserving(allocation_ids, now)], now=now, actor=actor)


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
    return all_bound({expires_at: allocation_ids}, now=now, actor=actor, ended=ended)


@one_trip_retry
def all_bound(
    ends: Mapping[datetime | None, Sequence[uuid.UUID]], *, now: datetime, actor: str = SCHEDULER, ended: bool = False
) -> set[uuid.UUID]:
    """The same for allocations by when they expire, None for never, in one transaction."""
    return move_live(
        [
            LiveMove(
                allocation_ids,
                State.RESERVED,
                State.BOUND,
                "{label} is bound to {node}",
                {"bound_at": now, "expires_at": end},
                outcome=State.RELEASED.value if ended else "",
            )
            for end, allocation_ids in ends.items()
        ],
        now=now,
        actor=actor,
    )


@one_trip_retry
def note_ended(*, allocation_id: uuid.UUID, reason: str) -> bool:
    """Note at a reservation that its pod has ended, so that whoever confirms the bind releases it. False when it is no
    longer reserved.
    """
    noting = Statement(
        "UPDATE allocations_allocation SET outcome = 'released', reason = %s WHERE id = %s AND state = 'reserved'",
        [reason[:300], identity(allocation_id)],
    )
    return _is_written(noting)


def noted_ends(allocation_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Why the pods of these allocations have ended, as `note_ended` has written it."""
    return dict(Allocation.objects.filter(pk__in=allocation_ids).values_list("id", "reason"))


@one_trip_retry
def take_up(*, allocation_id: uuid.UUID, attempt: int, now: datetime | None) -> int | None:
    """Start a new attempt at a reservation; its number, None when it moved on, or another attempt was started.

    `attempt`: the number as it was read. The attempt before finds out before sending (`current`). `now`: collection
    leaves the reservation alone for a while from then on; None: for no longer than before.
    """
    taking_up = Statement(
        "UPDATE allocations_allocation SET bind_attempt = bind_attempt + 1, reserved_at = COALESCE(%s, reserved_at)"
        " WHERE id = %s AND state = 'reserved' AND bind_attempt = %s",
        [moment(now), identity(allocation_id), attempt],
    )
    return attempt + 1 if _is_written(taking_up) else None


def _is_written(statement: Statement) -> bool:
    """Whether it changed exactly one row."""
    ((written,),) = run_together([[statement]])
    changed: bool = written.rows == 1
    return changed


def current(attempts: Mapping[uuid.UUID, int]) -> set[uuid.UUID]:
    """Those of these reservations (allocation → attempt) whose attempt was not overtaken; one query."""
    reading = Query(
        "SELECT id, bind_attempt FROM allocations_allocation "  # noqa: S608 - marks
        f"WHERE id IN ({marks(attempts)}) AND state = 'reserved'",
        [identity(one) for one in attempts],
    )
    (rows,) = run_together([reading])
    found = {read_identity(raw): number for raw, number in rows}
    return {one for one, number in attempts.items() if found.get(one) == number}


def _reserving(allocation_ids: Sequence[uuid.UUID], now: datetime) -> LiveMove:
    columns = {"reserved_at": now, "hold_until": None, "bind_attempt": FIRST_ATTEMPT}
    return LiveMove(allocation_ids, State.HELD, State.RESERVED, RESERVED, columns)
