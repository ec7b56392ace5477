"""One decision: which waiting workloads are admitted, which pods are evicted for them, and why the others wait.

Queues take turns, down the tree, by what they hold against their fair share; within a queue workloads go by priority
and age. Rules: docs/queues.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import total_ordering
from operator import attrgetter
from typing import Any, Final

import msgspec

from allocations.engine.decision import Decision
from allocations.engine.queueing.decision_state import DecisionState
from allocations.engine.queueing.equal_pods import Placements
from allocations.engine.queueing.ordinals import ordinal
from allocations.engine.queueing.placing import Labels
from allocations.engine.queueing.reclaim import EvictionPlan, Means, plan_evictions
from allocations.engine.queueing.workloads import Gang, Running, Workload
from allocations.engine.snapshot import Snapshot
from claims.queue_tree import REST, TOP, Amount, Group, Name, QueueTree, Quotient

UNSERVED: Final = frozenset({REST})
"""Where a workload waits that no group serves."""
NO_PART: Final = Quotient(0, 1)
"""Of nothing: queues that are due nothing are alike."""


class DecisionInput(msgspec.Struct, frozen=True):
    """What is decided upon. `labels` by node row; `gangs` by name."""

    tree: QueueTree
    snapshot: Snapshot
    running: tuple[Running, ...]
    waiting: tuple[Workload, ...]
    gangs: Mapping[str, Gang]
    labels: Labels
    most: int | None = None
    """So many pods are admitted, and the decision ends; the workloads that are left are neither admitted nor refused.
    """


class Admission(msgspec.Struct, frozen=True):
    """A pod that may go: its devices, and the pods that have to be gone before."""

    pod: str
    decision: Decision
    waits_for: tuple[str, ...] = ()


class Eviction(msgspec.Struct, frozen=True):
    """A pod that has to go. `taker`: the workload that gets its devices."""

    pod: str
    taker: str
    by: Means
    idle: bool = False
    """It left its GPUs idle."""


class Waiting(msgspec.Struct, frozen=True):
    """Why a workload waits. `decision`: the engine's, of a lone pod. `devices`: these are all that it lacks."""

    reason: str
    decision: Decision | None = None
    devices: bool = False


class QueueDecision(msgspec.Struct, frozen=True):
    """The decision. `waiting`: by workload; `shares` of the input; `allocated` and `snapshot` after all decisions."""

    admissions: tuple[Admission, ...]
    evictions: tuple[Eviction, ...]
    waiting: dict[str, Waiting]
    shares: dict[Name, Amount]
    allocated: dict[Name, Amount]
    snapshot: Snapshot


def decide(decision_input: DecisionInput) -> QueueDecision:
    """Decide until no workload can be admitted."""
    return _Round(decision_input).run()


@total_ordering
class _Turn(msgspec.Struct, frozen=True):
    """Whose turn it is: the smallest goes first."""

    key: tuple[Any, ...]
    head: Workload

    def __lt__(self, other: _Turn) -> bool:
        return self.key < other.key


