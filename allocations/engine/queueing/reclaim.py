"""Who has to go for a workload that does not fit: reclaim across queues, preemption within one.

Reclaim is tried first, then preemption, then both together. The plan is made whole before anybody is evicted, and
whoever need not go is taken off it again. Invariants: no victim that is not preemptible; before each victim of another
queue, that queue (the ancestor just below the common one) is above its fair share, or above its deserved while the
taker's stays within; a victim of the same queue has a lower priority. A pod that leaves its GPUs idle may be taken by a
workload that borrows such, whatever the shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from allocations.engine.queueing.balance import summed
from allocations.engine.queueing.placing import Placed
from allocations.engine.queueing.standing import Standing
from allocations.engine.queueing.workloads import Gang, Running, Workload
from claims.queue_tree import TOP, Amount, Group, Name


class Means(StrEnum):
    """How devices are taken from others."""

    RECLAIM = "reclaim"
    PREEMPT = "preempt"


class Victims(msgspec.Struct, frozen=True):
    """Pods that go together: one above a gang's `minMember`, a lone pod, or what is left of a gang."""

    pods: tuple[Running, ...]
    queue: str
    priority: int
    rest_of: str = ""
    """The gang whose last members these are."""

    def rank(self) -> tuple[object, ...]:
        """Orders victims: the lowest priority, then members above `minMember`, then the newest."""
        newest = max(pod.age for pod in self.pods)
        return self.priority, not self._is_extra, _Newest(newest)

    @property
    def _is_extra(self) -> bool:
        return len(self.pods) == 1 and bool(self.pods[0].gang) and not self.rest_of


class _Newest:
    """Orders ages, the newest first."""

    def __init__(self, age: tuple[object, ...]) -> None:
        self.age = age

    def __lt__(self, other: _Newest) -> bool:
        return self.age > other.age

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Newest) and self.age == other.age

    def __hash__(self) -> int:
        return hash(self.age)


class EvictionPlan(msgspec.Struct, frozen=True):
    """The victims, each with the means, and the seats once they have gone."""

    victims: tuple[tuple[Victims, Means], ...]
    placed: Placed


def plan_evictions(
    standing: Standing, workload: Workload, groups: Sequence[Group], gangs: Mapping[str, Gang]
) -> EvictionPlan | None:
    """The plan for a workload, by the first group of models that has one; None where nothing would help."""
    units: list[Victims] | None = None
    for group in groups:
        for means in _allowed(standing, workload, group):
            units = _units(standing.running.values(), gangs) if units is None else units
            found = _Plan(standing, workload, group, means).make(units)
            if found is not None:
                return found
    return None


def _allowed(standing: Standing, workload: Workload, group: Group) -> Iterator[frozenset[Means]]:
    """The means to try in turn, without those that can find nobody, as can be told at once."""
    queue, amount = workload.queue, standing.asked[workload.name].get(group, 0)
    within = standing.balance.allocated[Name(queue, group)] + amount <= standing.share(queue, group)
    if within or (workload.borrows_idle and standing.any_idle):
        yield frozenset({Means.RECLAIM})
    if standing.lowest_priority(queue) < workload.priority:
        yield frozenset({Means.PREEMPT})
        yield frozenset(Means)  # preemption may bring the queue below its fair share


def _units(running: Iterable[Running], gangs: Mapping[str, Gang]) -> list[Victims]:
    """All that may be evicted, in the order in which it would be."""
    units: list[Victims] = []
    members: defaultdict[str, list[Running]] = defaultdict(list)
    for pod in running:
        if pod.gang:
            members[pod.gang].append(pod)
        elif pod.preemptible:
            units.append(Victims((pod,), pod.queue, pod.priority))
    for name, pods in members.items():
        oldest = sorted(pods, key=lambda pod: pod.age)
        least = gangs[name].min_member if name in gangs else len(pods)
        units += [Victims((pod,), pod.queue, pod.priority) for pod in oldest[least:] if pod.preemptible]
        rest = oldest[:least]
        if all(pod.preemptible for pod in oldest):
            units.append(Victims(tuple(rest), rest[0].queue, max(pod.priority for pod in rest), rest_of=name))
    return sorted(units, key=lambda unit: unit.rank())


