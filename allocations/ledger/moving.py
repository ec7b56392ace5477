"""How allocations move from state to state: one conditional UPDATE, and one event each, in the caller's transaction.

Used by the verbs of this package (`moves`, `binding`). Kept true: every move names the states it starts from, along the edges of
`allocations.choices`, so two movers never both win.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allocations.choices import EDGES, State
from allocations.ledger.sql import identity, moment, read_identity
from audit.choices import Kind
from audit.happenings import Happening
from audit.services import record_many

KINDS = {
    State.RESERVED: Kind.ALLOCATION_RESERVED,
    State.BOUND: Kind.ALLOCATION_BOUND,
    State.RELEASING: Kind.ALLOCATION_RELEASING,
    State.RELEASED: Kind.ALLOCATION_RELEASED,
    State.FAILED: Kind.ALLOCATION_FAILED,
}


NOT_STUCK = "retries = 0, retry_at = NULL"
"""For SET: whatever kept collection from moving the row on before is over."""
TOLD = "namespace, pod_name, holder, claim_name, (SELECT name FROM nodes_node WHERE id = node_id)"
"""The columns of `Moved`, for RETURNING."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What an event tells about the row that moved."""

    namespace: str
    pod_name: str
    holder: str
    claim_name: str
    node: str

    @property
    def label(self) -> str:
        """The pod, or the holder over REST, for people."""
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.holder


def move(
    cursor: Any,
    allocation_id: uuid.UUID,
    sources: Sequence[State],
    target: State,
    now: datetime,
    *,
    bind_attempt: int | None = None,
    unchanged_since: datetime | None = None,
    **columns: Any,
) -> Moved | None:
    """Set the state where it is one of `sources` (of this `bind_attempt`, not changed since); None when it was not."""
    _check(sources, target)
    sets = ", ".join([*(f"{column} = %s" for column in ("state", "changed_at", *columns)), NOT_STUCK])
    marks = ", ".join(["%s"] * len(sources))
    own = "" if bind_attempt is None else "AND bind_attempt = %s "
    same = "" if unchanged_since is None else "AND changed_at = %s "
    cursor.execute(
        f"UPDATE allocations_allocation SET {sets} WHERE id = %s AND state IN ({marks}) {own}{same}"  # noqa: S608 - column names from this module only
        f"RETURNING {TOLD}",
        [
            target.value,
            moment(now),
            *[moment(value) if isinstance(value, datetime) else value for value in columns.values()],
            identity(allocation_id),
            *[source.value for source in sources],
            *([] if bind_attempt is None else [bind_attempt]),
            *([] if unchanged_since is None else [moment(unchanged_since)]),
        ],
    )
    row = cursor.fetchone()
    return None if row is None else Moved(*row)


def move_many(
    cursor: Any,
    allocation_ids: Sequence[uuid.UUID],
    source: State,
    target: State,
    now: datetime,
    *,
    stamped: str,
    also: str = "",
) -> dict[uuid.UUID, Moved]:
    """Set the state of those that are in `source`, a mere hold no longer; by id, those that were.

    `stamped`: the column of the moment. `also`: further assignments of SQL, each after a comma.
    """
    _check((source,), target)
    if not allocation_ids:
        return {}
    marks = ", ".join(["%s"] * len(allocation_ids))
    cursor.execute(
        f"UPDATE allocations_allocation SET state = %s, changed_at = %s, {stamped} = %s, hold_until = NULL, {NOT_STUCK}{also} "  # noqa: S608 - column names from this package only
        f"WHERE id IN ({marks}) AND state = %s RETURNING id, {TOLD}",
        [target.value, moment(now), moment(now), *map(identity, allocation_ids), source.value],
    )
    return {read_identity(row[0]): Moved(*row[1:]) for row in cursor.fetchall()}


def tell(
    moved: Mapping[uuid.UUID, Moved], target: State, message: Callable[[Moved], str], actor: str, now: datetime
) -> None:
    """Write an event for each move into its transaction."""
    record_many([happening(KINDS[target], one, key, message(one), actor, now) for key, one in moved.items()])


def happening(
    kind: Kind,
    moved: Moved,
    allocation_id: uuid.UUID,
    message: str,
    actor: str,
    now: datetime,
    data: Mapping[str, Any] | None = None,
) -> Happening:
    """An event about an allocation's row."""
    return Happening(
        kind=kind,
        message=message,
        actor=actor,
        at=now,
        namespace=moved.namespace,
        name=moved.pod_name,
        node=moved.node,
        claim=moved.claim_name,
        allocation_id=allocation_id,
        data=data,
    )


def _check(sources: Sequence[State], target: State) -> None:
    for source in sources:
        if target not in EDGES[source]:
            raise ValueError(f"no move from {source} to {target}")
