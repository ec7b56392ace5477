"""What placement reads before it plans: the fleet, and the pod's own allocation. With filter, the pod's claim too.

Called by `placement` and by filter. Invariants: on PostgreSQL all of it is one round trip; nothing is read before it is
asked for; what was read is used for one plan only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from allocations import fleet, ledger
from storage.cursors import Query, on_postgresql, rows_of

_NOTHING: Final = ledger.PodAllocation(live=None, shunned=frozenset())


class PlanningInput(NamedTuple):
    """The fleet, and what the pod has; nothing for a request without a pod."""

    look: fleet.FleetSnapshot
    own: ledger.PodAllocation


def planning_input(pod_uid: str) -> PlanningInput:
    """Read both as of now. `pod_uid` empty: a request without a pod."""
    if not pod_uid:
        return PlanningInput(fleet.current(), _NOTHING)
    if on_postgresql():
        look, (own,) = fleet.current_beside([ledger.pod_query(pod_uid)])
        return PlanningInput(look, ledger.pod_allocation_of(own))
    look = fleet.current()
    return PlanningInput(look, ledger.read_pod_allocation(pod_uid, look.now))


class WithClaim:
    """The input of a pod's first plan, which the query for its claim brings along on PostgreSQL."""

    def __init__(self, pod_uid: str) -> None:
        self._pod_uid = pod_uid
        self._input: PlanningInput | None = None

    def rows(self, query: Query) -> Sequence[Any]:
        """The rows of the query for the claim."""
        if not on_postgresql():
            return rows_of(query)
        look, (own, found) = fleet.current_beside([ledger.pod_query(self._pod_uid), query])
        # without the claim the API server is asked, which may take seconds: then everything is read again
        self._input = PlanningInput(look, ledger.pod_allocation_of(own)) if found else None
        return found

    def take(self) -> PlanningInput | None:
        """What was read with the claim, once; None where nothing was."""
        taken, self._input = self._input, None
        return taken
