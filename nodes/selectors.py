"""Reads of nodes and devices, for REST, pages and commands.

Everybody who is signed in may see nodes and devices, but not who holds them. Invariants: tombstones (`removed` devices,
nodes that are gone and have no other devices) are never returned; each list takes a fixed number of queries.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from access.errors import NotFound
from audit.models import Event
from nodes.choices import NodeState, Presence
from nodes.models import Device, Node

_SHOWN = ~Q(presence=Presence.REMOVED)
_HELD = Q(core_used__gt=0) | Q(memory_used__gt=0)
_LIVE = ~Q(devices__presence=Presence.REMOVED)


def shown_nodes() -> QuerySet[Node]:
    """Nodes but those that are gone with all their devices."""
    left = Device.objects.filter(node=OuterRef("pk")).exclude(presence=Presence.REMOVED)
    return Node.objects.filter(~Q(state=NodeState.GONE) | Exists(left))


def node_list() -> QuerySet[Node]:
    """Nodes with `device_count`, `healthy_count` and `held_count`, in one query; without their links (about 300 kB)."""
    return (
        shown_nodes()
        .defer("links")
        .annotate(
            device_count=Count("devices", filter=_LIVE),
            healthy_count=Count("devices", filter=_LIVE & Q(devices__healthy=True)),
            held_count=Count("devices", filter=_LIVE & (Q(devices__core_used__gt=0) | Q(devices__memory_used__gt=0))),
        )
        .order_by("name")
    )


def node_get(name: str) -> Node:
    """One node with its links and the counts of `node_list`. Raises NotFound."""
    node = node_list().defer(None).filter(name=name).first() if "\x00" not in name else None
    if node is None:
        raise NotFound(f"there is no node {name[:253]!r}")
    return node


def device_list(*, held: bool | None = None) -> QuerySet[Device]:
    """Devices with their nodes; `held`: only those held wholly or in part, or only the others."""
    devices = Device.objects.filter(_SHOWN).select_related("node").defer("node__links", "node__disputed").order_by("id")
    return devices if held is None else devices.filter(_HELD if held else ~_HELD)


def device_get(pk: int) -> Device:
    """One device with its node. Raises NotFound."""
    found = device_list().filter(pk=pk).first()
    if found is None:
        raise NotFound("there is no such device")
    return found


def device_of(uuid: str) -> Device:
    """The device of a UUID with its node. Raises NotFound."""
    found = device_list().filter(uuid=uuid).first() if "\x00" not in uuid else None
    if found is None:
        raise NotFound(f"there is no device {uuid[:128]!r}")
    return found


def device_table() -> list[Device]:
    """Every device by node, type and minor, in two queries; devices share the objects of their nodes."""
    nodes = {node.pk: node for node in Node.objects.all()}
    devices = list(device_list().select_related(None).order_by("node__name", "type", "minor"))
    for device in devices:
        device.node = nodes[device.node_id]
    return devices


def device_minors(node: Node) -> dict[str, int]:
    """UUID → minor of a node's devices, tombstones among them."""
    return dict(Device.objects.filter(node=node).values_list("uuid", "minor"))


def node_devices(node: Node) -> QuerySet[Device]:
    """Devices of a node, by type and minor."""
    return Device.objects.filter(node=node).exclude(presence=Presence.REMOVED).order_by("type", "minor")


_SHOWN_OF_NODE = ("state", "problem", "mode", "labels", "disputed")
_SHOWN_OF_DEVICE = (
    "id", "type", "minor", "healthy", "health_reason", "health_said", "flaps", "presence", "mig", "stranger", "closed",
    "conflict", "kept_for", "gpu_group", "gpu_group_open", "no_group_until", "core_used", "memory_used", "revision",
    "idle_since",
)  # fmt: skip


def node_digest(name: str) -> bytes:
    """A digest of what the pages of a node and its devices show from the database, by three queries.

    When the agent was heard is left out. Changes of allocations write events with the node's name.
    """
    node = Node.objects.filter(name=name).values_list(*_SHOWN_OF_NODE).first()
    devices = Device.objects.filter(node__name=name).order_by("id").values_list(*_SHOWN_OF_DEVICE)
    newest = Event.objects.filter(node=name).order_by("-id").values_list("id", flat=True).first()
    return hashlib.blake2b(repr((node, list(devices), newest)).encode(), digest_size=16).digest()


def node_counts() -> dict[str, int]:
    """State → nodes."""
    rows = shown_nodes().order_by("state").values_list("state").annotate(count=Count("pk"))
    return dict(rows)


def device_counts() -> list[dict[str, Any]]:
    """One row a (type, model), in their order: counts of devices, core in percent, memory in bytes.

    `used`: held, wholly or in part, a reservation pod's, or closed to new pods; `free`: healthy, present, not used, no
    GPU in MIG mode, on a node that is ready.
    """
    ready = Q(
        healthy=True,
        presence=Presence.PRESENT,
        stranger="",
        conflict="",
        closed="",
        gpu_group="",
        mig=False,
        node__state=NodeState.READY,
    )
    rows = (
        Device.objects.filter(_SHOWN)
        .order_by("type", "model")
        .values("type", "model")
        .annotate(
            total=Count("pk"),
            used=Count("pk", filter=_HELD | ~Q(stranger="", conflict="", closed="", gpu_group="")),
            free=Count("pk", filter=ready & ~_HELD),
            unhealthy=Count("pk", filter=Q(healthy=False) | ~Q(presence=Presence.PRESENT)),
            core_used=Sum("core_used"),
            memory_total=Sum("memory_bytes"),
            memory_used=Sum("memory_used"),
        )
    )
    return [dict(row) for row in rows]
