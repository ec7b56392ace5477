"""Everybody who may be evicted, in the order in which they would be: once for a decision, as columns.

Made by `decision_state`, read by `reclaim`. Invariants: each pod is in one unit; a unit whose pods are evicted is not
offered again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from allocations.engine.patch import with_less
from allocations.engine.queueing.members import split_gang
from allocations.engine.queueing.workloads import Gang, Running

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot

Mask = NDArray[np.bool_]


class Victims(msgspec.Struct, frozen=True):
    """Pods that go together: one above a gang's `minMember`, a lone pod, or what is left of a gang."""

    pods: tuple[Running, ...]
    queue: str
    priority: int
    rest_of: str = ""
    """The gang whose last members these are."""

    def rank(self) -> tuple[object, ...]:
        """Orders victims: the lowest priority, then members above `minMember`, then the newest.

        A workload is as old as its oldest pod.
        """
        return self.priority, not self.above, _Newest(min(pod.age for pod in self.pods))

    @property
    def above(self) -> str:
        """The gang above whose `minMember` it is, empty where it is not."""
        return self.pods[0].gang if not self.rest_of else ""


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


class Evictable:
    """The units, by place. [u] columns are of units, [e] of what they hold."""

    def __init__(self, running: Iterable[Running], gangs: Mapping[str, Gang], snapshot: Snapshot) -> None:
        self.units = _units(running, gangs)
        self._place = {pod.name: place for place, one in enumerate(self.units) for pod in one.pods}
        self.there = np.ones(len(self.units), np.bool_)
        """[u] it has not gone yet."""
        self.queues = {name: code for code, name in enumerate(dict.fromkeys(one.queue for one in self.units))}
        self._queue = np.array([self.queues[one.queue] for one in self.units], np.int64)
        self.priority = np.array([one.priority for one in self.units], np.int64)
        self.idle = np.array([all(pod.idle for pod in one.pods) for one in self.units], np.bool_)
        self.outside = np.array([any(pod.outside for pod in one.pods) for one in self.units], np.bool_)
        self.above: defaultdict[str, list[int]] = defaultdict(list)
        """Places of members above `minMember`, by gang."""
        for place, one in enumerate(self.units):
            if one.above:
                self.above[one.above].append(place)
        held = [(place, *amounts) for place, one in enumerate(self.units) for pod in one.pods for amounts in pod.held]
        rows = snapshot.index.rows_of([one[1] for one in held])
        known = rows >= 0
        self._rows = rows[known]
        self._unit, self._core, self._memory = (
            np.array([one[at] for one in held], np.int64)[known] for at in (0, 2, 3)
        )

    def gone(self, pod: Running) -> None:
        """The pod is not offered any more."""
        if (place := self._place.get(pod.name)) is not None:
            self.there[place] = False

    def of_queues(self, names: Iterable[str]) -> Mask:
        """[u] in one of these queues."""
        codes = [self.queues[name] for name in names if name in self.queues]
        return np.isin(self._queue, codes)

    def without(self, snapshot: Snapshot, units: Mask) -> Snapshot:
        """The snapshot once these have gone."""
        chosen = units[self._unit]
        return with_less(snapshot, self._rows[chosen], self._core[chosen], self._memory[chosen])

    def on(self, devices: Mask) -> Mask:
        """[u] holds one of these devices. `devices`: [d]."""
        found = np.zeros(len(self.units), np.bool_)
        found[self._unit[devices[self._rows]]] = True
        return found


def _units(running: Iterable[Running], gangs: Mapping[str, Gang]) -> list[Victims]:
    """All that may be evicted, in the order in which it would be."""
    units: list[Victims] = []
    members: defaultdict[str, list[Running]] = defaultdict(list)
    for pod in running:
        if pod.gang:
            members[pod.gang].append(pod)
        elif _may_go(pod):
            units.append(Victims((pod,), pod.queue, pod.priority))
    for name, pods in members.items():
        rest, above = split_gang(pods, gangs.get(name))
        units += [Victims((pod,), pod.queue, pod.priority) for pod in above if _may_go(pod)]
        if all(map(_may_go, pods)):
            units.append(Victims(tuple(rest), rest[0].queue, max(pod.priority for pod in rest), rest_of=name))
    return sorted(units, key=lambda unit: unit.rank())


def _may_go(pod: Running) -> bool:
    return pod.preemptible and pod.movable
