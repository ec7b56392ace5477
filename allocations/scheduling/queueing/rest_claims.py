"""Admits claims over REST, which are workloads of their queue although they are no pods.

Called by `allocations.services`. A claim does not wait in line: it is decided about at once, among all that wait, and
holds its devices if it is its turn. It cannot be evicted, so it stays within what its queue deserves, and nobody is
evicted for it. Invariants: a decision made before another admission holds nothing, and is made again.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

import msgspec

from access.errors import DoesNotFit
from allocations.engine.queueing.members import WaitingPod
from allocations.engine.queueing.rounds import decide
from allocations.engine.queueing.workloads import Age, Member
from allocations.errors import LostRace, MovedOn
from allocations.ledger.hold import NewHold, hold_together
from allocations.ledger.holder import Holder
from allocations.ledger.queue_turns import read_fence
from allocations.pod_request import PodRequest
from allocations.scheduling.queueing.picture import Painter
from claims.membership import queue_of
from claims.queues import stored_queues

TRIES: Final = 12


def admit_claim(holder: Holder, asks: PodRequest, *, actor: str) -> tuple[uuid.UUID, datetime]:
    """Hold devices for the claim; the allocation, and when. Raises DoesNotFit with the queues' reason."""
    for _ in range(TRIES):
        fence, queues = read_fence(), stored_queues()
        queue = queue_of(asks.membership, holder.namespace, queues)
        picture = Painter().picture((), also=_waiting(holder, asks, queue, queues.barred(queue, holder.namespace)))
        if problem := picture.problems.get(holder.identity):
            raise DoesNotFit(problem)
        answer = decide(msgspec.structs.replace(picture.question, most=None))
        admission = next((one for one in answer.admissions if one.pod == holder.identity), None)
        if admission is None:
            why = answer.waiting[holder.identity]
            raise DoesNotFit(why.reason if why.decision is None else why.decision.summary)
        if admission.waits_for:
            raise DoesNotFit(f"waits for {len(admission.waits_for)} pods that hold the devices; none is evicted for it")
        terms = asks.terms(holder, by_kubelet=admission.decision.by_kubelet, actor=actor)
        try:
            (made,) = hold_together(
                [NewHold(terms, admission.decision, asks.hold_seconds)], fence=fence, now=picture.now
            )
        except (LostRace, MovedOn):
            continue
        return made, picture.now
    raise DoesNotFit("others took the devices first, again and again")


def _waiting(holder: Holder, asks: PodRequest, queue: str, barred: str) -> WaitingPod:
    # as old as no other: it has just come
    age = Age(undated=True, created="", place=0)
    member = Member(holder.identity, asks.request, age)
    return WaitingPod(member, queue, asks.membership.priority, preemptible=False, barred=barred)
