"""Whether the queues let a pod that runs hold more of its devices.

Called where a share is resized. Invariants: growth never passes the limit of a queue on the pod's path, nor takes what
is not preemptible past what its queue deserves: the rules of an admission (`balance`).
"""

from __future__ import annotations

from collections.abc import Sequence

from allocations.engine.amounts import Held
from allocations.engine.queueing.balance import Balance
from allocations.engine.queueing.members import as_workloads
from allocations.engine.queueing.rounds import DecisionInput
from allocations.engine.queueing.workloads import Counting


def growth_refusal(known: DecisionInput, name: str, held: Sequence[Held]) -> str:
    """Why the running pod may not hold these amounts, empty where it may."""
    pods = as_workloads([one for one in known.running if not one.leaving or one.name == name], known.gangs)
    pod = next((one for one in pods if one.name == name), None)
    if pod is None:
        return "the queues do not know the pod yet"
    counting, balance = Counting(known.tree, known.snapshot), Balance(known.tree)
    for sort, counts in counting.sums([one for one in pods if not one.leaving]).items():
        balance.add(sort.queue, counts, preemptible=sort.preemptible)
    before, after = counting.held(pod.held), counting.held(held)
    for group in after:
        added = after[group] - before.get(group, 0)
        if added > 0:
            why = balance.refusal(pod.queue, group, added, preemptible=pod.preemptible, without={})
            if why:
                return why
    return ""
