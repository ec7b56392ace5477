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
from functools import partial
from typing import Any, NamedTuple

from allocations.choices import EDGES, LIVE, State
from allocations.ledger.capacity import return_capacity
from allocations.ledger.reads import HELD_DEVICE, HELD_ID, HELD_ON, HELD_USABLE
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from nodes.revisions import next_stamp
from storage.columns import identity, read_identity
from storage.cursors import Query, hot_cursor, moment, on_postgresql, run_together

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
    _check_edges(sources, target)
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
        sharer = tuple(sources) != (State.HELD,)
        moved = {}
        for raw_id, *row in rows:
            key = read_identity(raw_id)
            moved[key] = Moved(len(return_capacity(cursor, key, revision, sharer=sharer)) if revision else 0, *row)
    for node in {one.node for one in moved.values()} if revision else ():
        announce(node=node)
    return {key: one.event(KINDS[target], message(one), key, now=now, actor=actor) for key, one in moved.items()}


class LiveMove(NamedTuple):
    """A move between live states, for `move_live`: it gives no devices back.

    `message`: the text of the event, in which `{label}` is `Moved.label` and `{node}` the node. `outcome`: only rows
    with this outcome.
    """

    allocation_ids: Sequence[uuid.UUID]
    source: State
    target: State
    message: str
    columns: Mapping[str, Any]
    outcome: str | None = None


def move_live(moves: Sequence[LiveMove], *, now: datetime, actor: str) -> set[uuid.UUID]:
    """Make these moves, with their events; the ids of the rows that moved. On PostgreSQL it is one round trip.

    It is the only access to the database, so callers may use `one_trip_retry`.
    """
    for one in moves:
        _check_edges([one.source], one.target)
        if one.target not in LIVE:
            raise ValueError(f"{one.target} gives devices back")
    moves = [one for one in moves if one.allocation_ids]
    if not moves:
        return set()
    if on_postgresql():
        found = run_together([_live_move(one, now, actor) for one in moves])
        return {read_identity(row[0]) for rows in found for row in rows}
    moved = set()
    for one in moves:
        events = move(
            one.allocation_ids,
            [one.source],
            one.target,
            now=now,
            actor=actor,
            message=partial(_event_text, one.message),
            columns=one.columns,
            outcome=one.outcome,
        )
        moved |= record_moves(events)
    return moved


def _event_text(message: str, row: Moved) -> str:
    return message.format(label=row.label, node=row.node)


_NOTED = """
  INSERT INTO audit_event (at, kind, actor, namespace, name, node, claim, allocation_id, message, data)
  SELECT {at}, %s, %s, namespace, pod_name, node, claim_name, id,
    left(replace(replace(%s, '{{node}}', node), '{{label}}',
      CASE WHEN pod_name = '' THEN holder ELSE namespace || '/' || pod_name END), 500), '{{}}'
  FROM moved"""
"""PostgreSQL: one event for each row of `moved`, which has the columns of `MOVED`."""
_LIVE_MOVE = """
WITH moved AS (
  UPDATE allocations_allocation SET {sets} WHERE id = ANY(%s) AND state = %s{outcome}
  RETURNING id, {returned} AS node
), noted AS (
{noted}
)
SELECT id FROM moved"""


def _live_move(one: LiveMove, now: datetime, actor: str) -> Query:
    """A move with its events as one statement of PostgreSQL."""
    sets = {"state": one.target.value, "changed_at": now, **one.columns}
    text = _LIVE_MOVE.format(
        sets=", ".join([*(f"{column} = %s" for column in sets), NOT_STUCK]),
        outcome="" if one.outcome is None else " AND outcome = %s",
        returned=MOVED,
        noted=_NOTED.format(at="%s"),
    )
    outcome = [] if one.outcome is None else [one.outcome]
    noted = [now, str(KINDS[one.target]), actor[:150], one.message]
    return Query(text, [*sets.values(), [*one.allocation_ids], one.source.value, *outcome, *noted])


_RESERVE_HELD = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), {HELD_ON}, moved AS (
  UPDATE allocations_allocation SET state = 'reserved', changed_at = (SELECT now FROM clock),
    reserved_at = (SELECT now FROM clock), hold_until = NULL, bind_attempt = %s, {NOT_STUCK}
  WHERE state = 'held' AND id IN (
    SELECT {HELD_ID} FROM held GROUP BY {HELD_ID}
    HAVING bool_and({HELD_DEVICE} IS NULL OR COALESCE({HELD_USABLE}, FALSE))
  )
  RETURNING id, {MOVED} AS node
), noted AS ({_NOTED.format(at="(SELECT now FROM clock)")})
SELECT held.*, (SELECT now FROM clock) FROM held JOIN moved ON moved.id = held.{HELD_ID}"""  # noqa: S608 - constants


def reserving_held(nodes: Mapping[str, str], *, attempt: int, message: str, actor: str) -> Query:
    """Held → reserved for those of these pods that hold usable devices on their node, as one statement of PostgreSQL.

    It returns the rows that `allocations.ledger.reads.lives_of` reads, as they were before, and after them the clock.
    `nodes`: pod UID → node; `message`: as for `LiveMove`.
    """
    _check_edges([State.HELD], State.RESERVED)
    noted = [str(KINDS[State.RESERVED]), actor[:150], message]
    return Query(_RESERVE_HELD, [[*nodes], [*nodes.values()], attempt, *noted])


def _check_edges(sources: Sequence[State], target: State) -> None:
    for source in sources:
        if target not in EDGES[source]:
            raise ValueError(f"no move from {source} to {target}")


def record_moves(events: Mapping[uuid.UUID, NewEvent]) -> set[uuid.UUID]:
    """Write the events; the ids of the allocations that moved."""
    record_many([*events.values()])
    return {*events}
