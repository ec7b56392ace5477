"""State changes of allocations: a conditional UPDATE along an edge of `allocations.choices.EDGES`.

Called by the verbs of this package, inside their transaction. Invariants: a move names the states it starts from, so
of two movers one wins; a move that is no edge never reaches the database; each row that moved leaves one event; a row
that ends gives its devices back in the same transaction, which is announced.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allocations.choices import EDGES, LIVE, State
from allocations.ledger.capacity import return_capacity
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from nodes.revisions import next_stamp
from storage.columns import identity, read_identity
from storage.cursors import hot_cursor, moment

KINDS = {
    State.RESERVED: EventKind.ALLOCATION_RESERVED,
    State.BOUND: EventKind.ALLOCATION_BOUND,
    State.RELEASING: EventKind.ALLOCATION_RELEASING,
    State.RELEASED: EventKind.ALLOCATION_RELEASED,
    State.FAILED: EventKind.ALLOCATION_FAILED,
}

NOT_STUCK = "retries = 0, retry_at = NULL"
"""For SET: collection tries the row again at once."""
MOVED = "namespace, pod_name, holder, claim_name, (SELECT name FROM nodes_node WHERE id = node_id)"
"""The columns of `Moved` after `returned`, for RETURNING."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The row that moved, for its event. `returned`: how many devices came back with it."""

    returned: int
    namespace: str
    pod_name: str
    holder: str
    claim_name: str
    node: str

    @property
    def label(self) -> str:
        """The pod, or the holder over REST, for people."""
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.holder

    def event(self, kind: EventKind, message: str, allocation_id: uuid.UUID, *, now: datetime, actor: str) -> NewEvent:
        """An event of the row."""
        return NewEvent(
            kind=kind,
            message=message,
            actor=actor,
            at=now,
            namespace=self.namespace,
            name=self.pod_name,
            node=self.node,
            claim=self.claim_name,
            allocation_id=allocation_id,
        )


def move(
    allocation_ids: Sequence[uuid.UUID],
    sources: Sequence[State],
    target: State,
    *,
    now: datetime,
    actor: str,
    message: Callable[[Moved], str],
    columns: Mapping[str, Any],
    bind_attempt: int | None = None,
    outcome: str | None = None,
    unchanged_since: datetime | None = None,
) -> dict[uuid.UUID, NewEvent]:
    """Set state and columns of those rows that are in one of `sources`, by one statement; the event of each that moved.

    The caller writes the events (`record_moves`), in the same transaction. `bind_attempt`, `outcome`,
    `unchanged_since`: only rows of this attempt, with this outcome, and with this `changed_at`. `message`: the text of
    the event.
    """
    for source in sources:
        if target not in EDGES[source]:
            raise ValueError(f"no move from {source} to {target}")
    if not allocation_ids:
        return {}
    sets = {"state": target.value, "changed_at": now, **columns}
    where: dict[str, Sequence[Any]] = {"id": [*map(identity, allocation_ids)], "state": [one.value for one in sources]}
    if bind_attempt is not None:
        where["bind_attempt"] = [bind_attempt]
    if outcome is not None:
        where["outcome"] = [outcome]
    if unchanged_since is not None:
        where["changed_at"] = [moment(unchanged_since)]
    assigned = ", ".join(f"{column} = %s" for column in sets)
    asked = " AND ".join(f"{column} IN ({', '.join(['%s'] * len(values))})" for column, values in where.items())
    values = [moment(value) if isinstance(value, datetime) else value for value in sets.values()]
    with hot_cursor() as cursor:
        cursor.execute(
            f"UPDATE allocations_allocation SET {assigned}, {NOT_STUCK} "  # noqa: S608 - columns named in this package
            f"WHERE {asked} RETURNING id, {MOVED}",
            [*values, *(value for some in where.values() for value in some)],
        )
        rows = cursor.fetchall()
        revision = next_stamp() if rows and target not in LIVE else None
        moved = {}
        for raw_id, *row in rows:
            key = read_identity(raw_id)
            moved[key] = Moved(return_capacity(cursor, key, revision) if revision else 0, *row)
    for node in {one.node for one in moved.values()} if revision else ():
        announce(node=node)
    return {key: one.event(KINDS[target], message(one), key, now=now, actor=actor) for key, one in moved.items()}


def record_moves(events: Mapping[uuid.UUID, NewEvent]) -> set[uuid.UUID]:
    """Write the events; the ids of the allocations that moved."""
    record_many([*events.values()])
    return {*events}
