"""`resize`: change the amounts of a bound share in place.

Called by `allocations.scheduling.resizing`. Invariants: one transaction; the row is bound and unchanged since it was
read; a device that the share grows on has room, may be given still and is kept for nobody else, in the condition of
the UPDATE; devices, grants and the stored request change together.
"""

from __future__ import annotations

import uuid
from datetime import datetime

import msgspec

from allocations.engine.resize import Resized, Sizing
from allocations.errors import MovedOn
from allocations.ledger.capacity import check_taken, resizing
from allocations.ledger.device_reservations import Taker
from allocations.ledger.queue_fence import Fence, pass_fence
from allocations.ledger.transitions import MOVED, NOT_STUCK, Moved
from audit.choices import EventKind
from audit.requeue_notify import announce
from audit.services import record_many
from kube.quantities import format_bytes
from nodes.revisions import next_stamp
from storage.columns import document, identity
from storage.cursors import Statement, hot_cursor, moment, run_all
from storage.transactions import atomic_retry


@atomic_retry
def resize(
    *,
    allocation_id: uuid.UUID,
    seen: datetime,
    change: Resized,
    taker: Taker,
    actor: str,
    fence: Fence | None = None,
) -> None:
    """Write the new amounts. `seen`: the row's `changed_at` as it was read; `fence`: of the queues' decision.

    Raises MovedOn (the row changed, or the queues decided meanwhile), LostRace (a device has no room).
    """
    now = taker.now
    if fence is not None:
        pass_fence(fence)
    with hot_cursor() as cursor:
        cursor.execute(
            f"UPDATE allocations_allocation SET request = %s, changed_at = %s, {NOT_STUCK} "  # noqa: S608 - constants
            f"WHERE id = %s AND state = 'bound' AND changed_at = %s RETURNING {MOVED}",
            [document(change.request), moment(now), identity(allocation_id), moment(seen)],
        )
        row = cursor.fetchone()
    if row is None:
        raise MovedOn("the allocation changed meanwhile")
    revision = next_stamp()
    grants = [one.grant for one in change.sizings]
    check_taken(grants, run_all(resizing(change.sizings, revision, taker=taker)), revision)
    written = run_all([_regranting(allocation_id, one) for one in change.sizings]) if change.sizings else []
    if sum(one.rows for one in written) != len(grants):
        raise MovedOn("the allocation's devices changed meanwhile")
    resized = Moved(0, *row)
    message = f"{resized.label} was resized on {resized.node}: {_text(change)}"
    event = resized.event(EventKind.ALLOCATION_RESIZED, message, allocation_id, now=now, actor=actor)
    record_many([msgspec.structs.replace(event, data={"devices": [_data(one) for one in change.sizings]})])
    if any(one.core_added < 0 or one.memory_added < 0 for one in change.sizings):
        announce(node=resized.node)


def _regranting(allocation_id: uuid.UUID, one: Sizing) -> Statement:
    return Statement(
        "UPDATE allocations_allocationdevice SET core_percent = %s, memory_bytes = %s WHERE allocation_id = %s "
        "AND device_id = %s AND live = %s AND whole = %s AND core_percent = %s AND memory_bytes = %s",
        [
            one.core_percent,
            one.memory_bytes,
            identity(allocation_id),
            one.grant.device_id,
            True,
            False,
            one.grant.core_percent,
            one.grant.memory_bytes or 0,
        ],
    )


def _text(change: Resized) -> str:
    """`gpu 0 from 50 core and 8Gi to 60 core and 8Gi`, for people."""
    return (
        ", ".join(
            f"{one.grant.type} {one.grant.minor} from {_amounts(one.grant.core_percent, one.grant.memory_bytes or 0)}"
            f" to {_amounts(one.core_percent, one.memory_bytes)}"
            for one in change.sizings
        )
        or "the same amounts, asked for otherwise"
    )


def _amounts(core: int, memory: int) -> str:
    return f"{core} core and {format_bytes(memory)}"


def _data(one: Sizing) -> dict[str, object]:
    return {
        "uuid": one.grant.uuid,
        "core": [one.grant.core_percent, one.core_percent],
        "memory": [one.grant.memory_bytes or 0, one.memory_bytes],
    }
