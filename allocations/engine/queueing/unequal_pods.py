"""Placements for pods that differ, on few nodes: kind by kind, and by a search bounded by `TRIES`.

Called by `placing`. Invariants: what is answered fits together; the same snapshot gives the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from allocations.engine.plan import feasible, plan
from allocations.engine.queueing.equal_pods import Placements, PodPlacement, both, equal_on_rows, rows_used, taken
from allocations.engine.queueing.workloads import Member
from kube.device_types import GPU

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

TRIES: Final = 400
"""Plans of a search."""
NEW_NODES: Final = 3
"""Nodes not used yet that a search tries for a pod."""
SEARCHED: Final = 100
"""Larger gangs are placed kind by kind alone."""


class _Search:
    """Unequal pods on at most so many nodes."""

    def __init__(self, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]) -> None:
        self.members = members
        self.rows = rows
        self.blocked = blocked
        self.tries = TRIES
        self.most = 0

    def place(self, snapshot: Snapshot, place: int, used: tuple[int, ...], nodes: int) -> Placements | None:
        """Placements for the pods from `place` on, on the nodes used and at most `nodes` in all."""
        self.most = max(self.most, place)
        if place == len(self.members):
            return Placements((), snapshot)
        member = self.members[place]
        for row in self._options(snapshot, member, used, nodes):
            if self.tries <= 0:
                return None
            self.tries -= 1
            decision = plan(snapshot, member.request, candidates=[row], blocked=self.blocked, verdicts_up_to=0)
            if decision.node is None:
                continue
            after = used if row in used else (*used, row)
            rest = self.place(taken(snapshot, decision), place + 1, after, nodes)
            if rest is not None:
                return Placements((PodPlacement(member, decision), *rest.pods), rest.snapshot)
        return None

    def _options(self, snapshot: Snapshot, member: Member, used: tuple[int, ...], nodes: int) -> Iterable[int]:
        """Nodes for the pod: those used already, then new ones."""
        allowed = both(member.rows, self.rows)
        yield from (row for row in used if allowed is None or row in allowed)
        if len(used) < nodes and self.tries > 0:
            self.tries -= 1
            decision = plan(snapshot, member.request, candidates=allowed, blocked=self.blocked, verdicts_up_to=0)
            scored = sorted(feasible(decision, snapshot), key=lambda one: -one[1]) if decision.node else []
            new = [row for name, _ in scored if (row := snapshot.node_index[name]) not in used]
            yield from new[:NEW_NODES]


def unequal_on_rows(
    snapshot: Snapshot,
    members: Sequence[Member],
    rows: Sequence[int] | None,
    beside: Collection[int],
    blocked: Collection[int],
) -> Placements | int:
    """Kind by kind, the hardest first; where that finds nothing, by a search; then by searches on fewer nodes."""
    allowed = None if rows is None else set(rows)
    own = tuple(row for row in sorted(set(beside)) if allowed is None or row in allowed)
    hardest = sorted(members, key=lambda member: (_hardness(member.request), member.age))
    found = _kind_by_kind(snapshot, hardest, rows, own, blocked)
    if len(members) > SEARCHED:
        return found
    if not isinstance(found, Placements):
        search = _Search(hardest, rows, blocked)
        searched = search.place(snapshot, 0, own, len(own) + len(members))
        if searched is None:
            return max(found, search.most)
        found = searched
    while (nodes := len(rows_used(snapshot, found).difference(own))) > (0 if own else 1):
        fewer = _Search(hardest, rows, blocked).place(snapshot, 0, own, len(own) + nodes - 1)
        if fewer is None:
            break
        found = fewer
    return found


def _kind_by_kind(
    snapshot: Snapshot,
    hardest: Sequence[Member],
    rows: Sequence[int] | None,
    own: Sequence[int],
    blocked: Collection[int],
) -> Placements | int:
    """Equal pods at a time, beside those that have their placements."""
    kinds: dict[tuple[DeviceRequest, tuple[int, ...] | None], list[Member]] = {}
    for member in hardest:
        kinds.setdefault((member.request, member.rows), []).append(member)
    placements: list[PodPlacement] = []
    used = set(own)
    for some in kinds.values():
        found = equal_on_rows(snapshot, some, both(some[0].rows, rows), used, blocked)
        if not isinstance(found, Placements):
            return len(placements) + found
        placements += found.pods
        snapshot = found.snapshot
        used |= rows_used(snapshot, found)
    return Placements(tuple(placements), snapshot)


def _hardness(request: DeviceRequest) -> tuple[Fraction, int]:
    """Orders requests, the hardest first: by whole GPUs, then by devices."""
    gpus = [ask for ask in request.asks if ask.type == GPU]
    amount = sum(
        (ask.count * (Fraction(1) if ask.whole else Fraction(ask.core_percent or ask.memory_ratio or 1, 100)))
        for ask in gpus
    )
    return -Fraction(amount), -sum(ask.count for ask in request.asks)
