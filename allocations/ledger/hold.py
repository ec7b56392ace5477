"""`hold`: the first verb. A decision becomes devices taken for a short while, so that the next pod sees them.

Called by the extender's filter (and by bind and REST claims, which go on at once). Kept true: one
transaction; a pod's earlier hold goes in the same transaction that makes the new one.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError

from access.transactions import atomic_retry
from allocations.engine.decision import Decision, Grant
from allocations.errors import MovedOn, PodHasOne
from allocations.ledger.capacity import give_back, take
from allocations.ledger.holder import Holder
from allocations.ledger.own import Live
from allocations.ledger.sql import document, identity, moment
from audit.announce import announce
from audit.choices import Kind
from audit.cursors import hot_cursor, on_postgresql
from audit.services import record
from claims.dialects.request import DeviceRequest
from nodes.revisions import next_revision

PROLONGED_UP_TO = 3
"""Times its length that a hold lasts in all, however often its pod is filtered again: a node on which the pod is
never bound must not catch it for ever, and that PodScheduled turned False is seen only the first time."""


EXPLAINED_UP_TO = 256
"""Candidates up to which a success keeps, and tells, why others lost; past it that is left to explain."""


def hold(
    *,
    holder: Holder,
    request: DeviceRequest,
    decision: Decision,
    claim_id: int | None,
    previous: Live | None,
    now: datetime,
    hold_seconds: int,
    priority: int | None = None,
    confined: bool = True,
    actor: str = "scheduler",
) -> uuid.UUID:
    """Take the devices of `decision` for `holder`; returns the allocation's id.

    `previous` is the pod's own hold as it was read before planning: the same devices for the same request prolong it
    (up to `PROLONGED_UP_TO`), anything else replaces it. `priority`: the pod's, None where preemption
    cannot evict the holder. `confined`: the pod's containers carry our reference
    (CLAIM-7). Raises LostRace when a device is no longer free, MovedOn when `previous` changed meanwhile, PodHasOne
    when another attempt of the pod was quicker.
    """
    until = now + timedelta(seconds=hold_seconds)
    if previous is not None and _is_same(previous, request, decision, claim_id):
        longest = previous.made_at + timedelta(seconds=hold_seconds * PROLONGED_UP_TO)
        return _prolong(previous.id, min(until, longest), now)
    allocation_id = uuid.uuid4()
    try:
        _replace(allocation_id, holder, request, decision, claim_id, previous, now, until, priority, confined, actor)
    except IntegrityError as error:
        if "pod_uid" in str(error) or "allocation_live_once_a_pod" in str(error):
            raise PodHasOne(f"pod {holder.label} already has a live allocation") from error
        raise
    return allocation_id


def _is_same(previous: Live, request: DeviceRequest, decision: Decision, claim_id: int | None) -> bool:
    """Whether the hold stands for what was decided now; the claim may have been edited, or made again, since."""
    return (
        previous.node == decision.node
        and (previous.request, previous.claim_id) == (request, claim_id)
        and set(previous.grants) == set(decision.grants)
    )


@atomic_retry
def _prolong(allocation_id: uuid.UUID, until: datetime, now: datetime) -> uuid.UUID:
    with hot_cursor() as cursor:
        cursor.execute(
            "UPDATE allocations_allocation SET hold_until = %s, changed_at = %s WHERE id = %s AND state = 'held'",
            [moment(until), moment(now), identity(allocation_id)],
        )
        if cursor.rowcount != 1:
            raise MovedOn("the pod's hold changed meanwhile")
    return allocation_id


_INSERT = """
INSERT INTO allocations_allocation
  (id, state, outcome, reason, namespace, pod_name, pod_uid, holder, node_id, claim_id, claim_name, dialect, request,
   summary, explanation, priority, confined, created_by, ttl_seconds, created_at, hold_until, changed_at)
