"""Fair shares: what of a group of models each queue may hold while others want it too.

Level by level: each child gets the smaller of deserved and requested; what is left goes by priority and weight, never
past limit or requested. Source: the over-quota division of KAI-Scheduler (docs/queues.md), in exact fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

import msgspec

from claims.queue_tree import TOP, Amount, Name, QueueTree, ratio

NOTHING = 0


class Demand(msgspec.Struct, frozen=True):
    """What a queue's workloads hold and wait for, in GPUs. `whole`: all of their pods ask for whole GPUs."""

    amount: Amount = NOTHING
    whole: bool = True


class Claimant(msgspec.Struct, frozen=True):
    """One child of a division. `most`: the smaller of requested and limit. `age`: its place, oldest first."""

    deserved: Amount
    most: Amount
    weight: Amount
    priority: int
    age: int
    whole: bool = True

    @property
    def due(self) -> Amount:
        """What it gets before anything is divided."""
        return min(self.deserved, self.most)


def fair_shares(
    tree: QueueTree, pools: Mapping[frozenset[str], Amount], demands: Mapping[Name, Demand]
) -> dict[Name, Amount]:
    """The fair share of every queue in every group. `pools`: healthy GPUs by group; `demands`: of leaves."""
    summed = _summed(tree, demands)
    shares: dict[Name, Amount] = {}
    for group in tree.groups:
        levels = [(TOP, pools.get(group, NOTHING))]
        while levels:
            parent, amount = levels.pop()
            names = tree.below(parent)
            claimants = []
            for name in names:
                quota, demand = tree.quota(name, group), summed[Name(name, group)]
                claimants.append(
                    Claimant(
                        deserved=quota.deserved,
                        most=demand.amount,
                        weight=quota.weight,
                        priority=tree.queues[name].priority,
                        age=tree.age[name],
                        whole=demand.whole,
                    )
                )
            for name, share in zip(names, divide(amount, claimants), strict=True):
                shares[Name(name, group)] = share
                levels.append((name, share))
    return shares


def divide(amount: Amount, claimants: Sequence[Claimant]) -> list[Amount]:
    """The shares, in order. They add up to `amount` at most, unless what is due alone is more."""
    shares = [one.due for one in claimants]
    left = amount - sum(shares)
    ran_out: int | None = None
    for priority in sorted({one.priority for one in claimants}, reverse=True):
        wanting = [place for place, one in enumerate(claimants) if one.priority == priority and one.weight > 0]
        while left > 0 and (wanting := [place for place in wanting if shares[place] < claimants[place].most]):
            weights = sum((claimants[place].weight for place in wanting), NOTHING)
            first = min(ratio(claimants[place].most - shares[place], claimants[place].weight) for place in wanting)
            step = min(first, ratio(left, weights))
            for place in wanting:
                shares[place] += step * claimants[place].weight
            left -= step * weights
            ran_out = priority
        if left <= 0:
            break
    return _rounded(shares, claimants, max(left, NOTHING), ran_out)


def _rounded(shares: list[Amount], claimants: Sequence[Claimant], left: Amount, ran_out: int | None) -> list[Amount]:
    """Whole GPUs for those that ask for nothing else; what that leaves goes to those that lost the most by it."""
    lost: dict[int, Amount] = {}
    for place, one in enumerate(claimants):
        above = shares[place] - one.due
        if one.whole and above != floor(above):
            lost[place] = above - floor(above)
            shares[place] -= lost[place]
    left += sum(lost.values(), NOTHING)
    able = [place for place, one in enumerate(claimants) if one.whole and one.weight > 0 and one.priority == ran_out]
    for place in sorted(able, key=lambda place: (-lost.get(place, NOTHING), claimants[place].age)):
        if left >= 1 and shares[place] + 1 <= claimants[place].most:
            shares[place] += 1
            left -= 1
    return shares


def _summed(tree: QueueTree, demands: Mapping[Name, Demand]) -> dict[Name, Demand]:
    """The demand of every queue, at most its limit; a parent's is the sum of its children's."""
    summed: dict[Name, Demand] = {}
    for queue in tree.from_the_leaves():
        for group in tree.groups:
            name = Name(queue, group)
            own = demands.get(name, Demand())
            parts = [own, *(summed[Name(child, group)] for child in tree.below(queue))]
            amount = sum((part.amount for part in parts), NOTHING)
            limit = tree.quota(queue, group).limit
            whole = all(part.whole for part in parts)
            summed[name] = Demand(amount if limit is None else min(amount, limit), whole)
    return summed
