"""Admits claims over REST, which are workloads of their queue although they are no pods.

Called by `allocations.services`. A claim does not wait in line: it is decided about at once, among all that wait, and
holds its devices if it comes first. It cannot be evicted, so it stays within what its queue deserves, and nobody is
evicted for it. Invariants: a decision made before another admission holds nothing, and is made again by placement.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from allocations.engine.queueing.members import WaitingPod
from allocations.engine.queueing.rounds import decide
from allocations.engine.queueing.workloads import Age, Member
from allocations.ledger.hold import NewHold
from allocations.ledger.queue_fence import read_fence
from allocations.scheduling.placement import (
    Found,
    LostEveryRace,
    Placed,
    PlacementRequest,
    RefusedByQueues,
    hold_found,
    hold_one,
)
from allocations.scheduling.queueing.round_input import InputReader
from claims.membership import queue_of
from claims.queues import stored_queues


def place_in_queue(
    request: PlacementRequest, *, then: Callable[[uuid.UUID], object]
) -> Placed | RefusedByQueues | LostEveryRace:
    """As `placement.place`, with the queues' decision."""
    return hold_found(partial(_find, request), actor=request.actor, then=then)


def _find(request: PlacementRequest, lost: Collection[int]) -> Found | RefusedByQueues:
    holder, pod_request = request.holder, request.pod_request
    # the fence first: whatever is admitted from here on makes the hold fail
    fence, queues = read_fence(), stored_queues()
    queue = queue_of(pod_request.membership, holder.namespace, queues)
    waiting = _waiting(request, queue, queues.barred(queue, holder.namespace))
    inputs = InputReader().read((), also=waiting, without=lost)
    if problem := inputs.problems.get(holder.identity):
        return RefusedByQueues(problem, inputs.now)
    decided = decide(msgspec.structs.replace(inputs.decision_input, most=None))
    admission = next((one for one in decided.admissions if one.pod == holder.identity), None)
    if admission is None:
        why = decided.waiting[holder.identity]
        return RefusedByQueues(why.reason if why.decision is None else why.decision.summary, inputs.now)
    decision = admission.decision
    if admission.waits_for:
        count = len(admission.waits_for)
        who = "1 pod that holds" if count == 1 else f"{count} pods that hold"
        reason = f"waits for {who} the devices; none is evicted for it"
        return RefusedByQueues(reason, inputs.now)
    terms = pod_request.terms(holder, by_kubelet=decision.by_kubelet, actor=request.actor)
    hold = NewHold(terms, decision, pod_request.hold_seconds)
    return Found(decision, partial(hold_one, hold, fence=fence, now=inputs.now), inputs.now)


def _waiting(request: PlacementRequest, queue: str, barred: str) -> WaitingPod:
    pod_request = request.pod_request
    # as old as no other: it has just come
    age = Age(undated=True, created="", place=0)
    member = Member(request.holder.identity, pod_request.request, age)
    return WaitingPod(member, queue, pod_request.membership.priority, preemptible=False, barred=barred)
