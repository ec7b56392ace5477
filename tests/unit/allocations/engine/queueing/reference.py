"""The rules of queues once more, as plainly as they can be written: one node of equal GPUs, lone pods, one quota each.

Written from docs/queues.md and not from the engine, which is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor


@dataclass
class Q:
    """A queue; `parent` empty at the top. `limit` None: none."""

    name: str
    parent: str = ""
    deserved: int = 0
    limit: int | None = None
    weight: int = 1
    priority: int = 100
    strict: bool = False


@dataclass
class P:
    """A pod of `gpus` GPUs; `age` counts up, the oldest first."""

    name: str
    queue: str
    gpus: int
    priority: int
    age: int
    preemptible: bool = True


@dataclass
class World:
    """GPUs, queues oldest first, pods that run and that wait."""

    gpus: int
    queues: list[Q]
    running: list[P]
    waiting: list[P]
    admitted: list[str] = field(default_factory=list)
    evicted: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_name = {one.name: one for one in self.queues}
        self.held = list(self.running)
        self.shares = self._shares()

    def path(self, name: str) -> list[str]:
        """The queue and its ancestors."""
        found = []
        while name:
            found.append(name)
            name = self.by_name[name].parent
        return found

    def children(self, name: str) -> list[Q]:
        """Right below."""
        return [one for one in self.queues if one.parent == name]

    def holds(self, name: str, *, without: list[P] | None = None, fixed: bool = False) -> int:
        """GPUs of the queue and all below it."""
        gone = without or []
        return sum(
            one.gpus
            for one in self.held
            if name in self.path(one.queue) and one not in gone and not (fixed and one.preemptible)
        )

    def requested(self, name: str) -> int:
        """Allocated and waiting, at most the limits on the way up."""
        children = self.children(name)
        own = sum(one.gpus for one in [*self.running, *self.waiting] if one.queue == name)
        total = own + sum(self.requested(one.name) for one in children)
        limit = self.by_name[name].limit
        return total if limit is None else min(total, limit)

    def _shares(self) -> dict[str, Fraction]:
        shares: dict[str, Fraction] = {}

        def divide(parent: str, amount: Fraction) -> None:
            children = self.children(parent)
            want = {one.name: self.requested(one.name) for one in children}
            got = {one.name: Fraction(min(one.deserved, want[one.name])) for one in children}
            due = dict(got)
            left, last = amount - sum(got.values()), None
            for priority in sorted({one.priority for one in children}, reverse=True):
                while left > 0:
                    open_ = [
                        one
                        for one in children
                        if one.priority == priority and one.weight and got[one.name] < want[one.name]
                    ]
                    if not open_:
                        break
                    last = priority
                    weights = sum(one.weight for one in open_)
                    offered, spent = left, Fraction(0)
                    for one in open_:
                        part = min(offered * one.weight / weights, want[one.name] - got[one.name])
                        got[one.name] += part
                        spent += part
                    left -= spent
            lost = {}
            for one in children:
                above = got[one.name] - due[one.name]
                lost[one.name] = above - floor(above)
                got[one.name] -= lost[one.name]
            left = max(left, Fraction(0)) + sum(lost.values())
            able = [one for one in children if one.priority == last and one.weight]
            for one in sorted(able, key=lambda one: -lost[one.name]):  # stable: by age
                if left >= 1 and got[one.name] + 1 <= want[one.name]:
                    got[one.name] += 1
                    left -= 1
            for one in children:
                shares[one.name] = got[one.name]
                divide(one.name, got[one.name])

        divide("", Fraction(self.gpus))
        return shares

    def run(self) -> World:
        """Decide until nobody is left."""
        left = list(self.waiting)
        while left:
            head = self._head(left)
            left.remove(head)
            if not self._admit(head) and self.by_name[head.queue].strict:
                left = [one for one in left if one.queue != head.queue]
        return self

    def _head(self, left: list[P]) -> P:
        name = ""
        while self.children(name):
            some = [one for one in self.children(name) if self._first(one.name, left) is not None]
            name = min(some, key=lambda one: self._key(one, left)).name
        found = self._first(name, left)
        assert found is not None
        return found

    def _first(self, name: str, left: list[P]) -> P | None:
        """The pod that has the turn if the queue has."""
        children = self.children(name)
        if not children:
            own = [one for one in left if one.queue == name]
            return min(own, key=lambda one: (-one.priority, one.age), default=None)
        some = [one for one in children if self._first(one.name, left) is not None]
        return self._first(min(some, key=lambda one: self._key(one, left)).name, left) if some else None

    def _key(self, queue: Q, left: list[P]) -> tuple[object, ...]:
        head = self._first(queue.name, left)
        assert head is not None
        held, share = self.holds(queue.name), self.shares[queue.name]
        after, due = held + head.gpus, max(share, Fraction(queue.deserved))
        return (
            after > share,
            after > queue.deserved,
            -queue.priority,
            after / due if due else float("inf"),
            held / due if due else float("inf"),
            self.queues.index(queue),
        )

    def _lets_in(self, pod: P, without: list[P]) -> bool:
        for name in self.path(pod.queue):
            queue = self.by_name[name]
            if queue.limit is not None and self.holds(name, without=without) + pod.gpus > queue.limit:
                return False
            if not pod.preemptible and self.holds(name, fixed=True) + pod.gpus > queue.deserved:
                return False
        return True

    def _fits(self, pod: P, without: list[P]) -> bool:
        return sum(one.gpus for one in self.held if one not in without) + pod.gpus <= self.gpus

    def _admit(self, pod: P) -> bool:
        victims: list[tuple[P, str]] | None = [] if self._lets_in(pod, []) and self._fits(pod, []) else None
        for means in ({"reclaim"}, {"preempt"}, {"reclaim", "preempt"}):
            if victims is None:
                victims = self._victims(pod, means)
        if victims is None:
            return False
        for one, by in victims:
            self.held.remove(one)
            self.evicted.append((one.name, pod.name, by))
        self.held.append(pod)
        self.admitted.append(pod.name)
        return True

    def _victims(self, pod: P, means: set[str]) -> list[tuple[P, str]] | None:
        chosen: list[tuple[P, str]] = []
        able = [one for one in self.running if one in self.held and one.preemptible]
        able.sort(key=lambda one: (one.priority, -one.age))
        while True:
            gone = [one for one, _ in chosen]
            if chosen and self._lets_in(pod, gone) and self._fits(pod, gone):
                break
            found = next((one for one in able if one not in gone and self._helps(pod, one, gone, means)), None)
            if found is None:
                return None
            chosen.append((found, "preempt" if found.queue == pod.queue else "reclaim"))
        for one in list(reversed(chosen)):
            fewer = [other for other in chosen if other is not one]
            gone = [other for other, _ in fewer]
            allowed = all(self._may(pod, other, gone[:place], means) for place, other in enumerate(gone))
            if fewer and allowed and self._lets_in(pod, gone) and self._fits(pod, gone):
                chosen = fewer
        return chosen

    def _helps(self, pod: P, victim: P, gone: list[P], means: set[str]) -> bool:
        passed = [
            name
            for name in self.path(pod.queue)
            if (limit := self.by_name[name].limit) is not None and self.holds(name, without=gone) + pod.gpus > limit
        ]
        brings_down = any(name in self.path(victim.queue) for name in passed)
        return (brings_down or not self._fits(pod, gone)) and self._may(pod, victim, gone, means)

    def _may(self, pod: P, victim: P, gone: list[P], means: set[str]) -> bool:
        if victim.queue == pod.queue:
            return "preempt" in means and victim.priority < pod.priority
        if "reclaim" not in means:
            return False
        mine, theirs = self.path(pod.queue), self.path(victim.queue)
        takers = [name for name in mine if name not in theirs]
        victims = [name for name in theirs if name not in mine]
        if any(self.holds(name, without=gone) + pod.gpus > self.shares[name] for name in takers):
            return False
        taker, other = self.by_name[takers[-1]], self.by_name[victims[-1]]
        holds = self.holds(other.name, without=gone)
        within = self.holds(taker.name, without=gone) + pod.gpus <= taker.deserved
        return holds > self.shares[other.name] or (within and holds > other.deserved)
