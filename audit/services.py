"""The one way to write an event: in the transaction that changes the state.

Called by every service and by the ledger, also on the filter's hot path: one raw INSERT for any
number of events, no model instances. Kept true: an event exists exactly when its change was
committed; browsers hear of it after the commit, and losing that message loses nothing, since it
carries the row's id and the rows are the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import connection, transaction

from audit import feed
from audit.choices import Kind
from audit.cursors import Statement, Written, on_postgresql, run_together
from audit.happenings import Happening

LONGEST_MESSAGE = 500
LONGEST_OTHER = 300
ROWS_A_STATEMENT = 90
"""SQLite allows 999 parameters in old builds; ten a row."""
NAMING_ROWS_A_STATEMENT = 80
"""Of rows of twelve: where some names somebody of another namespace."""

_COLUMNS = "at, kind, actor, namespace, name, node, claim, allocation_id, message, data"
_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_OTHER_COLUMNS = f"{_COLUMNS}, other, other_namespace"
_OTHER_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
"""Only where an event names somebody of another namespace, as few do."""


def record(
    *,
    kind: Kind,
    message: str,
    actor: str,
    now: datetime,
    namespace: str = "",
    name: str = "",
    node: str = "",
    claim: str = "",
    allocation_id: UUID | None = None,
    data: Mapping[str, Any] | None = None,
    other: str = "",
) -> None:
    """Write one event into the current transaction; browsers are told after the commit."""
    record_many(
        (
            Happening(
                kind=kind,
                message=message,
                actor=actor,
                at=now,
                namespace=namespace,
                name=name,
                node=node,
                claim=claim,
                allocation_id=allocation_id,
                data=data,
                other=other,
            ),
        )
    )


def record_many(happenings: Sequence[Happening]) -> None:
    """Write events, in this order, into the current transaction."""
    most = NAMING_ROWS_A_STATEMENT if any(happening.other for happening in happenings) else ROWS_A_STATEMENT
    for start in range(0, len(happenings), most):
        some = happenings[start : start + most]
        (written,) = run_together([recording(some)])
        tell_later(written, some)


def recording(happenings: Sequence[Happening]) -> Statement:
    """The statement that writes these events (up to `ROWS_A_STATEMENT`); what it wrote is for `tell_later`."""
    postgresql = on_postgresql()
    named = any(happening.other for happening in happenings)
    parameters: list[Any] = []
    for happening in happenings:
        allocation = happening.allocation_id
        parameters += (
            connection.ops.adapt_datetimefield_value(happening.at),
            str(happening.kind),
            happening.actor[:150],
            happening.namespace,
            happening.name[:253],
            happening.node,
            happening.claim,
            None if allocation is None else str(allocation) if postgresql else allocation.hex,
            happening.message[:LONGEST_MESSAGE],
            orjson.dumps(happening.data or {}, default=str, option=orjson.OPT_NON_STR_KEYS).decode(),
        )
        if named:
            parameters += (happening.other[:LONGEST_OTHER], happening.other_namespace)
    columns, row = (_OTHER_COLUMNS, _OTHER_ROW) if named else (_COLUMNS, _ROW)
    rows = ", ".join([row] * len(happenings))
    return Statement(f"INSERT INTO audit_event ({columns}) VALUES {rows}", parameters, "id")  # noqa: S608 - constants only


def tell_later(written: Written, happenings: Sequence[Happening]) -> None:
    """Once the current transaction is committed, tell browsers of the events that it wrote."""
    in_order = sorted(written.returned)
    transaction.on_commit(lambda: feed.publish(zip(in_order, happenings, strict=True)))
