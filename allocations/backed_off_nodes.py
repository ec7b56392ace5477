"""Nodes that could serve a request, and begin no new group for now because reservation pods failed there: the reason.

Called by filter, explain and the planning of waiting pods, once a decision is made with the devices of such nodes
blocked (`FleetSnapshot.blocked`). To the engine these are taken; here the refusal gets its true reason. Invariants:
only nodes that would serve without the back-off get it; it costs nothing while no node is put off.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import numpy as np

from allocations.engine.decision import Decision, Reason, ReasonKind, Verdicts
from allocations.engine.plan import plan, verdicts_of

if TYPE_CHECKING:
    from allocations.fleet import FleetSnapshot

PUT_OFF: Final = Reason(
    "node begins no new group of GPUs for now, since a reservation pod got none there",
    resolvable=True,
    kind=ReasonKind.PUT_OFF,
)
PUT_OFF_DEVICE: Final = "no new group begins here for now"


def refusals(decision: Decision, look: FleetSnapshot) -> Verdicts:
    """Why candidates cannot serve. `look`: the fleet that was decided upon."""
    verdicts = verdicts_of(decision, look.snapshot)
    query = decision.query
    put_off = look.without_group(query.request) & query.blocked
    if not put_off:
        return verdicts
    snapshot = look.snapshot
    devices = snapshot.index.rows_of(sorted(put_off))
    shunned = set(snapshot.device_node[devices[devices >= 0]].tolist())
    refused = verdicts.candidates[verdicts.reason_code >= 0]
    rows = [row for row in refused.tolist() if row in shunned]
    if not rows:
        return verdicts
    freely = plan(
        snapshot, query.request, candidates=rows, freed=query.freed, last=query.last, blocked=query.blocked - put_off
    )
    serving = set(verdicts_of(freely, snapshot).serving())
    return _given(verdicts, {row for row in rows if snapshot.node_names[row] in serving})


def _given(verdicts: Verdicts, rows: Collection[int]) -> Verdicts:
    """The verdicts with the reason for these node rows, and no reason that nobody has."""
    code = verdicts.reason_code.copy()
    code[np.isin(verdicts.candidates, list(rows))] = len(verdicts.reasons)
    every = (*verdicts.reasons, PUT_OFF)
    used = [number for number in range(len(every)) if (code == number).any()]
    renumbered = np.full(len(every) + 1, -1, dtype=np.int16)
    renumbered[used] = range(len(used))
    return Verdicts(verdicts.candidates, verdicts.node_names, renumbered[code], tuple(every[one] for one in used))
