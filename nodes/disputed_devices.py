"""Disputed devices: UUIDs that a node reports although another node has them.

Called by `nodes.services` with the locked node, and periodically. Invariants: the node that reports a disputed UUID
gets all its other devices; the disputed device stays with the node that has it for as long as that node reports it or
it is held there, then goes to the node that claims it, by its next inventory or periodically. Disputed devices are
shown with the node that has them, and are not allocated to pods of the claiming node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from django.db.models import Q

from kube.device_types import GPU
from nodes.choices import Presence
from nodes.inventory import NodeShape
from nodes.models import Device, Node
from nodes.revisions import next_revision

if TYPE_CHECKING:
    from datetime import datetime

_LEFT = Q(presence=Presence.VANISHED, core_used=0, memory_used=0)
"""Its node does not report it any more, and it is not held."""


class Disputed(msgspec.Struct, frozen=True):
    """One disputed device. `node`: the node that has it."""

    uuid: str
    type: str
    minor: int
    node: str


class Claimed(msgspec.Struct, frozen=True):
    """An inventory with disputed devices: `Node.disputed`, as JSON."""

    shape: NodeShape
    devices: tuple[Disputed, ...]


def claimed_by(node: Node) -> Claimed | None:
    """The node's inventory with disputed devices, None without any."""
    return msgspec.json.decode(node.disputed, type=Claimed) if node.disputed else None


def disputed_of(node: Node) -> tuple[Disputed, ...]:
    """The node's disputed devices."""
    claimed = claimed_by(node)
    return () if claimed is None else claimed.devices


def settle_uuids(shape: NodeShape, *, node: Node, now: datetime) -> tuple[NodeShape, str]:
    """(the shape without disputed devices, the value of `Node.disputed`).

    Devices that other nodes do not report any more are taken from them.
    """
    elsewhere = Device.objects.filter(uuid__in=[device.uuid for device in shape.devices]).exclude(node=node)
    found = elsewhere.exclude(presence=Presence.REMOVED).select_related("node")
    found = found.defer("node__links", "node__disputed").order_by("pk")
    theirs: dict[str, str] = {}
    for device in found:
        if not (device.presence == Presence.VANISHED and _take(device, now)):
            theirs[device.uuid] = device.node.name
    if not theirs:
        return shape, ""
    disputed = tuple(
        Disputed(device.uuid, device.type, device.minor, theirs.get(device.uuid) or theirs[device.parent])
        for device in shape.devices
        if device.uuid in theirs or device.parent in theirs
    )
    return _without(shape, {one.uuid for one in disputed}), msgspec.json.encode(Claimed(shape, disputed)).decode()


def kept_claims(node: Node, shape: NodeShape, disputed: str) -> str:
    """The value of `Node.disputed` after an inventory with this shape, for which `settle_uuids` returned `disputed`.

    Disputed devices of types that the shape does not report are claimed as before.
    """
    before = claimed_by(node)
    left = () if before is None else tuple(one for one in before.devices if not shape.owns(one.type))
    if before is None or not left:
        return disputed
    own = msgspec.json.decode(disputed, type=Claimed).devices if disputed else ()
    described, links = (shape, shape.links) if shape.owns(GPU) else (before.shape, before.shape.links)
    others = tuple(device for device in before.shape.devices if not shape.owns(device.type))
    types = None if before.shape.types is None or shape.types is None else before.shape.types | shape.types
    both = msgspec.structs.replace(described, devices=(*others, *shape.devices), links=links, types=types)
    return msgspec.json.encode(Claimed(both, (*left, *own))).decode()


def _take(device: Device, now: datetime) -> bool:
    left = Device.objects.filter(_LEFT, pk=device.pk)
    return bool(left.update(presence=Presence.REMOVED, closed="", revision=next_revision(), changed_at=now))


def _without(shape: NodeShape, uuids: set[str]) -> NodeShape:
    devices = tuple(device for device in shape.devices if device.uuid not in uuids)
    gpus = {device.minor for device in devices if device.type == GPU and not device.parent}
    links = tuple(link for link in shape.links if link[0] in gpus and link[1] in gpus)
    return msgspec.structs.replace(shape, devices=devices, links=links)


def with_health(shape: NodeShape, *, healthy: Mapping[str, bool]) -> NodeShape:
    """The shape with the health of these devices, by UUID."""
    devices = (
        msgspec.structs.replace(device, healthy=healthy.get(device.uuid, device.healthy)) for device in shape.devices
    )
    return msgspec.structs.replace(shape, devices=tuple(devices))


def record_health(node: Node, health: Mapping[str, str]) -> None:
    """Record the health of disputed devices, which they have when the node gets them. Locks the node."""
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    claimed = claimed_by(locked)
    if claimed is None:
        return
    healthy = {one.uuid: not health[one.uuid] for one in claimed.devices if one.uuid in health}
    shape = with_health(claimed.shape, healthy=healthy)
    if shape != claimed.shape:
        text = msgspec.json.encode(msgspec.structs.replace(claimed, shape=shape)).decode()
        Node.objects.filter(pk=node.pk).update(disputed=text)


def nodes_with_released() -> list[Node]:
    """Nodes some of whose disputed devices no other node has any more. A MIG instance belongs where its GPU does."""
    found = []
    for node in Node.objects.exclude(disputed="").order_by("name"):
        claimed = claimed_by(node)
        if claimed is None:
            continue
        uuids = {device.uuid for device in claimed.devices}
        elsewhere = Device.objects.filter(uuid__in=uuids).exclude(node=node).exclude(presence=Presence.REMOVED)
        theirs = set(elsewhere.exclude(_LEFT).values_list("uuid", flat=True))
        devices = claimed.shape.devices
        if any(one.uuid in uuids and one.uuid not in theirs and one.parent not in theirs for one in devices):
            found.append(node)
    return found
