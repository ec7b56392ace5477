"""`adopt`: write the row of a pod that already runs, so that nothing is given twice after an install or a loss.

Called by reconciling with the devices that the pod runs with. Invariants: only pods with `spec.nodeName` are adopted;
devices that others hold are a conflict, which is reported and never overwritten.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from allocations.choices import State
from allocations.engine.decision import Grant
from allocations.ledger.hold import devices_text
from allocations.ledger.holder import Terms
from allocations.ledger.rows import AllocationRow, constraint_errors, write_taken
from audit.choices import EventKind
from storage.transactions import atomic_retry


def adopt(
    terms: Terms, *, node: str, grants: Sequence[Grant], now: datetime, bound_at: datetime | None = None
) -> uuid.UUID:
    """Write a bound allocation for a running pod. Raises LostRace (others hold the devices) or PodHasOne."""
    ttl = terms.request.ttl_seconds
    since = bound_at or now
    row = AllocationRow(
        id=uuid.uuid4(),
        state=State.BOUND,
        terms=terms,
        node=node,
        summary="adopted while running",
        now=now,
        bound_at=since,
        expires_at=since + timedelta(seconds=ttl) if ttl else None,
    )
    message = f"{terms.holder.label} runs with {devices_text(grants)} of {node}: adopted"
    with constraint_errors(terms.holder, grants):
        atomic_retry(write_taken)(row, grants, [row.event(EventKind.ALLOCATION_ADOPTED, message)], taker=None)
    return row.id
