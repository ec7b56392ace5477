"""What pages show of the ledger: lists, and who holds which device. Called by `gpuplane.pages`.

Invariants: of an allocation in a namespace that the actor does not see, a page shows what it holds, never whose it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db.models import Count, Q, QuerySet

from access.actors import Actor
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.models import Allocation, AllocationDevice, PodRefusal
from allocations.reservation_overviews import GroupView
from allocations.selectors import allocation_counts, allocation_list, pending_count, waiting_pods
from claims.models import GpuClaim
from claims.overviews import claim_search
from kube.errors import KubeError
from nodes.choices import NodeState, Presence
from nodes.live.samples import SampleView
from nodes.models import Device, Node
from nodes.selectors import device_counts, node_counts

log = structlog.get_logger(__name__)

LIVE_FILTER = "live"
PENDING_SINCE = timedelta(minutes=10)
"""A pod that was refused longer ago no longer waits; kube-scheduler asks at least every 5 minutes."""
DEVICE_NUMBERS = ("total", "used", "free", "unhealthy", "core_used", "memory_total", "memory_used")
_TINTS = ("used", "used-2")
_UNBOUND = {State.HELD, State.RESERVED}
_CLAIM_SORTS: Mapping[str, tuple[str, ...]] = {
    "name": ("namespace", "name"),
    "phase": ("phase", "namespace", "name"),
    "allocated": ("allocated_count", "namespace", "name"),
    "age": ("created_at", "namespace", "name"),
}


@dataclass(frozen=True, slots=True)
class Holding:
    """A share of a device, in percent and bytes. `allocation` None: in a namespace that the actor does not see."""

    allocation: Allocation | None
    holder: str
    core_percent: int
    memory_bytes: int
    whole: bool
    state: str


@dataclass(slots=True)
class DeviceRow:
    """A device with its holders and its last measurements. `parts`: (percent, tint, title) of its bar."""

    device: Device
    state: str = ""
    used_percent: float = 0.0
    holdings: list[Holding] = field(default_factory=list)
    parts: list[tuple[float, str, str]] = field(default_factory=list)
    measured: Mapping[str, int | None] = field(default_factory=dict)
    held_since: datetime | None = None
    """When the first of its present holders got it, and the last one."""
    last_since: datetime | None = None
    closed: str = ""
    """Why nothing new is placed there, in words for the actor."""
    group: GroupView | None = None
    """The group whose reservation pod has it."""

    @property
    def idle_since(self) -> datetime | None:
        """Since when it is held and idle."""
        since = self.device.idle_since
        return None if since is None or self.held_since is None else max(since, self.held_since)


def allocation_query(*, actor: Actor, state: str, namespace: str, node: str, search: str) -> QuerySet[Allocation]:
    """The allocations page's list with its devices; `state` may be `live`, every state that counts as used."""
    found = allocation_list(actor=actor)
    if state == LIVE_FILTER:
        found = found.filter(state__in=LIVE)
    elif state in State.values:
        found = found.filter(state=state)
    if namespace:
        found = found.filter(namespace=namespace)
    if node:
        found = found.filter(node__name=node)
    return found.filter(_matching(search, "pod_name", "claim_name", "holder"))


def _matching(search: str, *fields: str) -> Q:
    """Rows that have each of the first six words in one of the fields."""
    found = Q()
    for word in search.split()[:6]:
        found &= Q(*((f"{field}__icontains", word) for field in fields), _connector=Q.OR)
    return found


def claim_query(*, actor: Actor, search: str, phase: str, namespace: str, sort: str) -> QuerySet[GpuClaim, Any]:
    """The list of claims, each with `allocated_count` (live allocations). `sort`: as in `-age`."""
    claims = claim_search(actor=actor, search=search, phase=phase, namespace=namespace).annotate(
        allocated_count=Count("allocations", filter=Q(allocations__state__in=LIVE))
    )
    first, *rest = _CLAIM_SORTS.get(sort.removeprefix("-"), _CLAIM_SORTS["name"])
    return claims.order_by(f"-{first}" if sort.startswith("-") else first, *rest)


def refusal_query(*, actor: Actor, namespace: str, search: str) -> QuerySet[PodRefusal]:
    """The list of waiting pods."""
    found = waiting_pods(actor=actor)
    if namespace:
        found = found.filter(namespace=namespace)
    return found.filter(_matching(search, "pod_name", "summary", "claim_name"))


def fleet_summary(*, actor: Actor, now: datetime) -> dict[str, Any]:
    """The fleet in numbers, in four queries; allocations and pending pods of the namespaces that the actor sees."""
    states, models = node_counts(), device_counts()
    types: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in models:
        types[row["type"]].update({key: row[key] for key in DEVICE_NUMBERS})
    return {
        "nodes": {"total": sum(states.values()), "ready": states.get(NodeState.READY, 0)},
        "devices": [{"type": name, **numbers} for name, numbers in types.items()],
        "models": models,
        "allocations": allocation_counts(actor=actor),
        "pending_pods": pending_count(actor=actor, since=now - PENDING_SINCE),
    }


def leases_of(names: Sequence[str], *, actor: Actor) -> list[dict[str, Any]]:
    """The leases of these names, from the API server where there is one, and none while it is away."""
    try:
        found = list(current_backends().leases.named(names))
    except KubeError as error:
        log.info("page.leases_unread", error=str(error))
        return []
    return [
        {
            "name": lease.name,
            "device": lease.device_uuid,
            "since": None if lease.acquired_at is None else datetime.fromisoformat(lease.acquired_at),
            "holders": [holder_words(holder, actor) for holder in lease.sharers or [lease.holder_identity]],
        }
        for lease in found
    ]


