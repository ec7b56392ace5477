"""Reads of the nodes' pages: rows of the table, the link matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, F, FloatField, Q, QuerySet, Sum
from django.db.models.functions import Cast, NullIf

from kube.device_types import GPU
from nodes.choices import NodeState, Presence
from nodes.drawing import DRAWN_MOST
from nodes.models import Device, Node
from nodes.selectors import node_list
from nodes.topology import normal_links

_SORTS: Mapping[str, tuple[Any, ...]] = {
    "name": ("name",),
    "state": ("state", "name"),
    "used": ("used_share", "name"),
    "memory": ("memory_share", "name"),
    "agent": ("agent_seen_at", "name"),
}
NVLINK_BYTES = 25_000_000_000
"""Bytes a second of one NVLink in one direction, from V100 to H200; Blackwell has twice as many."""
BLACKWELL = ("B100", "B200", "B300")
_TAKEN = (
    Q(devices__core_used__gt=0)
    | Q(devices__memory_used__gt=0)
    | ~Q(devices__stranger="", devices__conflict="", devices__closed="", devices__gpu_group="")
)
_LIVE_GPU = Q(devices__type=GPU) & ~Q(devices__presence=Presence.REMOVED)


@dataclass(slots=True)
class NodeRow:
    """One row of the nodes page. Memory of GPUs; a MIG instance counts as a part of its GPU."""

    node: Node
    gpus: int = 0
    busy: set[str] = field(default_factory=set)
    """UUIDs of GPUs that are held, wholly or in part."""
    unhealthy: int = 0
    memory_bytes: int = 0
    memory_used: int = 0
    others: int = 0
    models: set[str] = field(default_factory=set)
    islands: set[int] = field(default_factory=set)

    @property
    def in_use(self) -> int:
        """Number of GPUs that are held, wholly or in part."""
        return len(self.busy)


@dataclass(frozen=True, slots=True)
class LinkCell:
    """One pair of GPUs: NVLinks between them, shade 1 to 4 (0: none), nearness by PCIe and NUMA."""

    links: int
    shade: int
    same: bool
    near: str


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One GPU's row of the matrix. `linked`: number of GPUs that it has links to; `links`: of all its links."""

    minor: int
    uuid: str
    island: int
    cells: tuple[LinkCell, ...]
    most_bytes: int
    """What its links can send a second, or receive; behind a switch those of the best linked pair."""
    linked: int
    links: int


def node_query(*, search: str, state: str, model: str, sort: str) -> QuerySet[Node]:
    """Nodes that match, sorted by `name`, `-used`, …; by name for an unknown `sort`."""
    nodes = node_list()
    for word in search.split():
        nodes = nodes.filter(name__icontains=word)
    if state in NodeState.values:
        nodes = nodes.filter(state=state)
    if model:
        nodes = nodes.filter(pk__in=Device.objects.filter(model=model).exclude(presence="removed").values("node"))
    key = sort.removeprefix("-")
    if key in {"used", "memory"}:
        nodes = nodes.annotate(
            used_share=Cast(Count("devices", filter=_LIVE_GPU & _TAKEN), FloatField())
            / NullIf(Count("devices", filter=_LIVE_GPU), 0),
            memory_share=Cast(Sum("devices__memory_used", filter=_LIVE_GPU), FloatField())
            / NullIf(Sum("devices__memory_bytes", filter=_LIVE_GPU), 0),
        )
    order = [F(name) for name in _SORTS.get(key, _SORTS["name"])]
    first = order[0].desc(nulls_last=True) if sort.startswith("-") else order[0].asc(nulls_first=True)
    return nodes.order_by(first, *order[1:])


def node_rows(nodes: Iterable[Node]) -> list[NodeRow]:
    """Rows of these nodes, in their order; one query."""
    rows = {node.pk: NodeRow(node) for node in nodes}
    for device in Device.objects.filter(node__in=rows).exclude(presence=Presence.REMOVED):
        _add(rows[device.node_id], device)
    return list(rows.values())


def node_row(node: Node, devices: Iterable[Device]) -> NodeRow:
    """A node with what these devices of it add up to."""
    row = NodeRow(node)
    for device in devices:
        _add(row, device)
    return row


def _add(row: NodeRow, device: Device) -> None:
    if device.type != GPU:
        row.others += 1
        return
    if device.is_held:
        row.busy.add(device.parent or device.uuid)
    row.memory_used += device.memory_used
    if device.parent:
        return
    row.gpus += 1
    row.unhealthy += not device.healthy or device.presence != Presence.PRESENT
    row.memory_bytes += device.memory_bytes
    if device.model:
        row.models.add(device.model)
    row.islands.add(device.island)


def models_known() -> list[str]:
    """Models of the fleet's GPUs."""
    rows = Device.objects.filter(type=GPU).exclude(presence=Presence.REMOVED).exclude(model="")
    return list(rows.order_by("model").values_list("model", flat=True).distinct())


def link_matrix(devices: Iterable[Device], links: Iterable[Sequence[int]]) -> list[LinkRow]:
    """The node's GPUs against each other, by island and minor; without cells for more than DRAWN_MOST GPUs."""
    whole = (device for device in devices if device.type == GPU and not device.parent)
    gpus = sorted(whole, key=lambda gpu: (gpu.island, gpu.minor))
    known = {gpu.minor for gpu in gpus}
    linked: dict[int, dict[int, int]] = {}
    for low, high, count in normal_links(links):
        if low in known and high in known:
            linked.setdefault(low, {})[high] = linked.setdefault(high, {})[low] = count
    most = max((count for counts in linked.values() for count in counts.values()), default=1)
    shown = gpus if len(gpus) <= DRAWN_MOST else []
    rows = []
    for one in gpus:
        counts = linked.get(one.minor, {})
        rows.append(
            LinkRow(
                one.minor,
                one.uuid,
                one.island,
                tuple(_cell(one, other, counts.get(other.minor, 0), most) for other in shown),
                nvlink_bytes(one.model) * max(counts.values(), default=0),
                len(counts),
                sum(counts.values()),
            )
        )
    return rows


def nvlink_bytes(model: str) -> int:
    """Bytes a second of one NVLink of a GPU in one direction."""
    return NVLINK_BYTES * (2 if any(name in model for name in BLACKWELL) else 1)


def _cell(one: Device, other: Device, links: int, most: int) -> LinkCell:
    if one.pcie and one.pcie == other.pcie:
        near = "same PCIe switch"
    elif one.numa >= 0 and one.numa == other.numa:
        near = "same NUMA node"
    else:
        near = "across NUMA nodes"
    return LinkCell(links, -(-4 * links // most) if links else 0, one.minor == other.minor, near)
