"""What the ledger knows about one pod: its live allocation, and nodes that failed it lately."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from allocations.choices import LIVE, State
from allocations.ledger.sql import moment, read_identity

SHUN = timedelta(minutes=5)
"""A node on which the pod's attempt ended unbound ranks last for it that long (DESIGN §3, Holds)."""


@dataclass(frozen=True, slots=True)
class Live:
    """A live allocation: amounts by device id, (core percent, memory bytes)."""

    id: uuid.UUID
    state: State
    node: str
    amounts: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Own:
    """`live` None: the pod holds nothing. `shunned`: names of nodes to rank last."""

    live: Live | None
    shunned: frozenset[str]


_QUERY = f"""
SELECT a.id, a.state, n.name, g.device_id, g.core_percent, g.memory_bytes
FROM allocations_allocation a
JOIN nodes_node n ON n.id = a.node_id
LEFT JOIN allocations_allocationdevice g ON g.allocation_id = a.id AND g.live
WHERE a.pod_uid = %s
  AND (a.state IN ({", ".join(f"'{state.value}'" for state in LIVE)}) OR (a.state = 'failed' AND a.ended_at > %s))
"""  # noqa: S608 - constants only


def read_own(pod_uid: str, now: datetime) -> Own:
    """One query: the pod's live allocation with its devices, and the nodes to rank last for it."""
    live: Live | None = None
    shunned = set()
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, [pod_uid, moment(now - SHUN)])
        for raw_id, state, node, device_id, core, memory in cursor.fetchall():
            if state == State.FAILED:
                shunned.add(node)
                continue
            if live is None:
                live = Live(id=read_identity(raw_id), state=State(state), node=node, amounts={})
            if device_id is not None:
                live.amounts[device_id] = (core, memory)
    return Own(live=live, shunned=frozenset(shunned))
