"""The rows of a new allocation, written by `hold` and `adopt` with the devices taken and the events.

Called inside their transaction, or on PostgreSQL as one statement that is a transaction of its own. Invariants: a
device that is not free any more is a lost race, whichever statement or constraint notices it; an allocation that lacks
one of its devices is not committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
from django.db import IntegrityError

from allocations.choices import STARTS, State
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.ledger.capacity import check_taken, taking
from allocations.ledger.device_reservations import Taker
from allocations.ledger.holder import Holder, Terms
from audit.choices import EventKind
from audit.events import NewEvent
from audit.services import recording
from nodes.revisions import next_stamp
from storage.columns import document, identity
from storage.cursors import Query, Statement, moment, on_postgresql, run_all, run_together


class AllocationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A new allocation. `until` None: no hold."""

    id: uuid.UUID
    state: State
    terms: Terms
    node: str
    summary: str
    now: datetime
    explanation: dict[str, int] = {}
    until: datetime | None = None
    bound_at: datetime | None = None
    expires_at: datetime | None = None

    def event(self, kind: EventKind, message: str, data: Mapping[str, Any] | None = None) -> NewEvent:
        """An event of the allocation."""
        holder = self.terms.holder
        return NewEvent(
            kind=kind,
            message=message,
            actor=self.terms.actor,
            at=self.now,
            namespace=holder.namespace,
            name=holder.pod_name,
            node=self.node,
            claim=self.terms.request.claim,
            allocation_id=self.id,
            data=data,
        )


_INSERT = """
INSERT INTO allocations_allocation
  (node_id, id, state, outcome, reason, namespace, pod_name, pod_uid, holder, claim_id, claim_name, dialect, request,
   summary, explanation, priority, confined, created_by, ttl_seconds, created_at, hold_until, changed_at,
   attempt_version, failure_seen, bound_at, expires_at, queue, gang, preemptible, pod_created,
   pod_priority)
SELECT {node}, %s, %s, '', '', %s, %s, %s, %s, {claim}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
  %s, %s, %s, %s, %s
{rest}"""
_FROM_NODE = "FROM nodes_node n WHERE n.name = %s\n"
_NODE_IF_TAKEN = (
    "CASE WHEN (SELECT count(*) FROM taken) = %s THEN (SELECT n.id FROM nodes_node n WHERE n.name = %s) END"
)
"""No node unless all devices were taken: the table refuses the row, and PostgreSQL undoes the whole statement."""
_CLAIM = "(SELECT c.id FROM claims_gpuclaim c WHERE c.id = %s{lock})"
"""The claim as it is now: null where it was deleted since the decision."""
_SQLITE_INSERT = _INSERT.format(node="n.id", claim=_CLAIM.format(lock=""), rest=_FROM_NODE)
_LOCKED_CLAIM = _CLAIM.format(lock=" FOR KEY SHARE")
_POSTGRESQL_INSERT = _INSERT.format(node="n.id", claim=_LOCKED_CLAIM, rest=_FROM_NODE)
_INSERT_IF_TAKEN = _INSERT.format(node=_NODE_IF_TAKEN, claim=_LOCKED_CLAIM, rest="")
_NOT_NULL_VIOLATION = "23502"
"""PostgreSQL's SQLSTATE."""
_GRANT = "(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
_INSERT_GRANTS = (
    "INSERT INTO allocations_allocationdevice "
    "(allocation_id, device_id, uuid, type, minor, core_percent, memory_bytes, whole, live) VALUES {rows}"
)


def write_taken(
    row: AllocationRow, grants: Sequence[Grant], events: Sequence[NewEvent], *, taker: Taker | None
) -> None:
    """Take the devices (`taker`: see `taking`), and insert the allocation, its grants and the events.

    Raises LostRace when a device is not free, MovedOn when the node is gone, IntegrityError (see `constraint_errors`):
    the transaction has to be rolled back.
    """
    if row.state not in STARTS:
        raise ValueError(f"no allocation begins {row.state}")
    revision = next_stamp()
    take = taking(grants, revision, taker=taker)
    # apart from the rest: a take that fails must neither wait for others' grants of the device nor hide which it was
    check_taken(grants, run_all(take), revision)
    inserted, *_ = run_all([_allocation(row), granting(row.id, grants), recording(events)])
    if not inserted.rows:
        raise MovedOn("the node is gone")


