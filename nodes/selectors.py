"""Reads of what exists.

Called by REST, pages and the commands. Nodes and devices are shown to everybody who is signed in;
who holds a device is told elsewhere, by namespace. Kept true: tombstones (`removed` devices, nodes
that are gone and have nothing left) are never shown, and each list costs a fixed number of queries.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from access.errors import NotFound
from nodes.choices import NodeState, Presence
from nodes.models import Device, Node

_SHOWN = ~Q(presence=Presence.REMOVED)
_HELD = Q(core_used__gt=0) | Q(memory_used__gt=0)
_LIVE = ~Q(devices__presence=Presence.REMOVED)


def _shown_nodes() -> QuerySet[Node]:
    left = Device.objects.filter(node=OuterRef("pk")).exclude(presence=Presence.REMOVED)
    return Node.objects.filter(~Q(state=NodeState.GONE) | Exists(left))


def node_list() -> QuerySet[Node]:
    """Nodes with `device_count`, `healthy_count` and `held_count`, in one query."""
    return (
        _shown_nodes()
        .annotate(
            device_count=Count("devices", filter=_LIVE),
            healthy_count=Count("devices", filter=_LIVE & Q(devices__healthy=True)),
            held_count=Count("devices", filter=_LIVE & (Q(devices__core_used__gt=0) | Q(devices__memory_used__gt=0))),
        )
        .order_by("name")
    )


def node_get(name: str) -> Node:
    """One node with the counts of `node_list`. Raises NotFound."""
    node = node_list().filter(name=name).first() if "\x00" not in name else None
    if node is None:
        raise NotFound(f"there is no node {name[:253]!r}")
    return node


def device_list(*, held: bool | None = None) -> QuerySet[Device]:
    """Devices with their nodes; `held`: only those that somebody holds wholly or in part, or only the others."""
    devices = Device.objects.filter(_SHOWN).select_related("node").defer("node__links", "node__disputed").order_by("id")
    return devices if held is None else devices.filter(_HELD if held else ~_HELD)


def node_devices(node: Node) -> QuerySet[Device]:
    """Devices of a node, by type and minor."""
    return Device.objects.filter(node=node).exclude(presence=Presence.REMOVED).order_by("type", "minor")


def node_counts() -> dict[str, int]:
    """State → nodes."""
    rows = _shown_nodes().order_by("state").values_list("state").annotate(count=Count("pk"))
    return dict(rows)


def device_counts() -> list[dict[str, Any]]:
    """One row a (type, model): total, free, used, unhealthy devices, and memory in bytes; by type and model.

    `used` is held, wholly or in part, or kept from newcomers; `free` is healthy, present, in nobody's hands, no GPU in MIG mode, on a node that is ready.
    """
    ready = Q(
        healthy=True,
        presence=Presence.PRESENT,
        stranger="",
        conflict="",
        closed="",
        mig=False,
        node__state=NodeState.READY,
    )
    rows = (
        Device.objects.filter(_SHOWN)
        .order_by("type", "model")
        .values("type", "model")
        .annotate(
            total=Count("pk"),
            used=Count("pk", filter=_HELD | ~Q(stranger="", conflict="", closed="")),
            free=Count("pk", filter=ready & ~_HELD),
            unhealthy=Count("pk", filter=Q(healthy=False) | ~Q(presence=Presence.PRESENT)),
            core_used=Sum("core_used"),
            memory_total_bytes=Sum("memory_bytes"),
            memory_used_bytes=Sum("memory_used"),
        )
    )
    return [dict(row) for row in rows]
