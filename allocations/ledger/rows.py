"""The rows of an allocation: what `hold` and `adopt` write, in one go with the devices taken and the event.

Called inside their transaction. Kept true: a device that is not free any more is a lost race, whichever statement or constraint
notices it; nothing is committed of an allocation that lacks one of its devices.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.db import IntegrityError

from allocations.attempts import UNKNOWN, Attempt
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.ledger.capacity import check_taken, taking
from allocations.ledger.holder import Holder
from allocations.ledger.keeping import Taker
from allocations.ledger.sql import document, identity, moment
from audit.cursors import Statement, on_postgresql, run_together
from audit.happenings import Happening
from audit.services import recording, tell_later
from claims.dialects.request import DeviceRequest
from nodes.revisions import next_stamp


class AllocationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A new allocation, in state held. `until` None: no mere hold. `priority` None: preemption cannot evict the holder."""

    id: uuid.UUID
    holder: Holder
    request: DeviceRequest
    node: str
    claim_id: int | None
    summary: str
    explanation: dict[str, int]
    actor: str
    now: datetime
    until: datetime | None
    priority: int | None
    confined: bool
    attempt: Attempt = UNKNOWN


_INSERT = """
INSERT INTO allocations_allocation
  (id, state, outcome, reason, namespace, pod_name, pod_uid, holder, node_id, claim_id, claim_name, dialect, request,
   summary, explanation, priority, confined, created_by, ttl_seconds, created_at, hold_until, changed_at,
   attempt_version, failure_seen)
SELECT %s, 'held', '', '', %s, %s, %s, %s, n.id, {claim}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s
FROM nodes_node n WHERE n.name = %s
"""
_CLAIM = "(SELECT c.id FROM claims_gpuclaim c WHERE c.id = %s{lock})"
"""The claim as it is now: deleted since the decision, it counts as deleted right after."""
_SQLITE_INSERT = _INSERT.format(claim=_CLAIM.format(lock=""))
_POSTGRESQL_INSERT = _INSERT.format(claim=_CLAIM.format(lock=" FOR KEY SHARE"))
_GRANT = "(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
_INSERT_GRANTS = (
    "INSERT INTO allocations_allocationdevice "
    "(allocation_id, device_id, uuid, type, minor, core_percent, memory_bytes, whole, live) VALUES {rows}"
)


def write_taken(row: AllocationRow, grants: Sequence[Grant], told: Happening, *, taker: Taker | None) -> None:
    """Take the devices (`taker`: see `taking`), and insert the allocation, its grants and the event.

    Raises LostRace when a device is not free, MovedOn when the node is gone, IntegrityError (see `meaning_of`); then the
    transaction has to be rolled back.
    """
    revision = next_stamp()
    take = taking(grants, revision, taker=taker)
    # apart from the rest: a take that fails must not wait behind the grants of whoever has the device, nor hide which it was
    check_taken(grants, run_together(take), revision)
    inserted, _, events = run_together([_allocation(row), granting(row.id, grants), recording([told])])
    if not inserted.rows:
        raise MovedOn("the node is gone")
    tell_later(events, [told])


def meaning_of(error: IntegrityError, holder: Holder, grants: Sequence[Grant]) -> PodHasOne | LostRace | None:
    """What a constraint says about an allocation that could not be inserted; None where it is a defect."""
    text = str(error)
    if "pod_uid" in text or "allocation_live_once_a_pod" in text:
        return PodHasOne(f"pod {holder.label} already has a live allocation")
    if "grant_whole_once" in text or text.endswith("failed: allocations_allocationdevice.device_id"):
        return LostRace(tuple(sorted(grant.device_id for grant in grants if grant.whole)))
    return None


def _allocation(row: AllocationRow) -> Statement:
    return Statement(
        _POSTGRESQL_INSERT if on_postgresql() else _SQLITE_INSERT,
        [
            identity(row.id),
            row.holder.namespace,
            row.holder.pod_name,
            row.holder.pod_uid,
            row.holder.identity,
            row.claim_id,
            row.request.claim,
            row.request.dialect.value,
            document(row.request),
            row.summary[:500],
            document(row.explanation),
            row.priority,
            row.confined,
            row.actor,
            row.request.ttl_seconds,
            moment(row.now),
            moment(row.until),
            moment(row.now),
            row.attempt.version,
            row.attempt.failure,
            row.node,
        ],
    )


def granting(allocation_id: uuid.UUID, grants: Sequence[Grant]) -> Statement:
    """The statement that writes one live grant a device."""
    values: list[object] = []
    for grant in grants:
        values += [
            identity(allocation_id),
            grant.device_id,
            grant.uuid,
            grant.type,
            grant.minor,
            grant.core_percent,
            grant.memory_bytes or 0,
            grant.whole,
            True,
        ]
    return Statement(_INSERT_GRANTS.format(rows=", ".join([_GRANT] * len(grants))), values)
