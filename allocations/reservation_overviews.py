"""Reads of groups, the GPUs behind reservation pods: who shares them, and how much of their memory is taken.

Called by REST (`reservations/`, devices) and by pages. Everybody who is signed in sees groups, as devices; invariants:
sharers in namespaces that the actor does not see are counted and not named; a list costs a fixed number of queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from access.actors import Actor
from access.errors import NotFound
from allocations.choices import GROUP_LIVE, GroupState, State
from allocations.models import Allocation, AllocationDevice, GpuGroup, GroupBackOff
from nodes.choices import Mode, Presence
from nodes.live.samples import SampleView
from nodes.models import Device, Node

URGENCY = (
    GroupState.UNPROTECTED,
    GroupState.WANTED,
    GroupState.STARTING,
    GroupState.RELEASING,
    GroupState.READY,
    GroupState.GONE,
)
"""The order of the page: what needs somebody first."""
NOTHING: Mapping[str, SampleView] = {}


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one GPU, in bytes: allocated by the ledger, in use as measured (None: not known now), the part of what
    is allocated whose holders are being released, and all of it.
    """

    allocated: int
    used: int | None
    releasing: int
    total: int

    @property
    def parts(self) -> list[tuple[float, str, str]]:
        """(percent, tint, title) of a bar of what is allocated."""
        return [
            (self._percent(self.allocated - self.releasing), "used", "allocated"),
            (self._percent(self.releasing), "held", "being released"),
        ]

    @property
    def measured_parts(self) -> list[tuple[float, str, str]]:
        """The same of what is in use."""
        return [(self._percent(self.used or 0), "used-2", "in use, as measured")]

    def _percent(self, part: int) -> float:
        return round(100 * part / self.total, 2) if self.total else 0.0


@dataclass(frozen=True, slots=True)
class GroupGpu:
    """A GPU of a group. `told` False: the reservation pod has not told yet which it is, and this one is a guess."""

    device: Device
    told: bool
    memory: GpuMemory


@dataclass(frozen=True, slots=True)
class Sharer:
    """An allocation that has a part of the group's GPUs, or all: core in percent of a GPU, memory in bytes, summed."""

    allocation: Allocation
    core_percent: int
    memory_bytes: int

    @property
    def name(self) -> str:
        """Its pod, or its holder."""
        return self.allocation.pod_name or self.allocation.holder


@dataclass(slots=True)
class GroupView:
    """A group with its GPUs. `hidden`: sharers in namespaces that the actor does not see."""

    group: GpuGroup
    gpus: list[GroupGpu] = field(default_factory=list)
    sharers: list[Sharer] = field(default_factory=list)
    hidden: int = 0

    @property
    def since(self) -> datetime:
        """When it came to its state, or its reservation pod was tried again."""
        return self.group.changed_at

    @property
    def is_unprotected(self) -> bool:
        """Whether the kubelet may give its GPUs to others."""
        return self.group.state == GroupState.UNPROTECTED

    @property
    def memory(self) -> GpuMemory:
        """The sum over its GPUs; `used` None where that of one is not known."""
        parts = [gpu.memory for gpu in self.gpus]
        used = [part.used for part in parts if part.used is not None]
        return GpuMemory(
            sum(part.allocated for part in parts),
            sum(used) if parts and len(used) == len(parts) else None,
            sum(part.releasing for part in parts),
            sum(part.total for part in parts),
        )


def group_list() -> QuerySet[GpuGroup]:
    """Groups with their nodes, also those that went within the last hour."""
    return GpuGroup.objects.select_related("node").defer("node__links", "node__disputed")


def group_get(name: str) -> GpuGroup:
    """The group of that name, the newest of several. Raises NotFound."""
    found = group_list().filter(name=name).order_by("-created_at").first() if "\x00" not in name else None
    if found is None:
        raise NotFound(f"there is no reservation {name[:63]!r}")
    return found


def group_query(*, node: str, state: str, search: str) -> QuerySet[GpuGroup]:
    """The list of the page: what needs somebody first, then by node; without those that are gone unless asked for."""
    found = group_list()
    found = found.filter(state=state) if state in GroupState.values else found.filter(state__in=GROUP_LIVE)
    if node:
        found = found.filter(node__name=node)
    for word in search.split()[:6]:
        found = found.filter(Q(name__icontains=word) | Q(pod_name__icontains=word) | Q(node__name__icontains=word))
    urgency = Case(
        *(When(state=state, then=Value(place)) for place, state in enumerate(URGENCY)), output_field=IntegerField()
    )
    return found.order_by(urgency, "node__name", "created_at", "pk")


