"""Queues and gangs as their pages show them.

Invariants: everybody sees all queues and their amounts; of workloads in namespaces that the actor does not see, only
how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db.models import Count, Q, QuerySet

from access.actors import Actor
from allocations.choices import LIVE
from allocations.gang_queues import counts_in, read_gang_queues, waits_in
from allocations.models import Allocation, GangState, PodRefusal, QueueState
from allocations.queue_statuses import gang_statuses
from allocations.queued_pod import QueuedPod
from claims.kinds import GANG
from claims.membership import Membership
from claims.models import GpuGang, GpuQueue
from claims.queues import StoredQueues, stored_queues
from claims.selectors import manifest_get, manifest_list

WAITING_SHOWN = 200
MEMBERS_SHOWN = 600


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """Amounts in GPUs, and their places on a bar of 100."""

    models: str
    deserved: float
    limit: float | None
    fair_share: float
    allocated: float
    scale: float
    lenders: Sequence[str] = ()
    """Queues beside it that leave some of what they deserve."""

    @property
    def used_width(self) -> float:
        """What is allocated within deserved."""
        return self._part(min(self.allocated, self.deserved))

    @property
    def borrowed_width(self) -> float:
        """What is allocated beyond it."""
        return self._part(self.borrowed)

    @property
    def borrowed(self) -> float:
        """GPUs beyond what the queue deserves."""
        return max(self.allocated - self.deserved, 0)

    @property
    def deserved_at(self) -> float:
        """The mark of what it deserves."""
        return self._part(self.deserved)

    @property
    def share_at(self) -> float:
        """The mark of the fair share."""
        return self._part(self.fair_share)

    @property
    def limit_at(self) -> float | None:
        """The mark of the limit."""
        return None if self.limit is None else self._part(self.limit)

    def _part(self, amount: float) -> float:
        return round(min(100 * amount / self.scale, 100), 2) if self.scale else 0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the tree. `depth`: 0 at the top; `problem`: why it is left out."""

    name: str
    depth: int
    parent: str
    priority: int
    strict: bool
    namespaces: Sequence[str]
    leaf: bool
    stored: bool
    waiting: int
    quotas: Sequence[QuotaBar]
    problem: str = ""


def queue_tree() -> list[QueueRow]:
    """Every queue, each below its parent, those that are left out at the end."""
    queues = stored_queues()
    states = {one.name: one for one in QueueState.objects.all()}
    stored = set(GpuQueue.objects.values_list("name", flat=True))
    tops = {name: path[-1] for name, path in queues.tree.paths.items()}
    scales = _scales(states.values(), tops)
    unused = {
        (name, tuple(one["models"]))
        for name, state in states.items()
        for one in state.quotas
        if one["allocated"] < one["deserved"]
    }
    rows: list[QueueRow] = []

    def add(name: str, depth: int) -> None:
        queue, state = queues.tree.queues[name], states.get(name)
        beside = [one for one in queues.tree.below(queue.parent) if one != name]
        rows.append(
            QueueRow(
                name,
                depth,
                queue.parent,
                queue.priority,
                queue.strict,
                queue.namespaces,
                queues.tree.is_leaf(name),
                name in stored,
                0 if state is None else state.waiting,
                _bars(state, scales, tops[name], lambda models: [one for one in beside if (one, models) in unused]),
            )
        )
        for child in queues.tree.below(name):
            add(child, depth + 1)

    for top in queues.tree.below(""):
        add(top, 0)
    left_out = sorted(queues.invalid.items())
    return rows + [QueueRow(name, 0, "", 0, False, (), True, True, 0, (), problem) for name, problem in left_out]