def holder_words(identity: str, actor: Actor) -> str:
    """A holder identity `namespace/pod/uid` as the actor may see it."""
    namespace, _, rest = identity.partition("/")
    return f"{namespace}/{rest.split('/', 1)[0]}" if actor.sees(namespace) else "another team"


def devices_in_conflict() -> list[Device]:
    """Devices, with their nodes, that run pods other than their holders in the ledger."""
    found = Device.objects.exclude(conflict="").exclude(presence=Presence.REMOVED)
    return list(
        found.select_related("node").defer("node__links", "node__disputed").order_by("node__name", "type", "minor")
    )


def conflict_words(device: Device, actor: Actor) -> list[str]:
    """The pods that run with it, as the actor may see them."""
    return sorted({holder_words(pod, actor) for pod in device.conflict.split(", ") if pod})


def device_rows(
    devices: Sequence[Device],
    *,
    actor: Actor,
    samples: Mapping[str, SampleView] | None = None,
    groups: Mapping[str, GroupView] | None = None,
) -> list[DeviceRow]:
    """Devices, whose nodes are loaded, with holders and measurements: one query. `samples`, `groups`: by name."""
    grants: dict[int, list[AllocationDevice]] = {}
    for grant in AllocationDevice.objects.filter(device__in=devices, live=True).select_related("allocation"):
        if grant.device_id is not None:
            grants.setdefault(grant.device_id, []).append(grant)
    rows = [_row(device, grants.get(device.pk, []), actor, (samples or {}).get(device.node.name)) for device in devices]
    for row in rows:
        row.group = (groups or {}).get(row.device.gpu_group)
    return rows


def may_see_processes(row: DeviceRow, actor: Actor) -> bool:
    """Whether the actor sees all holders of the device: processes have no owner."""
    return actor.namespaces is None or (
        bool(row.holdings) and not row.device.is_kept and all(one.allocation is not None for one in row.holdings)
    )


def _row(device: Device, grants: list[AllocationDevice], actor: Actor, sample: SampleView | None) -> DeviceRow:
    row = DeviceRow(device)
    times = [grant.allocation.bound_at or grant.allocation.created_at for grant in grants]
    row.held_since, row.last_since = min(times, default=None), max(times, default=None)
    for number, grant in enumerate(grants):
        holding = _holding(grant, actor)
        row.holdings.append(holding)
        share = _share(device, grant.core_percent, grant.memory_bytes)
        tint = "held" if holding.state in _UNBOUND else _TINTS[number % 2]
        row.parts.append((share, tint, f"{holding.holder}: {share:.0f} %"))
    row.used_percent = _share(
        device, sum(grant.core_percent for grant in grants), sum(grant.memory_bytes for grant in grants)
    )
    summed = sum(part for part, _, _ in row.parts)
    if summed > row.used_percent:  # where one holder has much core, another much memory
        row.parts = [(part * row.used_percent / summed, tint, words) for part, tint, words in row.parts]
    if device.is_kept and not grants:
        row.parts.append((100.0, "held", "taken outside gpuplane" if device.stranger or device.conflict else "closed"))
        row.used_percent = 100.0
    if not grants and not device.is_kept and (device.core_used or device.memory_used):
        counted = _share(device, device.core_used, device.memory_used)
        row.parts.append((counted, "held", "counted as used, no holder known"))
        row.used_percent = counted
    row.used_percent = min(100.0, row.used_percent)
    if device.gpu_group and not row.parts:
        row.parts.append((100.0, "held", "a reservation pod has it, nobody shares it"))
    held = any(holding.state in _UNBOUND for holding in row.holdings) or bool(device.gpu_group and not grants)
    row.state = _device_state(device, device.node, used_percent=row.used_percent, held=held)
    if device.closed:
        row.closed = device.closed if actor.namespaces is None else "a running pod has it, or may have it"
    elif device.mig:
        row.closed = "in MIG mode, only its instances are given"
    row.measured = (sample.of(device.uuid) if sample is not None else None) or {}
    return row


def _holding(grant: AllocationDevice, actor: Actor) -> Holding:
    allocation = grant.allocation
    seen = actor.sees(allocation.namespace)
    holder = f"{allocation.namespace}/{allocation.pod_name or allocation.claim_name}" if seen else "another team"
    amounts = (grant.core_percent, grant.memory_bytes, grant.whole)
    return Holding(allocation if seen else None, holder, *amounts, allocation.state)


def _share(device: Device, core_percent: int, memory_bytes: int) -> float:
    memory = 100 * memory_bytes / device.memory_bytes if device.memory_bytes else 0.0
    return max(float(core_percent), memory)


def _device_state(device: Device, node: Node, *, used_percent: float, held: bool) -> str:
    """The state as the heatmap names it (static/js/fleet/measures.js)."""
    if device.presence != "present":
        return "vanished"
    if not device.healthy:
        return "unhealthy"
    if node.state != "ready":
        return "node not ready"
    if device.stranger or device.conflict:
        return "taken outside"
    if device.closed:
        return "closed"
    if device.mig:
        return "in MIG mode"
    if held:
        return "held"
    if used_percent >= 100:
        return "in use"
    return "shared" if used_percent else "free"
