"""`adopt`: a pod that already runs gets its row, so that nothing is given twice after an install or a loss.

Called by reconciling with what a pod's annotations say. Kept true: only pods with `spec.nodeName`
are adopted; when the devices are in other hands the conflict is reported, never overwritten.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, connection

from access.transactions import atomic_retry
from allocations.choices import State
from allocations.engine.decision import Grant
from allocations.ledger.hold import devices_text
from allocations.ledger.holder import Holder
from allocations.ledger.rows import AllocationRow, meaning_of, write_taken
from allocations.ledger.sql import identity, moment
from audit.choices import Kind
from audit.happenings import Happening
from claims.dialects.request import DeviceRequest


def adopt(
    *,
    holder: Holder,
    node: str,
    grants: Sequence[Grant],
    request: DeviceRequest,
    claim_id: int | None,
    now: datetime,
    bound_at: datetime | None = None,
    priority: int | None = None,
    confined: bool = True,
    actor: str = "reconcile",
) -> uuid.UUID:
    """Write a bound allocation for a running pod. Raises LostRace (devices in other hands) or PodHasOne."""
    allocation_id = uuid.uuid4()
    try:
        _adopt(
            allocation_id,
            holder,
            node,
            tuple(grants),
            request,
            claim_id,
            now,
            bound_at or now,
            priority,
            confined,
            actor,
        )
    except IntegrityError as error:
        known = meaning_of(error, holder, grants)
        if known is None:
            raise
        raise known from error
    return allocation_id


@atomic_retry
def _adopt(
    allocation_id: uuid.UUID,
    holder: Holder,
    node: str,
    grants: tuple[Grant, ...],
    request: DeviceRequest,
    claim_id: int | None,
    now: datetime,
    bound_at: datetime,
    priority: int | None,
    confined: bool,
    actor: str,
) -> None:
    expires = bound_at + timedelta(seconds=request.ttl_seconds) if request.ttl_seconds else None
    told = Happening(
        kind=Kind.ALLOCATION_ADOPTED,
        message=f"{holder.label} runs with {devices_text(grants)} of {node}: adopted",
        actor=actor,
        at=now,
        namespace=holder.namespace,
        name=holder.pod_name,
        node=node,
        claim=request.claim,
        allocation_id=allocation_id,
    )
    row = AllocationRow(
        id=allocation_id,
        holder=holder,
        request=request,
        node=node,
        claim_id=claim_id,
        summary="adopted while running",
        explanation={},
        actor=actor,
        now=now,
        until=None,
        priority=priority,
        confined=confined,
    )
    write_taken(row, grants, told, taker=None)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET state = %s, bound_at = %s, expires_at = %s WHERE id = %s",
            [State.BOUND.value, moment(bound_at), moment(expires), identity(allocation_id)],
        )
