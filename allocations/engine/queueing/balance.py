"""What each queue holds while a decision is made, and what its limits still allow.

Invariants: a queue's amount is that of all pods below it. Pods that are leaving do not count any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from allocations.engine.queueing.workloads import Counts
from claims.queue_tree import Amount, Group, Name, QueueTree, amount_text


class Balance:
    """Amounts by queue and group. `fixed`: those that are not preemptible."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.allocated: defaultdict[Name, Amount] = defaultdict(int)
        self.fixed: defaultdict[Name, Amount] = defaultdict(int)

    def add(self, queue: str, counts: Counts, *, preemptible: bool, sign: int = 1) -> None:
        """Count a pod, or with `sign` -1 no longer, in its queue and every ancestor."""
        for above in self.tree.paths[queue]:
            for group, amount in counts.items():
                name = Name(above, group)
                self.allocated[name] += sign * amount
                if not preemptible:
                    self.fixed[name] += sign * amount

    def refusal(
        self, queue: str, group: Group, amount: Amount, *, preemptible: bool, without: Mapping[Name, Amount]
    ) -> str:
        """Why the queue's entry does not let the amount in, empty where it does. `without`: what victims would free."""
        for above in self.tree.paths[queue]:
            name, quota = Name(above, group), self.tree.quota(above, group)
            held = self.allocated[name] - without.get(name, 0)
            if quota.limit is not None and held + amount > quota.limit:
                return (
                    f"queue {above} holds {amount_text(held)} of its limit of {amount_text(quota.limit)} {quota.text}"
                    + _wanted(held + amount - quota.limit, amount)
                )
            if not preemptible and self.fixed[name] + amount > quota.deserved:
                return (
                    f"queue {above} holds {amount_text(self.fixed[name])} of the {amount_text(quota.deserved)} "
                    f"{quota.text} that it deserves with pods that are not preemptible, and {amount_text(amount)} more "
                    "are asked for"
                )
        return ""

    def limited(self, queue: str, group: Group, amount: Amount, *, without: Mapping[Name, Amount]) -> list[str]:
        """The queues of the path whose limit the amount would pass. `without`: what victims would free."""
        passed = []
        for above in self.tree.paths[queue]:
            name, limit = Name(above, group), self.tree.quota(above, group).limit
            if limit is not None and self.allocated[name] - without.get(name, 0) + amount > limit:
                passed.append(above)
        return passed


def _wanted(over: Amount, amount: Amount) -> str:
    """What is asked for, where the queue still has room for less."""
    return f", and {amount_text(amount)} are asked for" if over != amount else ""


def summed(parts: Iterable[tuple[str, Counts]], tree: QueueTree) -> dict[Name, Amount]:
    """(queue, counts) of pods, summed for their queues and every ancestor."""
    sums: defaultdict[Name, Amount] = defaultdict(int)
    for queue, counts in parts:
        for above in tree.paths[queue]:
            for group, amount in counts.items():
                sums[Name(above, group)] += amount
    return dict(sums)
