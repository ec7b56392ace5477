"""The queue in which the pods of a gang count: that of the gang's oldest pod.

Called by the queueing loop and by whoever shows or adds up what queues hold. Invariant: for all of them a pod that
holds devices counts in the same queue, whatever its own label names, but for the moments in which the loop does not
look at its gang's oldest pod: kube-scheduler has not asked for it lately, or its node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from django.db.models import QuerySet

from allocations.choices import LIVE
from allocations.models import Allocation, PodRefusal
from allocations.queued_pod import QueuedPod
from claims.membership import Membership, queue_of
from claims.queue_tree import DEFAULT
from claims.queues import StoredQueues


class GangPod(NamedTuple):
    """`gang`: `namespace/name`; `created`: its creationTimestamp, empty without; `queue`: what its own label says."""

    gang: str
    created: str
    name: str
    queue: str


def gang_queues(pods: Iterable[GangPod]) -> dict[str, str]:
    """The queue of each gang: that of its oldest pod, of pods of one second the first by name, wait they or run."""
    found: dict[str, tuple[tuple[bool, str, str], str]] = {}
    for pod in pods:
        rank = (not pod.created, pod.created, pod.name)
        if pod.gang and (pod.gang not in found or rank < found[pod.gang][0]):
            found[pod.gang] = rank, pod.queue
    return {gang: queue for gang, (_, queue) in found.items()}


def read_gang_queues(
    queues: StoredQueues, *, held: QuerySet[Allocation] | None = None, **only: Any
) -> Mapping[str, str]:
    """The queue of each gang, by `namespace/name`. `held`: instead of the live allocations; `only`: fields to match."""
    held = Allocation.objects.filter(state__in=LIVE) if held is None else held
    columns = ("namespace", "gang", "queue", "pod_created", "created_at", "holder")
    rows = held.filter(**only).exclude(gang="").order_by().values_list(*columns)
    pods = [
        GangPod(
            f"{namespace}/{gang}",
            created or f"{made_at:%Y-%m-%dT%H:%M:%SZ}",
            holder,
            counts_in(Membership(queue, gang), namespace, queues, {}),
        )
        for namespace, gang, queue, created, made_at, holder in rows
    ]
    waiting = PodRefusal.objects.filter(member__isnull=False, **only).exclude(gang="").order_by()
    for namespace, name, uid, member in waiting.values_list("namespace", "pod_name", "pod_uid", "member"):
        one = msgspec.convert(member, QueuedPod).pod_request.membership
        queue = queue_of(one, namespace, queues)
        pods.append(GangPod(f"{namespace}/{one.gang}", one.created, f"{namespace}/{name}/{uid}", queue))
    return gang_queues(pods)


def waits_in(membership: Membership, namespace: str, queues: StoredQueues, by_gang: Mapping[str, str]) -> str:
    """The queue in which a pod waits, which may be left out. `by_gang`: `gang_queues`."""
    known = by_gang.get(f"{namespace}/{membership.gang}") if membership.gang else None
    return queue_of(membership, namespace, queues) if known is None else known


def counts_in(membership: Membership, namespace: str, queues: StoredQueues, by_gang: Mapping[str, str]) -> str:
    """The queue in which a pod that holds devices counts. `by_gang`: `gang_queues`."""
    return known_queue(waits_in(membership, namespace, queues, by_gang), queues)


def known_queue(queue: str, queues: StoredQueues) -> str:
    """The queue, or the default one where there is none of that name, or it was left out."""
    return queue if queue in queues.tree.queues else DEFAULT