def _scales(states: Iterable[QueueState], tops: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """(queue at the top, models) → the largest amount of any queue below it, so that bars of one tree compare."""
    scales: dict[tuple[str, str], float] = {}
    for state in states:
        for one in state.quotas:
            key = tops.get(state.name, ""), "/".join(one["models"])
            amounts = (one["deserved"], one["limit"] or 0, one["fairShare"], one["allocated"])
            scales[key] = max(scales.get(key, 0), *amounts)
    return scales


def _bars(
    state: QueueState | None,
    scales: Mapping[tuple[str, str], float],
    top: str,
    lenders_of: Callable[[tuple[str, ...]], Sequence[str]],
) -> list[QuotaBar]:
    return [
        QuotaBar(
            models="/".join(one["models"]) or "GPUs",
            deserved=one["deserved"],
            limit=one["limit"],
            fair_share=one["fairShare"],
            allocated=one["allocated"],
            scale=scales[top, "/".join(one["models"])],
            lenders=lenders_of(tuple(one["models"])) if one["allocated"] > one["deserved"] else (),
        )
        for one in ([] if state is None else state.quotas)
    ]


@dataclass(frozen=True, slots=True)
class WaitingPodRow:
    """A pod that waits. `place`: in its queue, from 1."""

    place: int
    namespace: str
    pod_name: str
    gang: str
    priority: int
    since: Any
    reason: str


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue's page. `hidden`: pods that wait in namespaces which the actor does not see."""

    row: QueueRow
    path: Sequence[str]
    children: Sequence[QueueRow]
    waiting: Sequence[WaitingPodRow]
    hidden: int
    namespaces: Sequence[tuple[str, int]]
    decided_at: Any


def queue_overview(name: str, *, actor: Actor) -> QueueOverview | None:
    """One queue; None where there is none of that name."""
    tree = queue_tree()
    row = next((one for one in tree if one.name == name), None)
    if row is None:
        return None
    queues = stored_queues()
    by_gang = read_gang_queues(queues)
    waiting = _in_line(name, queues, by_gang)
    seen = [one for one in waiting if actor.sees(one.namespace)]
    state = QueueState.objects.filter(name=name).first()
    return QueueOverview(
        row,
        list(reversed(queues.tree.paths.get(name, (name,))))[:-1],
        [one for one in tree if one.parent == name],
        seen[:WAITING_SHOWN],
        len(waiting) - len(seen),
        [(namespace, devices) for namespace, devices in _holders(name, queues, by_gang) if actor.sees(namespace)],
        None if state is None else state.decided_at,
    )


def _holders(name: str, queues: StoredQueues, by_gang: Mapping[str, str]) -> list[tuple[str, int]]:
    """(namespace, devices) of what pods of the queue hold."""
    held = Allocation.objects.filter(state__in=LIVE).order_by()
    found: Counter[str] = Counter()
    rows = held.values_list("namespace", "queue", "gang").annotate(Count("devices"))
    for namespace, queue, gang, devices in rows:
        if counts_in(Membership(queue, gang), namespace, queues, by_gang) == name:
            found[namespace] += devices
    return sorted(found.items())


def _in_line(name: str, queues: StoredQueues, by_gang: Mapping[str, str]) -> list[WaitingPodRow]:
    """The pods that wait in the queue, in its order."""
    holding = Allocation.objects.filter(state__in=LIVE).values("pod_uid")
    rows = PodRefusal.objects.filter(member__isnull=False).exclude(pod_uid__in=holding)
    found = []
    for row in rows:
        membership = msgspec.convert(row.member, QueuedPod).pod_request.membership
        if waits_in(membership, row.namespace, queues, by_gang) == name:
            found.append(((-membership.priority, membership.created, row.pk), row, membership))
    found.sort(key=lambda one: one[0])
    return [
        WaitingPodRow(
            place,
            row.namespace,
            row.pod_name,
            membership.gang,
            membership.priority,
            row.first_at,
            row.summary,
        )
        for place, (_, row, membership) in enumerate(found, start=1)
    ]


def gang_query(*, actor: Actor, search: str, namespace: str) -> QuerySet[GpuGang]:
    """Matching gangs that the actor sees."""
    gangs = manifest_list(GANG, actor=actor)
    for word in search.split():
        gangs = gangs.filter(Q(name__icontains=word) | Q(namespace__icontains=word))
    return gangs.filter(namespace=namespace) if namespace else gangs


@dataclass(frozen=True, slots=True)
class GangOverview:
    """A gang's page. `members`: its pods that hold devices; `waiting`: those that wait."""

    gang: GpuGang
    status: dict[str, Any]
    state: GangState | None
    members: Sequence[Allocation]
    nodes: Sequence[tuple[str, int]]
    waiting: Sequence[PodRefusal]


def gang_overview(namespace: str, name: str, *, actor: Actor) -> GangOverview:
    """One gang. Raises NotFound."""
    gang = manifest_get(GANG, namespace=namespace, name=name, actor=actor)
    live = Allocation.objects.filter(state__in=LIVE, namespace=namespace, gang=name)
    members = list(live.select_related("node").prefetch_related("devices").order_by("pod_name")[:MEMBERS_SHOWN])
    nodes: dict[str, int] = {}
    for one in members:
        nodes[one.node.name] = nodes.get(one.node.name, 0) + 1
    waiting = PodRefusal.objects.filter(namespace=namespace, gang=name).exclude(pod_uid__in=live.values("pod_uid"))
    return GangOverview(
        gang,
        gang_statuses([gang])[gang.pk],
        GangState.objects.filter(namespace=namespace, name=name).first(),
        members,
        sorted(nodes.items()),
        list(waiting.order_by("pod_name")[:MEMBERS_SHOWN]),
    )