class _Round:
    """The course of one decision."""

    def __init__(self, decision_input: DecisionInput) -> None:
        self.decision_input = decision_input
        self.tree = decision_input.tree
        self.state = DecisionState(
            decision_input.tree,
            decision_input.snapshot,
            decision_input.running,
            decision_input.waiting,
            decision_input.labels,
            decision_input.gangs,
        )
        self.behind = self._behind_gangs(decision_input.waiting)
        """Members above `minMember` of gangs that wait, by gang: they are admitted once it is complete."""
        self.lines = self._in_line(one for one in decision_input.waiting if one.above not in self.behind)
        self.ended: set[Name] = set()
        """Queues of strict order whose turn has ended."""
        self.turns: dict[Name, _Turn | None] = {}
        self.admissions: list[Admission] = []
        self.evictions: list[Eviction] = []
        self.waiting: dict[str, Waiting] = {}
        self.refused: dict[tuple[Any, ...], Waiting] = {}
        """Why workloads like this one wait, since the last admission."""
        self.rows_of_gang: defaultdict[str, list[int]] = defaultdict(list)
        """Node rows of the pods that were admitted, by gang."""

    def run(self) -> QueueDecision:
        """Take turns until every workload was admitted or refused."""
        while (head := self._head()) is not None:
            groups = self._leave_line(head)
            reason = self._admit(head, groups)
            self._forget(head.queue)
            if reason is None:
                self.refused.clear()
                self._bring_up(head)
                if self.decision_input.most is not None and len(self.admissions) >= self.decision_input.most:
                    break
                continue
            self._wait(head.name, reason)
            if self.tree.queues[head.queue].strict:
                self._end_turn(head.queue, groups)
            elif len(groups) == 1:
                self._refuse_alike(head, groups[0])
        return QueueDecision(
            tuple(self.admissions),
            tuple(self.evictions),
            self.waiting,
            self.state.shares,
            dict(self.state.balance.allocated),
            self.state.later,
        )

    @staticmethod
    def _behind_gangs(waiting: Sequence[Workload]) -> dict[str, list[Workload]]:
        above = {one.above for one in waiting if one.above}
        behind: dict[str, list[Workload]] = {one.name: [] for one in waiting if one.name in above}
        for one in waiting:
            if one.above in behind:
                behind[one.above].append(one)
        return behind

    def _in_line(self, waiting: Iterable[Workload]) -> defaultdict[Name, dict[str, Workload]]:
        """By queue and group of models, the last to go first; one that no group serves waits in that of the rest."""
        lines: defaultdict[Name, dict[str, Workload]] = defaultdict(dict)
        by_queue: defaultdict[str, list[Workload]] = defaultdict(list)
        asked = self.state.asked
        for one in waiting:
            by_queue[one.queue].append(one)
        for queue, some in by_queue.items():
            ordered = _last_to_first(some)
            for group in self.tree.groups:
                lines[Name(queue, group)] = {one.name: one for one in ordered if group in (asked[one.name] or UNSERVED)}
        return lines

    def _head(self) -> Workload | None:
        """The workload whose turn it is."""
        turn = min(filter(None, (self._best_below(TOP, group) for group in self.tree.groups)), default=None)
        return turn.head if turn is not None else None

    def _best_below(self, queue: str, group: Group) -> _Turn | None:
        """The turn of the best child."""
        return min(filter(None, (self._turn(child, group) for child in self.tree.below(queue))), default=None)

    def _turn(self, queue: str, group: Group) -> _Turn | None:
        """The queue's turn, with the first in a leaf's line, or the head of the best child."""
        name = Name(queue, group)
        if name not in self.turns:
            if self.tree.is_leaf(queue):
                line = self.lines[name]
                head = next(reversed(line.values())) if line else None
            else:
                best = self._best_below(queue, group)
                head = best.head if best is not None else None
            self.turns[name] = None if head is None else _Turn(self._key(queue, group, head), head)
        return self.turns[name]

    def _key(self, queue: str, group: Group, head: Workload) -> tuple[Any, ...]:
        """The rules (1) to (5) of the order."""
        held = self.state.balance.allocated[Name(queue, group)]
        after = held + self.state.asked[head.name].get(group, 0)
        share, deserved = self.state.share(queue, group), self.tree.quota(queue, group).deserved
        due = max(share, deserved)
        return (
            after > share,
            after > deserved,
            -self.tree.queues[queue].priority,
            not due,
            Quotient.of(after, due) if due else NO_PART,
            Quotient.of(held, due) if due else NO_PART,
            self.tree.age[queue],
            queue,
        )

    def _admit(self, workload: Workload, groups: Sequence[Group]) -> Waiting | None:
        """Admit the workload by these groups, those of its lines; the reason where it has to wait."""
        state = self.state
        if rows_of_gang := self.rows_of_gang.get(workload.above or workload.name):
            workload = msgspec.structs.replace(workload, beside=(*workload.beside, *rows_of_gang))
        alike = _alike(workload, groups)
        if alike in self.refused:
            return self.refused[alike]
        asked = state.asked[workload.name]
        if not asked:
            return self._place_or_why(workload, self.tree.groups)
        problems = {
            group: state.balance.refusal(
                workload.queue, group, asked[group], preemptible=workload.preemptible, without={}
            )
            for group in groups
        }
        open_to = [group for group, problem in problems.items() if not problem]
        no_room: Waiting | None = None
        if state.serve(open_to, workload):
            no_room = self._place_or_why(workload, open_to)
            if no_room is None:
                return None
        ordered = sorted(groups, key=lambda group: self._key(workload.queue, group, workload))
        eviction = plan_evictions(state, workload, ordered)
        if eviction is not None:
            self._evict_for(workload, eviction)
            return None
        behind = f"waits behind others in queue {workload.queue}"
        reason = no_room or Waiting(next(filter(None, problems.values()), behind))
        self.refused[alike] = reason
        return reason

    def _place_or_why(self, workload: Workload, groups: Sequence[Group]) -> Waiting | None:
        """Take what is free now, else what is coming free."""
        state = self.state
        placed = state.fits_now(workload, groups)
        if isinstance(placed, Placements):
            self._count_in(workload, placed, None)
            return None
        if state.leaving:
            later = state.fits_later(workload, groups)
            if isinstance(later, Placements):
                self._count_in(workload, later, state.holders)
                return None
        return Waiting(placed.reason, placed.decision, devices=True)

    def _evict_for(self, workload: Workload, plan: EvictionPlan) -> None:
        victims = [(pod, means) for unit, means in plan.victims for pod in unit.pods]
        for pod, means in victims:
            self.state.evict(pod)
            self._forget(pod.queue)
            self.evictions.append(Eviction(pod.name, workload.name, means, pod.idle))
        names = [pod.name for pod, _ in victims]
        self._count_in(workload, plan.placed, lambda devices: (*names, *self.state.holders(devices)))

    def _count_in(
        self, workload: Workload, placed: Placements, waits_for: Callable[[set[int]], Iterable[str]] | None
    ) -> None:
        """`waits_for`: devices → the pods that have to be gone before a pod may have them; None: all are free now."""
        for one in placed.pods:
            waits = waits_for({grant.device_id for grant in one.decision.grants}) if waits_for is not None else ()
            self.admissions.append(Admission(one.member.name, one.decision, tuple(sorted(set(waits)))))
            self.rows_of_gang[workload.above or workload.name].append(self.state.now.node_index[str(one.decision.node)])
        self.state.count_in(workload, placed, free_now=waits_for is None)

    def _refuse_alike(self, head: Workload, group: Group) -> None:
        """Refuse those right behind a workload that are like one that was refused.

        They ask for the same amount, so the turn is their queue's again, and again.
        """
        line, asked = self.lines[Name(head.queue, group)], self.state.asked
        amount, groups = asked[head.name], (group,)
        member, rules = head.members[0], _RULES(head)
        its_reason = self.refused.get(_alike(head, groups)) if _is_plain(head) else None
        gone = []
        for name, following in reversed(line.items()):
            first = following.members[0]
            same = first.request is member.request and first.rows is member.rows and _RULES(following) == rules
            if same and _is_plain(following):
                reason = its_reason  # as `_alike` says, without its keys for thousands
            elif following.above or asked[name] != amount:
                break
            else:
                reason = self.refused.get(_alike(following, groups))
            if reason is None:
                break
            gone.append(name)
            self._wait(name, reason)
        for name in gone:
            del line[name]

    def _leave_line(self, workload: Workload) -> list[Group]:
        """Take the workload out of its lines; the groups that it waited for."""
        lines = [(group, self.lines[Name(workload.queue, group)]) for group in self.tree.groups]
        return [group for group, line in lines if line.pop(workload.name, None) is not None]

    def _end_turn(self, queue: str, groups: Sequence[Group]) -> None:
        """StrictFIFO: nobody behind a workload that was refused goes, by the groups that it waited for."""
        for group in groups:
            name = Name(queue, group)
            self.ended.add(name)
            line = self.lines.pop(name)
            for place, one in enumerate(reversed(line.values()), start=2):
                if not any(one.name in self.lines[Name(queue, other)] for other in self.tree.groups):
                    self._wait(one.name, Waiting(f"{ordinal(place)} in queue {queue}"))

    def _wait(self, name: str, reason: Waiting) -> None:
        """Note why the workload waits, and with it its members above `minMember`."""
        self.waiting[name] = reason
        if name in self.behind:
            self.waiting |= {one.name: reason for one in self.behind.pop(name)}

    def _bring_up(self, gang: Workload) -> None:
        """The members above `minMember` of a gang that goes get in line."""
        for one in self.behind.pop(gang.name, ()):
            names = [Name(one.queue, group) for group in self.state.asked[one.name] or (REST,)]
            lines = [self.lines[name] for name in names if name not in self.ended]
            for line in lines:
                some = _last_to_first((*line.values(), one))
                line.clear()
                line.update((other.name, other) for other in some)
            if not lines:
                self._wait(one.name, Waiting(f"waits behind others in queue {one.queue}"))

    def _forget(self, queue: str) -> None:
        """Turns above this queue are worked out again."""
        for above in self.tree.paths[queue]:
            for group in self.tree.groups:
                self.turns.pop(Name(above, group), None)


