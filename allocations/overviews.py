"""What the pages show of the ledger: lists, and who holds which device. Called by `allocations.views`.

Kept true: of an allocation in a namespace that the actor does not see, a page tells that the device
is taken and how much of it, never by whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from django.db.models import Q, QuerySet

from access.actors import Actor
from allocations.choices import LIVE, State
from allocations.models import Allocation, AllocationDevice, PodRefusal
from allocations.outside import outside
from allocations.selectors import allocation_list, refusal_list
from kube.errors import KubeError
from nodes.choices import Presence
from nodes.live.samples import SampleView
from nodes.models import Device, Node

log = structlog.get_logger(__name__)

LIVE_FILTER = "live"
_TINTS = ("used", "used-2")


@dataclass(frozen=True, slots=True)
class Holding:
    """A share of a device. `allocation` None: of a namespace that the actor does not see. Bytes, percent."""

    allocation: Allocation | None
    holder: str
    core_percent: int
    memory_bytes: int
    whole: bool
    state: str


@dataclass(slots=True)
class DeviceRow:
    """A device with who holds it and what its agent measured last."""

    device: Device
    state: str = ""
    used_percent: float = 0.0
    holdings: list[Holding] = field(default_factory=list)
    parts: list[tuple[float, str, str]] = field(default_factory=list)
    measured: Mapping[str, int | None] = field(default_factory=dict)
    held_since: datetime | None = None
    """When the first of those who hold it now got it, and the last one. None: nobody does."""
    last_since: datetime | None = None
    closed: str = ""
    """Why nobody new gets it, in words for the reader."""

    @property
    def idle_since(self) -> datetime | None:
        """Since when it is held and idle: not since before its holders came."""
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
    for word in search.split()[:6]:
        found = found.filter(Q(pod_name__icontains=word) | Q(claim_name__icontains=word) | Q(holder__icontains=word))
    return found


def waiting_pods(*, actor: Actor) -> QuerySet[PodRefusal]:
    """Pods refused that hold nothing now, of the namespaces seen, the last refused first."""
    holding = Allocation.objects.filter(state__in=LIVE).exclude(pod_uid="").values("pod_uid")
    return refusal_list(actor=actor).exclude(pod_uid__in=holding)


def refusal_query(*, actor: Actor, namespace: str, search: str) -> QuerySet[PodRefusal]:
    """The list of waiting pods."""
    found = waiting_pods(actor=actor)
    if namespace:
        found = found.filter(namespace=namespace)
    for word in search.split()[:6]:
        found = found.filter(Q(pod_name__icontains=word) | Q(summary__icontains=word) | Q(claim_name__icontains=word))
    return found


def leases_of(names: Sequence[str], *, actor: Actor) -> list[dict[str, Any]]:
    """The leases of these names as they are now, holders only where the actor sees their namespace.

    With a cluster they are read from the API server; while it is away none is shown.
    """
    try:
        found = list(outside().leases.named(names))
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
    """A holder identity `namespace/pod/uid` as a page may show it."""
    namespace, _, rest = identity.partition("/")
    return f"{namespace}/{rest.split('/', 1)[0]}" if actor.sees(namespace) else "another team"


def devices_in_conflict() -> list[Device]:
    """Devices that pods run with although the ledger gave them away, with their nodes; none, as a rule."""
    found = Device.objects.exclude(conflict="").exclude(presence=Presence.REMOVED)
    return list(
        found.select_related("node").defer("node__links", "node__disputed").order_by("node__name", "type", "minor")
    )


def conflict_words(device: Device, actor: Actor) -> list[str]:
    """The pods that run with it, as a page may show them."""
    return sorted({holder_words(pod, actor) for pod in device.conflict.split(", ") if pod})


def device_rows(
    devices: Sequence[Device], *, actor: Actor, samples: Mapping[str, SampleView] | None = None
) -> list[DeviceRow]:
    """Devices, whose nodes are loaded, with holders and measurements: one query. `samples`: by node."""
    grants: dict[int, list[AllocationDevice]] = {}
    for grant in AllocationDevice.objects.filter(device__in=devices, live=True).select_related("allocation"):
        if grant.device_id is not None:
            grants.setdefault(grant.device_id, []).append(grant)
    return [_row(device, grants.get(device.pk, []), actor, (samples or {}).get(device.node.name)) for device in devices]


def _row(device: Device, grants: list[AllocationDevice], actor: Actor, sample: SampleView | None) -> DeviceRow:
    row = DeviceRow(device)
    times = [grant.allocation.bound_at or grant.allocation.created_at for grant in grants]
    row.held_since, row.last_since = min(times, default=None), max(times, default=None)
    for number, grant in enumerate(grants):
        allocation = grant.allocation
        seen = actor.sees(allocation.namespace)
        words = f"{allocation.namespace}/{allocation.pod_name or allocation.claim_name}" if seen else "another team"
        holding = Holding(
            allocation if seen else None,
            words,
            grant.core_percent,
            grant.memory_bytes,
            grant.whole,
            allocation.state,
        )
        row.holdings.append(holding)
        share = _share(device, grant.core_percent, grant.memory_bytes)
        tint = "held" if allocation.state in {State.HELD, State.RESERVED} else _TINTS[number % 2]
        row.parts.append((share, tint, f"{words}: {share:.0f} %"))
    given = sum(grant.core_percent for grant in grants), sum(grant.memory_bytes for grant in grants)
    row.used_percent = _share(device, *given)
    asked = sum(part for part, _, _ in row.parts)
    if asked > row.used_percent:  # one has much core, another much memory: together they take less than the sum of both
        row.parts = [(part * row.used_percent / asked, tint, words) for part, tint, words in row.parts]
    outside = device.is_kept
    if outside and not grants:
        row.parts.append((100.0, "held", "taken outside gpuplane" if device.stranger or device.conflict else "closed"))
        row.used_percent = 100.0
    if not grants and not outside and (device.core_used or device.memory_used):
        counted = _share(device, device.core_used, device.memory_used)
        row.parts.append((counted, "held", "counted as used, no holder known"))
        row.used_percent = counted
    row.used_percent = min(100.0, row.used_percent)
    held = any(grant.allocation.state in {State.HELD, State.RESERVED} for grant in grants)
    row.state = device_state(device, device.node, used_percent=row.used_percent, held=held)
    if device.closed:
        row.closed = device.closed if actor.namespaces is None else "a running pod has it, or may have it"
    elif device.mig:
        row.closed = "in MIG mode, only its instances are given"
    row.measured = (sample.of(device.uuid) if sample is not None else None) or {}
    return row


def _share(device: Device, core_percent: int, memory_bytes: int) -> float:
    memory = 100 * memory_bytes / device.memory_bytes if device.memory_bytes else 0.0
    return max(float(core_percent), memory)


def device_state(device: Device, node: Node, *, used_percent: float, held: bool = False) -> str:
    """One word, the same as the heatmap's (static/js/fleet/measures.js)."""
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
