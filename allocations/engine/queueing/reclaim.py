"""Selects the pods to evict for a workload that does not fit: reclaim across queues, preemption within one queue.

Reclaim is tried first, then preemption, then both together. The plan is complete before a pod is evicted; victims that
turn out to be unnecessary are removed from it. Invariants:
- Every victim is preemptible. A victim of the workload's own queue has a lower priority than the workload.
- Queues are compared by their ancestors just below the lowest common ancestor. Before each victim of another queue,
  that ancestor holds more than its fair share; or it holds more than it deserves, while the ancestor of the workload's
  queue holds at most what it deserves with the workload included.
- A workload that borrows idle GPUs may evict a pod that leaves its GPUs idle, whatever the shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from allocations.engine.queueing.decision_state import DecisionState
from allocations.engine.queueing.equal_pods import Placements
from allocations.engine.queueing.evictable import Mask, Victims
from allocations.engine.queueing.useful_devices import devices_that_help
from allocations.engine.queueing.workloads import Workload
from claims.queue_tree import TOP, Amount, Group, Name


class Means(StrEnum):
    """How devices are taken from others."""

    RECLAIM = "reclaim"
    PREEMPT = "preempt"


class EvictionPlan(msgspec.Struct, frozen=True):
    """The victims, each with the means, and the placements once they have gone."""

    victims: tuple[tuple[Victims, Means], ...]
    placed: Placements


Chosen = list[tuple[int, Means]]
"""Places of units."""


def plan_evictions(state: DecisionState, workload: Workload, groups: Sequence[Group]) -> EvictionPlan | None:
    """The plan for a workload, by the first group of models that has one; None where nothing would help."""
    for group in groups:
        for means in _allowed(state, workload, group):
            found = _Plan(state, workload, group, means).make()
            if found is not None:
                return found
    return None


def _allowed(state: DecisionState, workload: Workload, group: Group) -> Iterator[frozenset[Means]]:
    """The means to try in turn, without those that can find nobody, as can be told at once."""
    queue, amount = workload.queue, state.asked[workload.name].get(group, 0)
    within = state.balance.allocated[Name(queue, group)] + amount <= state.share(queue, group)
    if within or (workload.borrows_idle and state.any_idle):
        yield frozenset({Means.RECLAIM})
    if state.lowest_priority(queue) < workload.priority:
        yield frozenset({Means.PREEMPT})
        yield frozenset(Means)  # preemption may bring the queue below its fair share


class _Plan:
    """One attempt, with these means, counted by one group of models."""

    def __init__(self, state: DecisionState, workload: Workload, group: Group, means: Collection[Means]) -> None:
        self.state = state
        self.workload = workload
        self.group = group
        self.means = means
        self.amount = state.asked[workload.name].get(group, 0)
        self.evictable = evictable = state.evictable
        self.lent = evictable.idle if workload.borrows_idle else np.zeros_like(evictable.there)
        """[u] taken whatever the shares are."""
        self.able = self._able()
        """[u] could be taken, whoever goes before it."""
        devices = self._devices_that_help()
        self.has_room = bool(devices.any())
        """It could be placed if all of these had gone."""
        self.useful = self.able & evictable.on(devices)
        """[u] and holds devices that the workload could get then."""

    def make(self) -> EvictionPlan | None:
        """The plan, or None where these victims do not suffice."""
        if not self.has_room:
            return None
        limited = self._limited({})
        tree = self.state.tree
        lower = [name for name in self.evictable.queues if any(above in tree.paths[name] for above in limited)]
        left = np.flatnonzero(self.useful | (self.able & self.evictable.of_queues(lower))).tolist()
        chosen: Chosen = []
        freed: defaultdict[Name, Amount] = defaultdict(int)
        while (following := self._next(left, chosen, freed)) is not None:
            for place in (*self._above(following[0], chosen), following[0]):
                chosen.append((place, following[1]))
                self._count(place, freed)
                if place in left:
                    left.remove(place)
            placed = self._placed(chosen, freed)
            if placed is not None:
                return self._least(chosen, placed)
        return None

    def _able(self) -> Mask:
        evictable, state, workload = self.evictable, self.state, self.workload
        able = np.zeros_like(evictable.there)
        if Means.RECLAIM in self.means:
            able |= evictable.of_queues(name for name in evictable.queues if self._has_more(name)) | self.lent
        if Means.PREEMPT in self.means:
            able |= evictable.of_queues([workload.queue]) & (evictable.priority < workload.priority)
        able &= evictable.there & ~(evictable.outside & (evictable.priority > workload.priority))
        return able & self._counted(able) if self.amount and len(state.tree.groups) > 1 else able

    def _counted(self, able: Mask) -> Mask:
        """[u] those of `able` that hold GPUs of the group."""
        units, state = self.evictable.units, self.state
        found = np.zeros_like(able)
        for place in np.flatnonzero(able).tolist():
            found[place] = any(state.counts(pod).get(self.group) for pod in units[place].pods)
        return found

    def _has_more(self, queue: str) -> bool:
        """Whether another queue holds more than its fair share, or than it deserves, before anybody goes."""
        tree = self.state.tree
        if queue == self.workload.queue:
            return False
        victim = _below_common(tree.paths[self.workload.queue], tree.paths[queue])[1][-1]
        least = min(self.state.share(victim, self.group), tree.quota(victim, self.group).deserved)
        return self.state.balance.allocated[Name(victim, self.group)] > least

    def _devices_that_help(self) -> Mask:
        """[d] see `useful_devices`."""
        state = self.state
        snapshot = self.evictable.without(state.later, self.able)
        return devices_that_help(state.placer, snapshot, self.workload, blocked=state.blocked([self.group]))

    def _next(self, left: Sequence[int], chosen: Chosen, freed: Mapping[Name, Amount]) -> tuple[int, Means] | None:
        """The first that may be taken now and whose devices could help."""
        limited = self._limited(freed)
        lacks_devices = not limited or not self._fits(chosen)
        paths, units = self.state.tree.paths, self.evictable.units
        takes: dict[str, bool] = {}
        for place in left:
            unit = units[place]
            helps = lacks_devices and self.useful[place]
            if not helps and not any(above in paths[unit.queue] for above in limited):
                continue
            if unit.queue not in takes:
                takes[unit.queue] = self._may_take(unit.queue, freed)
            together = (*self._above(place, chosen), place)
            if all(self.able[one] and (takes[unit.queue] or self.lent[one]) for one in together):
                return place, self._means(place)
        return None

    def _means(self, place: int) -> Means:
        own = self.evictable.units[place].queue == self.workload.queue
        return Means.PREEMPT if own and not self.lent[place] else Means.RECLAIM

    def _above(self, place: int, chosen: Chosen) -> list[int]:
        """Members above `minMember` that are there still: they do not stay without the rest of their gang."""
        rest_of = self.evictable.units[place].rest_of
        if not rest_of:
            return []
        gone = {one for one, _ in chosen}
        return [one for one in self.evictable.above[rest_of] if self.evictable.there[one] and one not in gone]

    def _may_take(self, queue: str, freed: Mapping[Name, Amount]) -> bool:
        """Whether a unit of the queue may go after `freed`: in the same queue its priority has been looked at."""
        if queue == self.workload.queue:
            return True
        tree, allocated = self.state.tree, self.state.balance.allocated
        takers, theirs = _below_common(tree.paths[self.workload.queue], tree.paths[queue])

        def held(name: str) -> Amount:
            return allocated[Name(name, self.group)] - freed.get(Name(name, self.group), 0)

        share = self.state.share
        if any(held(above) + self.amount > share(above, self.group) for above in takers):
            return False
        taker, victim = takers[-1], theirs[-1]
        if held(victim) > share(victim, self.group):
            return True
        within = held(taker) + self.amount <= tree.quota(taker, self.group).deserved
        return within and held(victim) > tree.quota(victim, self.group).deserved

    def _limited(self, freed: Mapping[Name, Amount]) -> list[str]:
        return self.state.balance.limited(self.workload.queue, self.group, self.amount, without=freed)

    def _placed(self, chosen: Chosen, freed: Mapping[Name, Amount]) -> Placements | None:
        state, workload = self.state, self.workload
        if state.balance.refusal(
            workload.queue, self.group, self.amount, preemptible=workload.preemptible, without=freed
        ):
            return None
        return self._fits(chosen)

    def _fits(self, chosen: Chosen) -> Placements | None:
        """Placements once these have gone, whatever the limits."""
        held = [one for place, _ in chosen for pod in self.evictable.units[place].pods for one in pod.held]
        placed = self.state.fits_later(self.workload, [self.group], held)
        return placed if isinstance(placed, Placements) else None

    def _least(self, chosen: Chosen, placed: Placements) -> EvictionPlan:
        """Without those that need not go, the last chosen tried first."""
        units = self.evictable.units
        for one in reversed(tuple(chosen)):
            gangs = {units[other].rest_of for other, _ in chosen} - {""}
            if units[one[0]].above in gangs:
                continue
            fewer = [other for other in chosen if other is not one]
            freed = self._freed_if_allowed(fewer)
            if fewer and freed is not None and (found := self._placed(fewer, freed)) is not None:
                chosen, placed = fewer, found
        return EvictionPlan(tuple((units[place], means) for place, means in chosen), placed)

    def _freed_if_allowed(self, chosen: Chosen) -> Mapping[Name, Amount] | None:
        """What these free; None where one of them might not be taken after those before it."""
        freed: defaultdict[Name, Amount] = defaultdict(int)
        for place, _ in chosen:
            if not self.lent[place] and not self._may_take(self.evictable.units[place].queue, freed):
                return None
            self._count(place, freed)
        return freed

    def _count(self, place: int, freed: defaultdict[Name, Amount]) -> None:
        """Add what the unit holds to `freed`, for its queue and every ancestor."""
        for pod in self.evictable.units[place].pods:
            for above in self.state.tree.paths[pod.queue]:
                for group, amount in self.state.counts(pod).items():
                    freed[Name(above, group)] += amount


def _below_common(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both paths from the leaf up to just below the common ancestor."""
    common = next((above for above in one if above in other), TOP)
    return list(_until(one, common)), list(_until(other, common))


def _until(path: Sequence[str], end: str) -> Iterator[str]:
    for above in path:
        if above == end:
            return
        yield above