def group_views(
    groups: Sequence[GpuGroup], *, actor: Actor, samples: Mapping[str, SampleView] = NOTHING
) -> list[GroupView]:
    """These groups, whose nodes are loaded, with GPUs and sharers: two queries. `samples`: by node, fresh ones."""
    views = [GroupView(group) for group in groups]
    live = {view.group.name: view for view in views if view.group.state in GROUP_LIVE}
    if not live:
        return views
    nodes = {view.group.node_id for view in live.values()}
    devices = Device.objects.filter(gpu_group__in=live, node__in=nodes).exclude(presence=Presence.REMOVED)
    owned = {device.pk: device for device in devices.order_by("minor")}
    releasing, shares = _shares(owned)
    for device in owned.values():
        view = live[device.gpu_group]
        sample = samples.get(view.group.node.name)
        told = device.uuid in view.group.uuids
        memory = gpu_memory(device, releasing[device.pk], sample if told else None)
        view.gpus.append(GroupGpu(device, told, memory))
    for name, sharers in shares.items():
        _add_sharers(live[name], sharers.values(), actor)
    return views


def gpu_memory(device: Device, releasing: int, sample: SampleView | None) -> GpuMemory:
    """The memory of one GPU. `releasing`: bytes of holders that are being released; `sample`: the node's, if fresh."""
    measured = (None if sample is None else sample.of(device.uuid)) or {}
    return GpuMemory(device.memory_used, measured.get("memory_used_bytes"), releasing, device.memory_bytes)


def groups_on(devices: Iterable[Device], *, actor: Actor) -> dict[str, GroupView]:
    """Name → live group of these devices, with sharers, what needs somebody first: three queries, none where no device
    has a group.
    """
    names = {device.gpu_group for device in devices if device.gpu_group}
    if not names:
        return {}
    groups = list(group_list().filter(name__in=names, state__in=GROUP_LIVE).order_by("created_at", "pk"))
    groups.sort(key=lambda group: URGENCY.index(GroupState(group.state)))
    return {view.group.name: view for view in group_views(groups, actor=actor)}


def groups_having(allocation: Allocation) -> list[GpuGroup]:
    """The live groups of an allocation's GPUs, by name; one query."""
    grants = AllocationDevice.objects.filter(allocation=allocation, live=True).exclude(device__gpu_group="")
    return list(group_list().filter(name__in=grants.values("device__gpu_group"), state__in=GROUP_LIVE).order_by("name"))


def nodes_put_off(*, now: datetime) -> list[GroupBackOff]:
    """Nodes that begin no new group for now, with reason and end, by name; one query."""
    found = GroupBackOff.objects.filter(until__gt=now).select_related("node")
    return list(found.defer("node__links", "node__disputed").order_by("node__name"))


def node_put_off(node: Node, *, now: datetime) -> GroupBackOff | None:
    """Why and until when the node begins no new group, if so; one query, none for nodes that gpuplane allocates."""
    if node.mode != Mode.DEVICE_PLUGIN:
        return None
    return GroupBackOff.objects.filter(node=node, until__gt=now).first()


def _shares(devices: Mapping[int, Device]) -> tuple[Mapping[int, int], Mapping[str, dict[UUID, Sharer]]]:
    """Device id → bytes being released; group → its sharers by allocation, the oldest first."""
    releasing: defaultdict[int, int] = defaultdict(int)
    shares: dict[str, dict[UUID, Sharer]] = defaultdict(dict)
    grants = AllocationDevice.objects.filter(device__in=devices, live=True).select_related("allocation")
    for grant in grants.order_by("allocation__created_at", "pk"):
        allocation = grant.allocation
        if grant.device_id is None:
            continue
        if allocation.state == State.RELEASING:
            releasing[grant.device_id] += grant.memory_bytes
        of_group = shares[devices[grant.device_id].gpu_group]
        known = of_group.get(allocation.pk) or Sharer(allocation, 0, 0)
        of_group[allocation.pk] = Sharer(
            allocation, known.core_percent + grant.core_percent, known.memory_bytes + grant.memory_bytes
        )
    return releasing, shares


def _add_sharers(view: GroupView, sharers: Iterable[Sharer], actor: Actor) -> None:
    for sharer in sharers:
        if actor.sees(sharer.allocation.namespace):
            view.sharers.append(sharer)
        else:
            view.hidden += 1