class _Plan:
    """One attempt, with these means, counted by one group of models."""

    def __init__(self, standing: Standing, workload: Workload, group: Group, means: Collection[Means]) -> None:
        self.standing = standing
        self.workload = workload
        self.group = group
        self.means = means
        self.amount = standing.asked[workload.name].get(group, 0)

    def make(self, units: Sequence[Victims]) -> EvictionPlan | None:
        """The plan, or None where these victims do not suffice."""
        chosen: list[tuple[Victims, Means]] = []
        left = list(units)
        while (following := self._next(left, chosen)) is not None:
            for unit in (*_above(following[0], left), following[0]):
                chosen.append((unit, following[1]))
                left.remove(unit)
            placed = self._placed(chosen)
            if placed is not None:
                return self._least(chosen, placed)
        return None

    def _next(self, left: Sequence[Victims], chosen: Sequence[tuple[Victims, Means]]) -> tuple[Victims, Means] | None:
        """The first that may be taken now and whose devices could help."""
        freed = self._freed(chosen)
        limited = self.standing.balance.limited(self.workload.queue, self.group, self.amount, without=freed)
        lacks_devices = not limited or not self._fits(chosen)
        for unit in left:
            means = Means.PREEMPT if unit.queue == self.workload.queue and not self._is_lent(unit) else Means.RECLAIM
            if means not in self.means or not self._helps(unit, limited, lacks_devices=lacks_devices):
                continue
            if all(self._may_take(one, means, freed) for one in (*_above(unit, left), unit)):
                return unit, means
        return None

    def _helps(self, unit: Victims, limited: Collection[str], *, lacks_devices: bool) -> bool:
        """Whether what the unit holds brings a limit down, or is where the workload may stand."""
        standing = self.standing
        if self.amount and not any(standing.counts(pod).get(self.group) for pod in unit.pods):
            return False
        if any(above in standing.tree.paths[unit.queue] for above in limited):
            return True
        rows = [member.rows for member in self.workload.members]
        return lacks_devices and any(one is None or any(pod.row in one for pod in unit.pods) for one in rows)

    def _may_take(self, unit: Victims, means: Means, freed: Mapping[Name, Amount]) -> bool:
        if any(pod.outside and pod.priority > self.workload.priority for pod in unit.pods):
            return False
        if self._is_lent(unit):
            return True
        if means is Means.PREEMPT:
            return unit.priority < self.workload.priority
        tree, allocated = self.standing.tree, self.standing.balance.allocated
        takers, theirs = _below_common(tree.paths[self.workload.queue], tree.paths[unit.queue])

        def held(queue: str) -> Amount:
            name = Name(queue, self.group)
            return allocated[name] - freed.get(name, 0)

        share = self.standing.share
        if any(held(above) + self.amount > share(above, self.group) for above in takers):
            return False
        taker, victim = takers[-1], theirs[-1]
        if held(victim) > share(victim, self.group):
            return True
        within = held(taker) + self.amount <= tree.quota(taker, self.group).deserved
        return within and held(victim) > tree.quota(victim, self.group).deserved

    def _is_lent(self, unit: Victims) -> bool:
        return self.workload.borrows_idle and all(pod.idle for pod in unit.pods)

    def _placed(self, chosen: Sequence[tuple[Victims, Means]]) -> Placed | None:
        standing, workload = self.standing, self.workload
        freed = self._freed(chosen)
        if standing.balance.refusal(
            workload.queue, self.group, self.amount, preemptible=workload.preemptible, without=freed
        ):
            return None
        return self._fits(chosen)

    def _fits(self, chosen: Sequence[tuple[Victims, Means]]) -> Placed | None:
        """Seats once these have gone, whatever the limits."""
        held = [one for pod in _pods(chosen) for one in pod.held]
        placed = self.standing.fits_later(self.workload, [self.group], held)
        return placed if isinstance(placed, Placed) else None

    def _least(self, chosen: list[tuple[Victims, Means]], placed: Placed) -> EvictionPlan:
        """Without those that need not go, the last chosen tried first."""
        for one in reversed(tuple(chosen)):
            unit = one[0]
            gangs = {other.rest_of for other, _ in chosen} - {""}
            if not unit.rest_of and unit.pods[0].gang in gangs:
                continue
            fewer = [other for other in chosen if other is not one]
            if fewer and self._all_allowed(fewer) and (found := self._placed(fewer)) is not None:
                chosen, placed = fewer, found
        return EvictionPlan(tuple(chosen), placed)

    def _all_allowed(self, chosen: Sequence[tuple[Victims, Means]]) -> bool:
        """Whether each might still be taken after those before it."""
        return all(
            self._may_take(unit, means, self._freed(chosen[:place])) for place, (unit, means) in enumerate(chosen)
        )

    def _freed(self, chosen: Sequence[tuple[Victims, Means]]) -> dict[Name, Amount]:
        parts = [(pod.queue, self.standing.counts(pod)) for pod in _pods(chosen)]
        return summed(parts, self.standing.tree)


def _above(unit: Victims, left: Sequence[Victims]) -> list[Victims]:
    """Members above `minMember` that are there still: they do not stay without the rest of their gang."""
    return [one for one in left if unit.rest_of and one is not unit and one.pods[0].gang == unit.rest_of]


def _pods(chosen: Iterable[tuple[Victims, Means]]) -> Iterator[Running]:
    return (pod for unit, _ in chosen for pod in unit.pods)


def _below_common(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both paths from the leaf up to just below the common ancestor."""
    common = next((above for above in one if above in other), TOP)
    return list(_until(one, common)), list(_until(other, common))


def _until(path: Sequence[str], end: str) -> Iterator[str]:
    for above in path:
        if above == end:
            return
        yield above
