"""One node looked at closely before anybody goes there: with the pods that the API server has on it, not only the ledger's rows.

Called by `beginning` and `answering`. Kept true: who is going already is no victim, and nobody else goes where their going is enough; what is
promised to others of at least the same priority is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from allocations import fleet
from allocations.choices import LIVE, State
from allocations.ended import Ended, settle_ended
from allocations.engine.plan import Amounts
from allocations.engine.victims import Held, Holding, Question, Way, way_on
from allocations.making_way.holders import holdings
from allocations.making_way.promises import Promise, devices_of, victims_of
from allocations.models import Allocation, AllocationDevice
from claims.admission.counted import counted_amount
from claims.dialects.request import DeviceRequest


@dataclass(frozen=True, slots=True)
class Look:
    """`way` None: the devices would not do, whoever goes. `pods`: the most `gpu.scheduling/pods` with which kube-scheduler refuses the pod. `leaving`:
    somebody goes already.

    `able`: everybody who may be told to go; `known`: UIDs of these, of those who leave, and of whoever goes for others.
    """

    question: Question
    way: Way | None
    able: tuple[Holding, ...]
    known: frozenset[str]
    pods: int
    leaving: bool

    def along(self, node: int, uids: Collection[str]) -> Way | None:
        """The way by which exactly those of these pods go who can; None where they are not enough, or one of them could be spared."""
        going = tuple(one for one in self.able if one.pod_uid in uids)
        decision = self.question.without(going, [node])
        if decision.node is None or not going:
            return None
        if any(
            self.question.without([other for other in going if other is not one], [node]).node is not None
            for one in going
        ):
            return None
        victims = tuple(sorted(going, key=lambda one: (-one.priority, one.since)))
        return Way(node, victims, tuple(grant.device_id for grant in decision.grants))


def look_closely(
    *,
    node: str,
    request: DeviceRequest,
    own: dict[int, Amounts] | None,
    priority: int,
    others: Sequence[Promise],
    now: datetime,
    rather: Collection[str] = (),
    surely: Collection[str] = (),
) -> Look | None:
    """The node as it is now; None where it cannot be seen. Two queries and a list of its pods; `rather`, `surely`: as in `way_on`."""
    ended = settle_ended(node=node, now=now)
    picture, _ = fleet.current()
    row = picture.node_index.get(node)
    if row is None or ended.there is None:
        return None
    promised = victims_of(others)
    freed = _held(ended.leaving - promised)
    question = Question(picture, request, own=own, freed=freed, blocked=devices_of(others))
    there = {
        uid for uid, pod in ended.there.items() if not pod.metadata.deletion_timestamp and not pod.finished
    } - promised
    found = holdings(picture, below=priority, nodes={row}).get(row, ())
    able = tuple(one for one in found if one.pod_uid in there)
    way = way_on(question, row, able, rather=rather, surely=surely)
    known = ended.leaving | promised | {one.pod_uid for one in able}
    return Look(question, way, able, known, _pods(node, ended, others), bool(freed))


def _held(uids: Collection[str]) -> tuple[Held, ...]:
    """What these pods hold."""
    if not uids:
        return ()
    rows = AllocationDevice.objects.filter(live=True, allocation__state__in=LIVE, allocation__pod_uid__in=uids)
    return tuple(
        (device_id, core, memory)
        for device_id, core, memory in rows.values_list("device_id", "core_percent", "memory_bytes")
        if device_id is not None
    )


def _pods(node: str, ended: Ended, others: Sequence[Promise]) -> int:
    """As kube-scheduler counts: pods of the node that have not finished, those that are being bound to it, and those nominated to it.

    It counts the nominated of at least the pod's priority; these are they for whom it has been told the victims.
    """
    there = ended.there or {}
    coming = Allocation.objects.filter(
        node__name=node, state__in=(State.HELD, State.RESERVED), priority__isnull=False
    ).exclude(pod_uid__in=there)
    nominated = {one.pod_uid for one in others if one.told and one.node == node}
    if nominated:
        nominated -= set(
            Allocation.objects.filter(pod_uid__in=nominated, state__in=LIVE).values_list("pod_uid", flat=True)
        )
    return sum(counted_amount(pod) for pod in there.values() if not pod.finished) + coming.count() + len(nominated)
