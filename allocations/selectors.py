"""Reads of who holds what.

Called by REST, pages, metrics and the fleet's stream. Invariants: names of holders are shown only to those who see
their namespace; each function costs a fixed number of queries, whatever the page holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Count, F, Prefetch, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from access.actors import Actor
from access.errors import NotFound
from allocations.choices import LIVE, State
from allocations.models import Allocation, AllocationDevice, PodRefusal
from claims.choices import Phase
from claims.models import GpuClaim
from nodes.models import Device

Row = TypeVar("Row", Allocation, PodRefusal)

COUNTED = (State.RESERVED, State.BOUND, State.RELEASING)
"""States that `status.allocated` counts: a hold may still go elsewhere."""

NEWEST = 100
"""Allocations shown in a claim's status (CLAIM-2)."""


def allocation_list(*, actor: Actor) -> QuerySet[Allocation]:
    """Allocations of the namespaces that the actor sees, with devices and nodes, the newest first; two queries."""
    return _seen(with_devices(Allocation.objects.order_by("-created_at", "-id")), actor)


def _seen(rows: QuerySet[Row], actor: Actor) -> QuerySet[Row]:
    return rows if actor.namespaces is None else rows.filter(namespace__in=actor.namespaces)


def with_devices(allocations: QuerySet[Allocation]) -> QuerySet[Allocation]:
    """The allocations with their nodes, grants and devices, in two queries."""
    return allocations.select_related("node").defer("node__links", "node__disputed").prefetch_related(granted())


def granted() -> Prefetch[str]:
    """The grants of allocations with their devices, in one query."""
    return Prefetch("devices", queryset=AllocationDevice.objects.select_related("device"))


def allocation_get(*, uid: UUID, actor: Actor) -> Allocation:
    """One allocation. Raises NotFound, also for a namespace that the actor does not see."""
    found = allocation_list(actor=actor).filter(pk=uid).first()
    if found is None:
        raise NotFound(f"there is no allocation {uid}")
    return found


def waiting_pods(*, actor: Actor) -> QuerySet[PodRefusal]:
    """Waiting pods of the namespaces that the actor sees, which hold nothing now, the last refused first."""
    return _seen(PodRefusal.objects.order_by("-last_at"), actor).exclude(pod_uid__in=_holding())


def _holding() -> QuerySet[Allocation, str]:
    """UIDs of the pods that hold devices."""
    return Allocation.objects.filter(state__in=LIVE).exclude(pod_uid="").values_list("pod_uid", flat=True)


def held_devices() -> list[int]:
    """Ids of devices whose pods are not bound yet, and of those that a reservation pod has for nobody; one query."""
    held = AllocationDevice.objects.filter(live=True, allocation__state__in=(State.HELD, State.RESERVED))
    reserved = Q(core_used=0, memory_used=0) & ~Q(gpu_group="")
    found = Device.objects.filter(Q(pk__in=held.order_by().values("device_id")) | reserved)
    return list(found.order_by().values_list("pk", flat=True))


def device_holders(devices: Iterable[Device], actor: Actor) -> dict[int, list[dict[str, Any]]]:
    """Device id → who holds it, oldest first; one query. Unseen namespaces keep amounts and state, no names."""
    ids = [device.pk for device in devices if device.core_used or device.memory_used]
    holders: dict[int, list[dict[str, Any]]] = defaultdict(list)
    if not ids:
        return holders
    grants = AllocationDevice.objects.filter(device__in=ids, live=True).select_related("allocation")
    for grant in grants.order_by("device", "allocation__created_at", "pk"):
        if grant.device_id is not None:
            holders[grant.device_id].append(_holder(grant, seen=actor.sees(grant.allocation.namespace)))
    return holders


def claim_statuses(claims: Sequence[GpuClaim]) -> dict[int, dict[str, Any]]:
    """Claim id → its status as the manifest shows it; three queries. The caller sees the claims' namespaces."""
    ids = [claim.pk for claim in claims]
    counted = Allocation.objects.filter(claim__in=ids, state__in=COUNTED)
    allocated = dict(counted.order_by("claim").values_list("claim").annotate(count=Count("pk")))
    rank = Window(RowNumber(), partition_by=F("claim"), order_by=(F("created_at").desc(), F("pk").desc()))
    newest = (
        counted.annotate(rank=rank)
        .filter(rank__lte=NEWEST)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .prefetch_related("devices")
        .order_by("claim", "rank")
    )
    shown: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for allocation in newest if allocated else ():
        if allocation.claim_id is not None:
            shown[allocation.claim_id].append(_claim_allocation(allocation))
    return {
        claim.pk: {
            "phase": _phase(claim, allocated.get(claim.pk, 0)),
            "conditions": claim.conditions,
            "allocated": allocated.get(claim.pk, 0),
            "allocations": shown[claim.pk],
        }
        for claim in claims
    }


def allocation_counts(*, actor: Actor) -> dict[str, int]:
    """Live state → number of allocations in the namespaces that the actor sees."""
    allocations = _seen(Allocation.objects.filter(state__in=LIVE), actor)
    counts = dict(allocations.order_by("state").values_list("state").annotate(count=Count("pk")))
    return {state.value: counts.get(state.value, 0) for state in LIVE}


def holding_pods() -> set[str]:
    """UIDs of all pods that hold devices."""
    return set(_holding())


def pending_count(*, actor: Actor, since: datetime) -> int:
    """Number of waiting pods that were refused, or seen to wait, since then."""
    return waiting_pods(actor=actor).filter(Q(last_at__gte=since) | Q(seen_at__gte=since)).count()


def _phase(claim: GpuClaim, allocated: int) -> str:
    if claim.phase == Phase.INVALID:
        return str(Phase.INVALID.value)
    return str(Phase.ALLOCATED.value if allocated else Phase.PENDING.value)


def _claim_allocation(allocation: Allocation) -> dict[str, Any]:
    """As a GpuClaim's status has it: `{pod, uid, node, devices, since}`; `uid` of the pod, else of the allocation."""
    return {
        "pod": allocation.pod_name,
        "uid": allocation.pod_uid or str(allocation.pk),
        "node": allocation.node.name,
        "devices": [
            {
                "minor": grant.minor,
                "uuid": grant.uuid,
                "core": grant.core_percent,
                "memory": grant.memory_bytes,
            }
            for grant in allocation.devices.all()
        ],
        "since": (allocation.bound_at or allocation.created_at).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _holder(grant: AllocationDevice, *, seen: bool) -> dict[str, Any]:
    allocation = grant.allocation
    return {
        "uid": str(allocation.pk) if seen else None,
        "namespace": allocation.namespace if seen else None,
        "pod": allocation.pod_name if seen else None,
        "holder": allocation.holder if seen else None,
        "claim": allocation.claim_name if seen else None,
        "state": allocation.state,
        "core": grant.core_percent,
        "memory": grant.memory_bytes,
        "whole": grant.whole,
    }
