"""The state of a decision while it is made: devices, who holds them, what each queue has.

Invariants: `now` has only what is free at this moment; `later` also what leaving pods hold. A workload that is
admitted takes its devices in both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from allocations.engine.amounts import Held
from allocations.engine.patch import take, with_freed
from allocations.engine.queueing.balance import Balance
from allocations.engine.queueing.equal_pods import Placements
from allocations.engine.queueing.evictable import Evictable
from allocations.engine.queueing.fair_share import Demand, fair_shares
from allocations.engine.queueing.members import as_workloads
from allocations.engine.queueing.placing import Labels, NoRoom, Placer
from allocations.engine.queueing.workloads import Counting, Counts, Gang, Running, Sort, Workload, asks_whole
from allocations.engine.snapshot import Snapshot
from claims.queue_tree import Amount, Group, Name, QueueTree


class DecisionState:
    """The decision's input, as each admission changes it."""

    def __init__(
        self,
        tree: QueueTree,
        snapshot: Snapshot,
        running: Sequence[Running],
        waiting: Sequence[Workload],
        labels: Labels,
        gangs: Mapping[str, Gang],
    ) -> None:
        self.tree = tree
        self._gangs = gangs
        self.counting = Counting(tree, snapshot)
        self.balance = Balance(tree)
        self.placer = Placer(labels)
        self.leaving = {pod.name: pod for pod in running if pod.leaving}
        staying = [pod for pod in running if not pod.leaving] if self.leaving else running
        self._staying = as_workloads(staying, gangs)
        sums = self.counting.sums(self._staying)
        self._lowest: dict[str, int] = {}
        for sort, counts in sums.items():
            self.balance.add(sort.queue, counts, preemptible=sort.preemptible)
            self._lowest[sort.queue] = min(sort.priority, self._lowest.get(sort.queue, sort.priority))
        self.now = snapshot
        coming = [held for pod in self.leaving.values() for held in pod.held]
        self.later = with_freed(snapshot, coming, ()) if coming else snapshot
        self.asked = {one.name: self.counting.asked(one.members) for one in waiting}
        self.shares = fair_shares(tree, self.counting.pools, self._demands(waiting, sums))
        self._models_of: dict[frozenset[Group], frozenset[int]] = {}
        self._counts: dict[str, Counts] = {}
        self._no_room: dict[tuple[object, ...], NoRoom] = {}
        """Of lone pods by what decides it: no admission makes room."""

    @cached_property
    def evictable(self) -> Evictable:
        """Everybody who may be evicted. Made when somebody has to go: it takes longer than other decisions."""
        return Evictable(self._staying, self._gangs, self.now)

    @cached_property
    def any_idle(self) -> bool:
        """Whether any pod leaves its GPUs idle."""
        return any(pod.idle for pod in self._staying)

    def lowest_priority(self, queue: str) -> float:
        """Of the pods that run in the queue; above every priority where there are none. It may have gone since."""
        return self._lowest.get(queue, float("inf"))

    def _demands(self, waiting: Sequence[Workload], sums: Mapping[Sort, Counts]) -> dict[Name, Demand]:
        parts = [(sort.queue, counts, sort.whole, 1) for sort, counts in sums.items()]
        lone = Counter((one.queue, one.members[0].request) for one in waiting if len(one.members) == 1)
        parts += [
            (queue, self.counting.asked_by(request), asks_whole(request), number)
            for (queue, request), number in lone.items()
        ]
        parts += [
            (one.queue, self.asked[one.name], all(asks_whole(member.request) for member in one.members), 1)
            for one in waiting
            if len(one.members) != 1
        ]
        amounts: defaultdict[Name, Amount] = defaultdict(int)
        shared: set[Name] = set()
        for queue, counts, whole, number in parts:
            for group, amount in counts.items():
                amounts[Name(queue, group)] += number * amount
                if not whole:
                    shared.add(Name(queue, group))
        return {name: Demand(amount, name not in shared) for name, amount in amounts.items()}

    def counts(self, pod: Running) -> Counts:
        """What a running pod counts."""
        if pod.name not in self._counts:
            self._counts[pod.name] = self.counting.held(pod.held)
        return self._counts[pod.name]

    def blocked(self, groups: Collection[Group]) -> frozenset[int]:
        """Ids of the GPUs of other groups."""
        allowed = frozenset(groups)
        if len(allowed) == len(self.tree.groups):
            return frozenset()
        if allowed not in self._models_of:
            ids, counting = self.now.device_id.tolist(), self.counting
            self._models_of[allowed] = frozenset(
                ids[row] for row, group in enumerate(counting.group_of) if counting.is_gpu[row] and group not in allowed
            )
        return self._models_of[allowed]

    def serve(self, groups: Collection[Group], workload: Workload) -> bool:
        """Whether these groups serve each of its pods that any group serves."""
        asked_by = self.counting.asked_by
        asks = (asked_by(member.request) for member in workload.members)
        return all(not counts or any(group in groups for group in counts) for counts in asks)

    def fits_now(self, workload: Workload, groups: Collection[Group]) -> Placements | NoRoom:
        """Placements on what is free at this moment."""
        key = (workload.members[0].request, workload.members[0].rows, frozenset(groups))
        lone = len(workload.members) == 1 and workload.topology is None and not workload.beside
        if lone and key in self._no_room:
            return self._no_room[key]
        placed = self.placer.place(self.now, workload, blocked=self.blocked(groups))
        if lone and isinstance(placed, NoRoom):
            self._no_room[key] = placed
        return placed

    def fits_later(
        self, workload: Workload, groups: Collection[Group], freed: Iterable[Held] = ()
    ) -> Placements | NoRoom:
        """Placements once all that leave have gone, and those that hold `freed`."""
        snapshot = with_freed(self.later, freed, ())
        return self.placer.place(snapshot, workload, blocked=self.blocked(groups))

    def evict(self, pod: Running) -> None:
        """Count the pod as leaving."""
        self.evictable.gone(pod)
        self.leaving[pod.name] = pod
        self.balance.add(pod.queue, self.counts(pod), preemptible=pod.preemptible, sign=-1)
        self.later = with_freed(self.later, pod.held, ())

    def count_in(self, workload: Workload, placed: Placements, *, free_now: bool) -> None:
        """Take the placements, and count them in the workload's queue. `free_now`: `fits_now` has found them."""
        held = [
            (grant.device_id, grant.core_percent, grant.memory_bytes or 0)
            for one in placed.pods
            for grant in one.decision.grants
        ]
        alone = self.later is self.now
        self.now = placed.snapshot if free_now else take(self.now, held)
        self.later = self.now if alone else take(self.later, held)
        self.balance.add(workload.queue, self.counting.held(held), preemptible=workload.preemptible)

    def holders(self, devices: Collection[int]) -> list[str]:
        """Leaving pods that hold any of the devices, by name."""
        return sorted(pod.name for pod in self.leaving.values() if any(device in devices for device, _, _ in pod.held))

    def share(self, queue: str, group: Group) -> Amount:
        """The fair share."""
        return self.shares[Name(queue, group)]
