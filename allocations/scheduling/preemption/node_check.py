"""Checks one node before pods are evicted there, by the pods that the API server lists on it and the ledger's rows.

Called by `nominate` and `preempt_response`. Invariants: a pod that is being deleted is never a victim, and if its
devices suffice there are no victims; devices reserved for pods of the same or a higher priority are not used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from allocations import fleet
from allocations.choices import LIVE, State
from allocations.engine.victims import EvictionPlan, EvictionQuery, Holding, eviction_on
from allocations.models import Allocation
from allocations.scheduling.preemption.candidates import held_by, holdings
from allocations.scheduling.preemption.reservations import Preemptor, devices_of, victims_of
from allocations.scheduling.release_ended import Ended, release_finished
from claims.admission.counted import counted_amount
from nodes.models import PreemptionReservation


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """`eviction` None: the devices do not suffice whichever pods are evicted. `pods`: the largest amount of
    `gpu.scheduling/pods` with which kube-scheduler refuses the pod. `leaving`: pods of the node are being deleted.

    `evictable`: pods that may be evicted; `known`: UIDs of these, of pods being deleted, and of other pods' victims.
    """

    question: EvictionQuery
    eviction: EvictionPlan | None
    evictable: tuple[Holding, ...]
    known: frozenset[str]
    pods: int
    leaving: bool

    def eviction_of(self, node: int, uids: Collection[str]) -> EvictionPlan | None:
        """The eviction of exactly those of these pods that can be evicted; None where they are not enough, or one of
        them could be spared.
        """
        victims = tuple(one for one in self.evictable if one.pod_uid in uids)
        decision = self.question.without(victims, [node])
        if decision.node is None or not victims:
            return None
        for one in victims:
            if self.question.without([other for other in victims if other is not one], [node]).node is not None:
                return None
        victims = tuple(sorted(victims, key=lambda one: (-one.priority, one.since)))
        return EvictionPlan(node, victims, tuple(grant.device_id for grant in decision.grants))


def check_node(
    preemptor: Preemptor,
    node: str,
    *,
    others: Sequence[PreemptionReservation],
    now: datetime,
    rather: Collection[str] = (),
    surely: Collection[str] = (),
) -> NodeCheck | None:
    """Check the node as it is now; None where its pods cannot be read.

    Two queries and a list of its pods; `rather`, `surely`: as in `eviction_on`.
    """
    ended = release_finished(node=node, now=now)
    snapshot = fleet.current().snapshot
    row = snapshot.node_index.get(node)
    if row is None or ended.there is None:
        return None
    reserved = victims_of(others)
    freed = tuple(chain.from_iterable(held_by(ended.leaving - reserved).values()))
    question = EvictionQuery(snapshot, preemptor.request, own=preemptor.own, freed=freed, blocked=devices_of(others))
    evictable = tuple(
        one
        for one in holdings(snapshot, below=preemptor.priority, nodes={row}, but=reserved).get(row, ())
        if (pod := ended.there.get(one.pod_uid)) and not pod.metadata.deletion_timestamp and not pod.finished
    )
    eviction = eviction_on(question, row, evictable, rather=rather, surely=surely)
    known = ended.leaving | reserved | {one.pod_uid for one in evictable}
    return NodeCheck(question, eviction, evictable, known, _pods(node, ended, others), bool(freed))


def _pods(node: str, ended: Ended, others: Sequence[PreemptionReservation]) -> int:
    """As kube-scheduler counts: pods of the node that have not finished, those that are being bound to it, and those
    nominated to it.

    It counts the nominated of at least the pod's priority: those whose victims it knows.
    """
    there = ended.there or {}
    coming = Allocation.objects.filter(
        node__name=node, state__in=(State.HELD, State.RESERVED), priority__isnull=False
    ).exclude(pod_uid__in=there)
    nominated = {one.pod_uid for one in others if one.victims_sent and one.node.name == node}
    if nominated:
        placed = Allocation.objects.filter(pod_uid__in=nominated, state__in=LIVE)
        nominated -= set(placed.values_list("pod_uid", flat=True))
    return sum(counted_amount(pod) for pod in there.values() if not pod.finished) + coming.count() + len(nominated)
