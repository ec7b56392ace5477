"""Writes events, in the transaction that changes the state: one raw INSERT, since filter waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from audit.choices import EventKind
from audit.events import NewEvent
from storage.cursors import Statement, moment, on_postgresql, run_all

LONGEST_MESSAGE = 500
LONGEST_OTHER = 300
ROWS_A_STATEMENT = 90
"""Of ten parameters each; SQLite allows 999 in old builds."""
NAMING_ROWS_A_STATEMENT = 80
"""Of twelve parameters each: where an event has `other`."""

_COLUMNS = "at, kind, actor, namespace, name, node, claim, allocation_id, message, data"
_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_OTHER_COLUMNS = f"{_COLUMNS}, other, other_namespace"
_OTHER_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


def record(
    *,
    kind: EventKind,
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
    """Write one event into the current transaction."""
    event = NewEvent(
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
    )
    record_many((event,))


def record_many(events: Sequence[NewEvent]) -> None:
    """Write events, in this order, into the current transaction."""
    most = NAMING_ROWS_A_STATEMENT if any(event.other for event in events) else ROWS_A_STATEMENT
    statements = [recording(events[start : start + most]) for start in range(0, len(events), most)]
    for statement in statements:
        run_all([statement])


def recording(events: Sequence[NewEvent]) -> Statement:
    """The statement that writes up to `ROWS_A_STATEMENT` events."""
    postgresql = on_postgresql()
    named = any(event.other for event in events)
    parameters: list[Any] = []
    for event in events:
        allocation = event.allocation_id
        parameters += (
            moment(event.at),
            str(event.kind),
            event.actor[:150],
            event.namespace,
            event.name[:253],
            event.node,
            event.claim,
            None if allocation is None else str(allocation) if postgresql else allocation.hex,
            event.message[:LONGEST_MESSAGE],
            orjson.dumps(event.data or {}, default=str, option=orjson.OPT_NON_STR_KEYS).decode(),
        )
        if named:
            parameters += (event.other[:LONGEST_OTHER], event.other_namespace)
    columns, row = (_OTHER_COLUMNS, _OTHER_ROW) if named else (_COLUMNS, _ROW)
    rows = ", ".join([row] * len(events))
    return Statement(f"INSERT INTO audit_event ({columns}) VALUES {rows}", parameters)  # noqa: S608 - constants only