def _alike(workload: Workload, groups: Sequence[Group]) -> tuple[Any, ...]:
    """What decides whether a workload can go, and why not: of a gang its name too, which its reason holds.

    Without its priority: who comes later in its queue has none that is higher, and may take from no more others.
    """
    if len(workload.members) == 1 and workload.topology is None:
        member = workload.members[0]
        return workload.queue, _RULES(workload), member.request, member.rows, *groups
    asks = tuple((member.request, member.rows) for member in workload.members)
    return workload.name, asks, *groups


def _is_plain(workload: Workload) -> bool:
    """Whether it is a pod by itself, of no gang."""
    return len(workload.members) == 1 and workload.topology is None and not workload.above


_RULES: Final = attrgetter("preemptible", "borrows_idle", "beside")
_AGE: Final = attrgetter("age", "name")
_ABOVE: Final = attrgetter("above")
_PRIORITY: Final = attrgetter("priority")


def _last_to_first(workloads: Iterable[Workload]) -> list[Workload]:
    """By priority, then pods above a `minMember` behind others, then by age and name.

    One sort by each: a key of our own for every workload takes three times as long.
    """
    ordered = sorted(workloads, key=_AGE, reverse=True)
    if any(map(_ABOVE, ordered)):
        ordered.sort(key=lambda one: bool(one.above), reverse=True)
    ordered.sort(key=_PRIORITY)
    return ordered