def write_taken_at_once(row: AllocationRow, grants: Sequence[Grant], event: NewEvent, *, taker: Taker) -> bool:
    """The same by one statement of PostgreSQL, a transaction of its own, in one round trip.

    False, and nothing was written, where a device was not free or the node is gone; `write_taken` says which. Raises
    IntegrityError as that does. Call outside a transaction.
    """
    take = taking(grants, next_stamp(), taker=taker)
    inserted = Statement(_INSERT_IF_TAKEN, [len(grants), row.node, *_values(row)])
    rest = [granting(row.id, grants), recording([event])]
    text = _at_once(tuple(one.text for one in take), inserted.text, tuple(one.text for one in rest))
    try:
        run_together([Query(text, [*chain.from_iterable(one.values for one in (*take, inserted, *rest))])])
    except IntegrityError as error:
        if _is_without_node(error):
            return False
        raise
    return True


@lru_cache(maxsize=512)
def _at_once(take: tuple[str, ...], insert: str, rest: tuple[str, ...]) -> str:
    """One statement. `allocation` reads `taken`, and is read itself: so devices come first, and the rest last."""
    parts = [f"take{place} AS ({text} RETURNING id)" for place, text in enumerate(take)]
    union = " UNION ALL ".join(f"SELECT id FROM take{place}" for place in range(len(take)))  # noqa: S608 - numbers only
    parts += [f"taken AS ({union})", f"allocation AS ({insert} RETURNING id)"]
    parts += [f"rest{place} AS ({text})" for place, text in enumerate(rest)]
    return f"WITH {', '.join(parts)} SELECT id FROM allocation"  # noqa: S608 - statements of the ledger


def _is_without_node(error: IntegrityError) -> bool:
    found: Any = getattr(error.__cause__, "diag", None)
    said = (getattr(error.__cause__, "sqlstate", None), getattr(found, "column_name", None))
    return said == (_NOT_NULL_VIOLATION, "node_id")


@contextmanager
def constraint_errors(holder: Holder, grants: Sequence[Grant]) -> Iterator[None]:
    """Raise PodHasOne or LostRace for the violation of a constraint that says so."""
    try:
        yield
    except IntegrityError as error:
        text = str(error)
        if "pod_uid" in text or "allocation_live_once_a_pod" in text:
            raise PodHasOne(f"pod {holder.label} already has a live allocation") from error
        if "grant_whole_once" in text or text.endswith("failed: allocations_allocationdevice.device_id"):
            raise LostRace(tuple(sorted(grant.device_id for grant in grants if grant.whole))) from error
        raise


def _allocation(row: AllocationRow) -> Statement:
    return Statement(_POSTGRESQL_INSERT if on_postgresql() else _SQLITE_INSERT, [*_values(row), row.node])


def _values(row: AllocationRow) -> list[object]:
    """The parameters of the insert, without the node's."""
    terms = row.terms
    holder, request = terms.holder, terms.request
    return [
        identity(row.id),
        row.state.value,
        holder.namespace,
        holder.pod_name,
        holder.pod_uid,
        holder.identity,
        terms.claim_id,
        request.claim,
        str(request.dialect),
        document(request),
        row.summary[:500],
        document(row.explanation),
        terms.priority,
        terms.confined,
        terms.actor,
        request.ttl_seconds,
        moment(row.now),
        moment(row.until),
        moment(row.now),
        terms.attempt.version,
        terms.attempt.failure,
        moment(row.bound_at),
        moment(row.expires_at),
        terms.membership.queue,
        terms.membership.gang,
        terms.membership.preemptible,
        terms.membership.created,
        terms.membership.priority,
    ]


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