SELECT %s, 'held', '', '', %s, %s, %s, %s, n.id, {claim}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s
FROM nodes_node n WHERE n.name = %s
"""
_CLAIM = "(SELECT c.id FROM claims_gpuclaim c WHERE c.id = %s{lock})"
"""The claim as it is now: deleted since the decision, it counts as deleted right after."""
_SQLITE_INSERT = _INSERT.format(claim=_CLAIM.format(lock=""))
_POSTGRESQL_INSERT = _INSERT.format(claim=_CLAIM.format(lock=" FOR KEY SHARE"))
_INSERT_GRANT = (
    "INSERT INTO allocations_allocationdevice "
    "(allocation_id, device_id, uuid, type, minor, core_percent, memory_bytes, whole, live) VALUES "
)


@atomic_retry
def _replace(
    allocation_id: uuid.UUID,
    holder: Holder,
    request: DeviceRequest,
    decision: Decision,
    claim_id: int | None,
    previous: Live | None,
    now: datetime,
    until: datetime,
    priority: int | None,
    confined: bool,
    actor: str,
) -> None:
    revision = next_revision()
    with hot_cursor() as cursor:
        if previous is not None:
            cursor.execute(
                "UPDATE allocations_allocation SET state = 'released', reason = %s, ended_at = %s, changed_at = %s "
                "WHERE id = %s AND state = 'held'",
                ["replaced by a newer filter", moment(now), moment(now), identity(previous.id)],
            )
            if cursor.rowcount != 1:
                raise MovedOn("the pod's hold changed meanwhile")
            give_back(cursor, previous.id, revision)
            announce(node=previous.node)
        take(cursor, decision.grants, revision)
        insert_allocation(
            cursor,
            allocation_id=allocation_id,
            holder=holder,
            request=request,
            node=decision.node or "",
            claim_id=claim_id,
            summary=decision.summary,
            explanation=decision.counts() if len(decision.candidates) <= EXPLAINED_UP_TO else {},
            actor=actor,
            now=now,
            until=until,
            priority=priority,
            confined=confined,
        )
        insert_grants(cursor, allocation_id, decision.grants)
    record(
        kind=Kind.ALLOCATION_HELD,
        message=f"{holder.label} holds {devices_text(decision.grants)} on {decision.node}",
        actor=actor,
        now=now,
        namespace=holder.namespace,
        name=holder.pod_name,
        node=decision.node or "",
        claim=request.claim,
        allocation_id=allocation_id,
        data={"summary": decision.summary},
    )


def insert_allocation(
    cursor: Any,
    *,
    allocation_id: uuid.UUID,
    holder: Holder,
    request: DeviceRequest,
    node: str,
    claim_id: int | None,
    summary: str,
    explanation: dict[str, int],
    actor: str,
    now: datetime,
    until: datetime | None,
    priority: int | None = None,
    confined: bool = True,
) -> None:
    """Insert the row of an allocation in state held. Raises MovedOn when the node is gone."""
    cursor.execute(
        _POSTGRESQL_INSERT if on_postgresql() else _SQLITE_INSERT,
        [
            identity(allocation_id),
            holder.namespace,
            holder.pod_name,
            holder.pod_uid,
            holder.identity,
            claim_id,
            request.claim,
            request.dialect.value,
            document(request),
            summary[:500],
            document(explanation),
            priority,
            confined,
            actor,
            request.ttl_seconds,
            moment(now),
            moment(until),
            moment(now),
            node,
        ],
    )
    if cursor.rowcount != 1:
        raise MovedOn("the node is gone")


def insert_grants(cursor: Any, allocation_id: uuid.UUID, grants: tuple[Grant, ...]) -> None:
    """Insert one live grant a device."""
    parameters: list[object] = []
    for grant in grants:
        parameters += [
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
    marks = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, %s)"] * len(grants))
    cursor.execute(_INSERT_GRANT + marks, parameters)


def devices_text(grants: tuple[Grant, ...]) -> str:
    """`gpu 0,1 and rdma 0`, for people."""
    by_type: dict[str, list[int]] = {}
    for grant in grants:
        by_type.setdefault(grant.type, []).append(grant.minor)
    return " and ".join(f"{name} {','.join(map(str, sorted(minors)))}" for name, minors in by_type.items())
