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
from allocations.errors import PodHasOne
from allocations.ledger.capacity import take
from allocations.ledger.hold import devices_text, insert_allocation, insert_grants
from allocations.ledger.holder import Holder
from allocations.ledger.sql import identity, moment
from audit.choices import Kind
from audit.services import record
from claims.dialects.request import DeviceRequest
from nodes.revisions import next_revision


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
        if "pod_uid" in str(error) or "allocation_live_once_a_pod" in str(error):
            raise PodHasOne(f"pod {holder.label} already has a live allocation") from error
        raise
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
    revision = next_revision()
    expires = bound_at + timedelta(seconds=request.ttl_seconds) if request.ttl_seconds else None
    with connection.cursor() as cursor:
        take(cursor, grants, revision, unusable_too=True)
        insert_allocation(
            cursor,
            allocation_id=allocation_id,
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
        insert_grants(cursor, allocation_id, grants)
        cursor.execute(
            "UPDATE allocations_allocation SET state = %s, bound_at = %s, expires_at = %s WHERE id = %s",
            [State.BOUND.value, moment(bound_at), moment(expires), identity(allocation_id)],
        )
    record(
        kind=Kind.ALLOCATION_ADOPTED,
        message=f"{holder.label} runs with {devices_text(grants)} of {node}: adopted",
        actor=actor,
        now=now,
        namespace=holder.namespace,
        name=holder.pod_name,
        node=node,
        claim=request.claim,
        allocation_id=allocation_id,
    )
