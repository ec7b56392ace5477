"""Release, expiry and renewal of an allocation, one conditional transaction each.

Called by garbage collection, the steps of a release, REST and the watches. Invariants: devices come back in the
transaction that ends the allocation, which is announced; each move writes one event.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from allocations.choices import LIVE, State
from allocations.ledger.transitions import MOVED, NOT_STUCK, Moved, move, record_moves
from allocations.models import Allocation
from audit.choices import EventKind
from audit.queue_wake import wake_queues
from audit.services import record_many
from storage.columns import identity
from storage.cursors import hot_cursor, moment
from storage.transactions import atomic_retry


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
    """Reserved or bound → releasing: devices count as used until the leases are gone. False when it moved elsewhere.

    `bind_attempt`: only if no other attempt took the reservation up. `unchanged_since`: only with this `changed_at`, so
    not if it was renewed.
    """
    moved = move(
        [allocation_id],
        sources,
        State.RELEASING,
        now=now,
        actor=actor,
        message=lambda one: f"{one.label} gives its devices back: {reason}",
        columns={"outcome": outcome.value, "reason": reason[:300], "releasing_at": now},
        bind_attempt=bind_attempt,
        unchanged_since=unchanged_since,
    )
    return bool(record_moves(moved))


@atomic_retry
def finish_release(*, allocation_id: uuid.UUID, outcome: State, now: datetime, actor: str) -> bool:
    """Releasing → released or failed: leases are gone, capacity comes back. False when somebody else finished it."""
    moved = move(
        [allocation_id],
        (State.RELEASING,),
        outcome,
        now=now,
        actor=actor,
        message=lambda one: f"{one.label} returned {_devices(one.returned)} of {one.node}",
        columns={"ended_at": now},
    )
    return bool(record_moves(moved))


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

    After `failed` the node ranks last for the pod for a while. False when it moved on, or when a newer filter prolonged
    it (`changed_at` is no longer `unchanged_since`).
    """
    moved = move(
        [allocation_id],
        (State.HELD,),
        outcome,
        now=now,
        actor=actor,
        message=lambda one: f"{one.label} lost its hold on {one.node}: {reason}",
        columns={"ended_at": now, "reason": reason[:300]},
        unchanged_since=unchanged_since,
    )
    return bool(record_moves(moved))


@atomic_retry
def note_evicted(*, allocation_id: uuid.UUID, reason: str, now: datetime, actor: str) -> bool:
    """Note that the holder's pod was asked to go, so that queues count on what it holds. False when it was before."""
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET leaving_at = %s "  # noqa: S608 - constants
            f"WHERE id = %s AND leaving_at IS NULL RETURNING {MOVED}",
            [moment(now), identity(allocation_id)],
        )
        row = cursor.fetchone()
    if row is None:
        return False
    one = Moved(0, *row)
    message = f"eviction of {one.label} was requested: {reason}"
    record_many([one.event(EventKind.ALLOCATION_EVICTED, message, allocation_id, now=now, actor=actor)])
    return True


@atomic_retry
def note_leaving(pod_uids: Collection[str], *, now: datetime) -> int:
    """Note that these pods are being deleted, so that queues count on what they hold; how many were not noted yet."""
    staying = Allocation.objects.filter(pod_uid__in=pod_uids, state__in=LIVE, leaving_at__isnull=True)
    noted = staying.update(leaving_at=now)
    if noted:
        wake_queues()
    return noted


@atomic_retry
def renew(*, allocation_id: uuid.UUID, expires_at: datetime, ttl_seconds: int, now: datetime, actor: str) -> bool:
    """Set a new end of a bound allocation. False when it is no longer bound."""
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET expires_at = %s, ttl_seconds = %s, "  # noqa: S608 - constants
            f"changed_at = %s, {NOT_STUCK} WHERE id = %s AND state = 'bound' RETURNING {MOVED}",
            [moment(expires_at), ttl_seconds, moment(now), identity(allocation_id)],
        )
        row = cursor.fetchone()
    if row is None:
        return False
    renewed = Moved(0, *row)
    message = f"{renewed.label} keeps its devices on {renewed.node} for {ttl_seconds} s from now"
    event = renewed.event(EventKind.CLAIM_RENEWED, message, allocation_id, now=now, actor=actor)
    record_many([msgspec.structs.replace(event, data={"expires_at": expires_at.isoformat()})])
    return True


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
