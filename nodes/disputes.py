"""Devices that a node reports and another one has: of a UUID there is one device, and it stays where it is.

Called by `nodes.services` with the locked node, and by the beat. Kept true: who reports a UUID that another node has gets all its other devices;
the device stays with the node that has it, and so with its holder, for as long as that node reports it or somebody holds it there; after that the
node that claims it gets it, by its next inventory or by the beat. What is claimed in vain is shown, with the node that has it, and given to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from django.db.models import Q

from nodes.choices import Presence
from nodes.inventory import DeviceShape, NodeShape
from nodes.models import Device, Node
from nodes.revisions import next_revision

if TYPE_CHECKING:
    from datetime import datetime

_LEFT = Q(presence=Presence.VANISHED, core_used=0, memory_used=0)
"""Its node does not report it any more, and nobody holds it."""


class Disputed(msgspec.Struct, frozen=True):
    """One device that the node claims in vain. `node`: who has it."""

    uuid: str
    type: str
    minor: int
    node: str


class Claimed(msgspec.Struct, frozen=True):
    """What a node said while another one had some of it: `Node.disputed`, as JSON."""

    shape: NodeShape
    devices: tuple[Disputed, ...]


def claimed_by(node: Node) -> Claimed | None:
    """What the node claims in vain, None where that is nothing."""
    return msgspec.json.decode(node.disputed, type=Claimed) if node.disputed else None


def disputed_of(node: Node) -> tuple[Disputed, ...]:
    """The devices alone, for pages and REST."""
    claimed = claimed_by(node)
    return () if claimed is None else claimed.devices


def settle_uuids(shape: NodeShape, *, node: Node, now: datetime) -> tuple[NodeShape, str]:
    """(the shape without what other nodes have, what is to stand in `Node.disputed`). Devices that other nodes have left are taken from them."""
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


def _take(device: Device, now: datetime) -> bool:
    left = Device.objects.filter(_LEFT, pk=device.pk)
    return bool(left.update(presence=Presence.REMOVED, closed="", revision=next_revision(), changed_at=now))


def _without(shape: NodeShape, uuids: set[str]) -> NodeShape:
    devices = tuple(device for device in shape.devices if device.uuid not in uuids)
    gpus = {device.minor for device in devices if device.type == "gpu" and not device.parent}
    links = tuple(link for link in shape.links if link[0] in gpus and link[1] in gpus)
    return msgspec.structs.replace(shape, devices=devices, links=links)


def as_known(shape: NodeShape, *, well: Mapping[str, bool]) -> NodeShape:
    """A shape of before with each device's health as it was said since. `well`: by UUID, of those that the node has."""

    def now_is(device: DeviceShape) -> DeviceShape:
        return msgspec.structs.replace(device, healthy=well.get(device.uuid, device.healthy))

    return msgspec.structs.replace(shape, devices=tuple(now_is(device) for device in shape.devices))


def hear(node: Node, health: Mapping[str, str]) -> None:
    """Keep what the node's agent says of the health of devices that it claims in vain: as sick or well as they are, they go over. Locks the node."""
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    claimed = claimed_by(locked)
    if claimed is None:
        return
    shape = as_known(
        claimed.shape, well={one.uuid: not health[one.uuid] for one in claimed.devices if one.uuid in health}
    )
    if shape != claimed.shape:
        text = msgspec.json.encode(msgspec.structs.replace(claimed, shape=shape)).decode()
        Node.objects.filter(pk=node.pk).update(disputed=text)


def may_be_free() -> list[Node]:
    """Nodes of whose disputed devices some are nobody's by now. An instance is whose its GPU is."""
    found = []
    for node in Node.objects.exclude(disputed="").order_by("name"):
        uuids = {device.uuid for device in disputed_of(node)}
        kept = (
            Device.objects.filter(uuid__in=uuids).exclude(node=node).exclude(presence=Presence.REMOVED).exclude(_LEFT)
        )
        theirs = set(kept.values_list("uuid", flat=True))
        claimed = claimed_by(node)
        devices = () if claimed is None else claimed.shape.devices
        if any(one.uuid in uuids and one.uuid not in theirs and one.parent not in theirs for one in devices):
            found.append(node)
    return found
