"""Victims of preemption: the fewest and least important pods to evict so that a request fits.

Called by `allocations.scheduling.preemption` and by the preempt verb. Invariants: with the victims evicted the request
fits, with any one of them reprieved it does not; victims are among the holdings given. Importance is kube-scheduler's:
the higher priority first, among equals the older.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

import msgspec

from allocations.engine.amounts import Held
from allocations.engine.plan import plan, verdicts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from allocations.engine.amounts import Amounts
    from allocations.engine.decision import Decision
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

NODES_SEARCHED = 16
"""Nodes whose victims are chosen one by one: those that seem to need the fewest."""
_SHIFT = 2**31
"""Makes priorities positive, so that the sum of fewer victims is the smaller (as kube-scheduler compares nodes)."""


class Holding(msgspec.Struct, frozen=True):
    """What one pod that may be evicted holds. `since`: seconds, on any clock."""

    pod_uid: str
    priority: int
    since: float
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """Victims on a node, the most important first, and the ids of the devices that the request then gets."""

    node: int
    victims: tuple[Holding, ...]
    devices: tuple[int, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """What plans compare by, the lowest best: the highest priority of a victim, then the sum of all."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities, default=-_SHIFT), sum(priority + _SHIFT for priority in priorities)


@dataclass(frozen=True, slots=True)
class EvictionQuery:
    """A request over one snapshot; `own`, `freed`, `blocked` as in `plan`."""

    snapshot: Snapshot
    request: DeviceRequest
    own: Mapping[int, Amounts] | None = None
    freed: tuple[Held, ...] = ()
    blocked: frozenset[int] = frozenset()

    def without(self, holdings: Iterable[Holding], nodes: Sequence[int]) -> Decision:
        """The decision between these nodes with these holdings evicted; without verdicts of a success."""
        freed = (*self.freed, *(held for one in holdings for held in one.held))
        return plan(
            self.snapshot,
            self.request,
            candidates=nodes,
            own=self.own,
            freed=freed,
            blocked=self.blocked,
            verdicts_up_to=0,
        )


def eviction_on(
    query: EvictionQuery,
    node: int,
    holdings: Sequence[Holding],
    *,
    rather: Collection[str] = (),
    surely: Collection[str] = (),
) -> EvictionPlan | None:
    """The victims on one node, None where the request would not fit with all holdings evicted.

    `rather`: UIDs of pods that are evicted before others of their priority. `surely`: UIDs of those that are in any
    case.
    """
    if query.without(holdings, [node]).node is None:
        return None
    # The oldest of equals stay, unless one that holds much can be evicted instead of several that hold little.
    orders = [
        sorted(holdings, key=lambda one: (-one.priority, one.pod_uid in rather, one.since)),
        sorted(holdings, key=lambda one: (-one.priority, one.pod_uid in rather, len(one.held), one.since)),
    ]
    plans = [_reprieved(query, node, order, surely) for order in (orders if orders[0] != orders[1] else orders[:1])]
    return min(plans, key=lambda one: one.cost)


def _reprieved(query: EvictionQuery, node: int, holdings: Sequence[Holding], surely: Collection[str]) -> EvictionPlan:
    """All holdings as victims, then each, in this order, reprieved where the request still fits."""
    evicted = list(holdings)
    for one in holdings:
        rest = [other for other in evicted if other is not one]
        if one.pod_uid not in surely and query.without(rest, [node]).node is not None:
            evicted = rest
    decision = query.without(evicted, [node])
    victims = tuple(sorted(evicted, key=lambda one: (-one.priority, one.since)))
    return EvictionPlan(node, victims, tuple(grant.device_id for grant in decision.grants))


def best_eviction(query: EvictionQuery, holdings: Mapping[int, Sequence[Holding]]) -> EvictionPlan | None:
    """The best plan on these nodes (row → what may be evicted there), None where there is none.

    First the lowest priority is found up to which pods have to be evicted anywhere; among the nodes where those are
    enough, the least sum wins.
    """
    nodes = sorted(holdings)
    ranks = sorted({one.priority for some in holdings.values() for one in some})

    def up_to(rank: int) -> dict[int, list[Holding]]:
        return {node: [one for one in holdings[node] if one.priority <= rank] for node in nodes}

    def able(rank: int) -> Decision:
        return query.without((one for some in up_to(rank).values() for one in some), nodes)

    place = bisect_left(ranks, True, key=lambda rank: able(rank).node is not None)
    if place == len(ranks):
        return None
    lowest, decision = up_to(ranks[place]), able(ranks[place])
    fitting = decision.candidates[verdicts_of(decision, query.snapshot).reason_code < 0].tolist()
    likely = nsmallest(NODES_SEARCHED, fitting, key=lambda node: (_fewest(query, node, lowest[node]), node))
    plans = [found for node in likely if (found := eviction_on(query, node, lowest[node])) is not None]
    return min(plans, key=lambda one: (one.cost, one.node), default=None)


def _fewest(query: EvictionQuery, node: int, holdings: Sequence[Holding]) -> tuple[int, int]:
    """(number of victims if any devices were as good, sum of their priorities): `eviction_on` seldom finds less."""
    snapshot = query.snapshot
    rows = snapshot.rows_of_node(node)
    free = int(
        ((snapshot.core_used[rows] == 0) & (snapshot.memory_used[rows] == 0) & snapshot.device_healthy[rows]).sum()
    )
    missing = sum(ask.count for ask in query.request.asks) - free
    evicted: list[int] = []
    for one in sorted(holdings, key=lambda one: (-len(one.held), one.priority)):
        if missing <= 0 and evicted:
            break
        evicted.append(one.priority)
        missing -= len(one.held)
    return len(evicted), sum(evicted)
