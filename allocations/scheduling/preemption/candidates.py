"""Who holds what on which node, and could be evicted: read from the ledger, once for each snapshot.

Called by the other modules of this package. Invariants: holders over REST, and pods that kube-scheduler does not count,
have no priority in the ledger and are never candidates (`held_by` reads what any pod holds).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from django.db.models import Min, Q

from allocations.choices import LIVE, State
from allocations.engine.amounts import Held
from allocations.engine.snapshot import Snapshot
from allocations.engine.victims import Holding
from allocations.models import Allocation, AllocationDevice

_PLACED = (State.HELD, State.RESERVED, State.BOUND)
"""Whether a pod that is placed and not bound yet can be evicted is seen among the node's pods (`node_check`)."""
UIDS_A_QUERY = 5_000
"""Databases bound the parameters of a statement."""


@lru_cache(maxsize=1)
def lowest(snapshot: Snapshot) -> int | None:  # noqa: ARG001 - the key of the cache
    """The lowest priority of all candidates, None where there are none.

    One query a snapshot; a snapshot is replaced as soon as any device was taken or came back.
    """
    found: int | None = Allocation.objects.filter(state__in=_PLACED).aggregate(lowest=Min("priority"))["lowest"]
    return found


def holdings(
    snapshot: Snapshot, *, below: int, nodes: Collection[int] | None = None, but: Collection[str] = ()
) -> dict[int, Sequence[Holding]]:
    """Node row → what pods of a priority below `below` hold there, without those of `but` (UIDs).

    Nodes without any are left out.
    """
    found: dict[int, Sequence[Holding]] = {}
    for node, held in _holdings(snapshot).items():
        if nodes is not None and node not in nodes:
            continue
        chosen = [one for one in held if one.priority < below and one.pod_uid not in but]
        if chosen:
            found[node] = chosen
    return found


def held_by(pod_uids: Iterable[str]) -> dict[str, list[Held]]:
    """Pod UID → what it holds, for those that hold any devices."""
    found: dict[str, list[Held]] = defaultdict(list)
    uids = sorted(pod_uids)
    for start in range(0, len(uids), UIDS_A_QUERY):
        batch = uids[start : start + UIDS_A_QUERY]
        for holder, held in _grants(Q(allocation__state__in=LIVE, allocation__pod_uid__in=batch)):
            found[holder.pod_uid].append(held)
    return found


class _Holder(NamedTuple):
    node: str
    pod_uid: str
    priority: int | None
    since: datetime


def _grants(where: Q) -> Iterator[tuple[_Holder, Held]]:
    """Who holds which device, by allocation and device; one query."""
    rows = AllocationDevice.objects.filter(where, live=True, device__isnull=False).order_by("allocation", "device")
    holder = [f"allocation__{column}" for column in ("node__name", "pod_uid", "priority", "created_at")]
    for node, uid, priority, since, *held in rows.values_list(*holder, "device_id", "core_percent", "memory_bytes"):
        yield _Holder(node, uid, priority, since), (held[0], held[1], held[2])


@lru_cache(maxsize=1)
def _holdings(snapshot: Snapshot) -> Mapping[int, Sequence[Holding]]:
    """Node row → what pods hold there."""
    held: dict[_Holder, list[Held]] = defaultdict(list)
    for holder, one in _grants(Q(allocation__state__in=_PLACED, allocation__priority__isnull=False)):
        held[holder].append(one)
    found: dict[int, list[Holding]] = defaultdict(list)
    for (node, uid, priority, since), amounts in held.items():
        row = snapshot.node_index.get(node)
        if row is not None and priority is not None:
            found[row].append(Holding(uid, priority, since.timestamp(), tuple(amounts)))
    return found
