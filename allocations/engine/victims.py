"""Who has to go so that a request fits: the fewest, and the least important (DESIGN §4).

Called by `allocations.making_way` and by the preempt verb. Pure, as all of the engine. Kept true: with the victims gone the request
fits, with any one of them spared it does not; nobody is a victim who was not among the holdings given. The order of importance is
kube-scheduler's own: the higher priority first, among equals the older.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from allocations.engine.plan import plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from allocations.engine.decision import Decision
    from allocations.engine.picture import Picture
    from allocations.engine.plan import Amounts
    from claims.dialects.request import DeviceRequest

Held = tuple[int, int, int]
"""Device id, core percent, bytes."""

LOOKED_AT = 16
"""So many nodes are looked at victim by victim, those first where the fewest seem to be needed."""
_SHIFT = 2**31
"""Makes every priority positive, so that of two sums the one of fewer victims is the smaller (as kube-scheduler compares nodes)."""


class Holding(msgspec.Struct, frozen=True):
    """What one pod that may be evicted holds. `since`: seconds, on any clock."""

    pod_uid: str
    priority: int
    since: float
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How a request gets its devices on a node. `victims`: the most important first; `devices`: ids of what it then gets."""

    node: int
    victims: tuple[Holding, ...]
    devices: tuple[int, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """The less the better: the highest priority that goes, then the sum of all."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities, default=-_SHIFT), sum(priority + _SHIFT for priority in priorities)


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it is asked of one picture; `own`, `freed`, `blocked` as in `plan`."""

    picture: Picture
    request: DeviceRequest
    own: Mapping[int, Amounts] | None = None
    freed: tuple[Held, ...] = ()
    blocked: frozenset[int] = frozenset()

    def without(self, holdings: Iterable[Holding], nodes: Sequence[int]) -> Decision:
        """The decision between these nodes, were these holdings gone."""
        back: dict[int, Amounts] = {}
        for device, core, memory in (*self.freed, *(held for one in holdings for held in one.held)):
            before = back.get(device, (0, 0))
            back[device] = (before[0] + core, before[1] + memory)
        return plan(self.picture, self.request, candidates=nodes, own=self.own, freed=back, blocked=self.blocked)


def way_on(
    question: Question,
    node: int,
    holdings: Sequence[Holding],
    *,
    rather: Collection[str] = (),
    surely: Collection[str] = (),
) -> Way | None:
    """The way on one node, None where the request would not fit were all holdings gone.

    `rather`: UIDs of pods that go before others of their priority. `surely`: UIDs of those that go in any case.
    """
    if question.without(holdings, [node]).node is None:
        return None
    # The oldest of equals stay; but where several small ones would go for one that holds much, that one goes.
    orders = [
        sorted(holdings, key=lambda one: (-one.priority, one.pod_uid in rather, one.since)),
        sorted(holdings, key=lambda one: (-one.priority, one.pod_uid in rather, len(one.held), one.since)),
    ]
    ways = [_spared(question, node, order, surely) for order in (orders if orders[0] != orders[1] else orders[:1])]
    return min(ways, key=lambda way: way.cost)


def _spared(question: Question, node: int, holdings: Sequence[Holding], surely: Collection[str]) -> Way:
    """Everybody goes; then, in this order, everyone is spared who can be."""
    going = list(holdings)
    for one in holdings:
        rest = [other for other in going if other is not one]
        if one.pod_uid not in surely and question.without(rest, [node]).node is not None:
            going = rest
    decision = question.without(going, [node])
    victims = tuple(sorted(going, key=lambda one: (-one.priority, one.since)))
    return Way(node, victims, tuple(grant.device_id for grant in decision.grants))


def best_way(question: Question, holdings: Mapping[int, Sequence[Holding]]) -> Way | None:
    """The best of the ways on these nodes (row → what may go there), None where none would do.

    First that nobody more important goes than must, anywhere; between the nodes where that will do, the least sum. Those are
    looked at that seem to need the fewest.
    """
    nodes = sorted(holdings)
    ranks = sorted({one.priority for some in holdings.values() for one in some})

    def up_to(rank: int) -> dict[int, list[Holding]]:
        return {node: [one for one in holdings[node] if one.priority <= rank] for node in nodes}

    def able(rank: int) -> Decision:
        return question.without((one for some in up_to(rank).values() for one in some), nodes)

    place = bisect_left(ranks, True, key=lambda rank: able(rank).node is not None)
    if place == len(ranks):
        return None
    lowest, decision = up_to(ranks[place]), able(ranks[place])
    fitting = decision.candidates[np.asarray(decision.reason_code) < 0].tolist()
    likely = nsmallest(LOOKED_AT, fitting, key=lambda node: (_fewest(question, node, lowest[node]), node))
    ways = [way for node in likely if (way := way_on(question, node, lowest[node])) is not None]
    return min(ways, key=lambda way: (way.cost, way.node), default=None)


def _fewest(question: Question, node: int, holdings: Sequence[Holding]) -> tuple[int, int]:
    """(how many would have to go if any devices did, the sum of their priorities): what `way_on` finds is seldom less."""
    picture = question.picture
    rows = slice(int(picture.node_start[node]), int(picture.node_start[node + 1]))
    free = int(((picture.core_used[rows] == 0) & (picture.memory_used[rows] == 0) & picture.device_healthy[rows]).sum())
    missing = sum(ask.count for ask in question.request.asks) - free
    going: list[int] = []
    for one in sorted(holdings, key=lambda one: (-len(one.held), one.priority)):
        if missing <= 0 and going:
            break
        going.append(one.priority)
        missing -= len(one.held)
    return len(going), sum(going)
