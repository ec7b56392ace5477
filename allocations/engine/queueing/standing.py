"""Where things stand while a decision is made: devices, who holds them, what each queue has.

Invariants: `now` has only what is free at this moment; `later` also what leaving pods hold. A workload that is
admitted takes its devices in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

from allocations.engine.amounts import Held
from allocations.engine.patch import take, with_freed
from allocations.engine.queueing.balance import Balance
from allocations.engine.queueing.fair_share import Demand, fair_shares
from allocations.engine.queueing.placing import Labels, NoRoom, Placed, Placer
from allocations.engine.queueing.workloads import Counting, Counts, Running, Workload, asks_whole
from allocations.engine.snapshot import Snapshot
from claims.queue_tree import Group, Name, QueueTree


class Standing:
    """The picture, as it changes with each admission."""

    def __init__(
        self,
        tree: QueueTree,
        snapshot: Snapshot,
        running: Iterable[Running],
        waiting: Sequence[Workload],
        labels: Labels,
    ) -> None:
        self.tree = tree
        self.counting = Counting(tree, snapshot)
        self.balance = Balance(tree)
        self.placer = Placer(labels)
        self.running: dict[str, Running] = {}
        self.leaving: dict[str, Running] = {}
        self.counts: dict[str, Counts] = {}
        """What each running pod counts, by its name."""
        for pod in running:
            self.counts[pod.name] = self.counting.held(pod.held)
            if pod.leaving:
                self.leaving[pod.name] = pod
            else:
                self.running[pod.name] = pod
                self.balance.add(pod.queue, self.counts[pod.name], preemptible=pod.preemptible)
        self.now = snapshot
        self.later = with_freed(snapshot, [held for pod in self.leaving.values() for held in pod.held], ())
        self.asked = {one.name: self.counting.asked(one.members) for one in waiting}
        self.shares = fair_shares(tree, self.counting.pools, self._demands(waiting))
        self._models_of: dict[frozenset[Group], frozenset[int]] = {}

    def _demands(self, waiting: Iterable[Workload]) -> dict[Name, Demand]:
        parts: list[tuple[str, Counts, bool]] = [
            (pod.queue, self.counts[pod.name], pod.whole) for pod in self.running.values()
        ]
        parts += [(one.queue, self.asked[one.name], asks_whole(one.members)) for one in waiting]
        demands: dict[Name, Demand] = {}
        for queue, counts, whole in parts:
            for group, amount in counts.items():
                before = demands.get(Name(queue, group), Demand())
                demands[Name(queue, group)] = Demand(before.amount + amount, before.whole and whole)
        return demands

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

    def fits_now(self, workload: Workload, groups: Collection[Group]) -> Placed | NoRoom:
        """Seats on what is free at this moment."""
        return self.placer.place(self.now, workload, blocked=self.blocked(groups))

    def fits_later(self, workload: Workload, groups: Collection[Group], freed: Iterable[Held] = ()) -> Placed | NoRoom:
        """Seats once all that leave have gone, and those that hold `freed`."""
        snapshot = with_freed(self.later, freed, ())
        return self.placer.place(snapshot, workload, blocked=self.blocked(groups))

    def evict(self, pod: Running) -> None:
        """Count the pod as leaving."""
        del self.running[pod.name]
        self.leaving[pod.name] = pod
        self.balance.add(pod.queue, self.counts[pod.name], preemptible=pod.preemptible, sign=-1)
        self.later = with_freed(self.later, pod.held, ())

    def seat(self, workload: Workload, placed: Placed) -> None:
        """Take the seats, and count them in the workload's queue."""
        held = [
            (grant.device_id, grant.core_percent, grant.memory_bytes or 0)
            for seat in placed.seats
            for grant in seat.decision.grants
        ]
        self.now, self.later = take(self.now, held), take(self.later, held)
        self.balance.add(workload.queue, self.counting.held(held), preemptible=workload.preemptible)

    def holders(self, devices: Collection[int]) -> list[str]:
        """Leaving pods that hold any of the devices, by name."""
        return sorted(pod.name for pod in self.leaving.values() if any(device in devices for device, _, _ in pod.held))

    def share(self, queue: str, group: Group) -> Fraction:
        """The fair share."""
        return self.shares[Name(queue, group)]
