"""What an inventory changes about a node's rows: compared, not written.

Called by `nodes.services.inventory_put` with the locked rows. Kept true: a device keeps its row as
long as it keeps its UUID, whatever its minor; what somebody holds is never removed, never shrunk
below what is held, and never changes its type; devices of types that the source does not report stay as they are; a MIG instance is no
healthier than its GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from access.errors import Conflict
from kube.device_types import GPU
from nodes import flapping
from nodes.choices import Presence
from nodes.flapping import Heeded
from nodes.mig import SICK
from nodes.models import Device
from nodes.topology import islands, normal_links

if TYPE_CHECKING:
    from nodes.inventory import DeviceShape, NodeShape

REPORTED = "reported unhealthy"
VANISHED = "missing from the node's inventory"
DISPLACED_MINOR = 1_000_000
"""A held device that vanished gives its minor to its replacement and goes on under this plus its id."""


@dataclass(slots=True)
class InventoryChange:
    """Rows to write, by what happens to them. Falsy when nothing changes."""

    added: list[Device] = field(default_factory=list)
    changed: list[Device] = field(default_factory=list)
    returned: list[Device] = field(default_factory=list)
    vanished: list[Device] = field(default_factory=list)
    removed: list[Device] = field(default_factory=list)
    renumbered: list[Device] = field(default_factory=list)
    """Of `changed` and `returned`: rows that also get another minor or type."""
    health: list[Device] = field(default_factory=list)
    """Of the present ones: rows whose health changed."""
    noted: list[Device] = field(default_factory=list)
    """Rows whose health flaps: `nodes.flapping.COLUMNS` alone are to be written, and nobody is told. They count as no change."""

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.rows)

    @property
    def leaving(self) -> list[Device]:
        """Rows that no longer stand for a device of the node."""
        return [*self.removed, *self.vanished]

    @property
    def staying(self) -> list[Device]:
        """Rows of devices that the inventory lists."""
        return [*self.changed, *self.returned]

    @property
    def rows(self) -> list[Device]:
        """Every existing row to be written."""
        return [*self.leaving, *self.staying]

    def lists(self) -> dict[str, list[str]]:
        """UUIDs by what happened, empty kinds left out; for the audit event."""
        kinds = ("added", "changed", "returned", "vanished", "removed")
        return {kind: [device.uuid for device in getattr(self, kind)] for kind in kinds if getattr(self, kind)}

    @property
    def summary(self) -> str:
        """`1 added, 2 vanished`."""
        return ", ".join(f"{len(uuids)} {kind}" for kind, uuids in self.lists().items())


def shape_islands(shape: NodeShape) -> dict[int, int]:
    """Minor → island number of the shape's GPUs."""
    return islands([device.minor for device in shape.devices if device.type == GPU and not device.parent], shape.links)


def wired(shape: NodeShape) -> tuple[NodeShape, dict[int, int]]:
    """The shape with its links in order, and its islands. Tens of thousands take a while: before the transaction, for which others wait."""
    ordered = msgspec.structs.replace(shape, links=tuple(normal_links(shape.links)))
    return ordered, shape_islands(ordered)


def compare(rows: Iterable[Device], shape: NodeShape, *, island: Mapping[int, int], now: datetime) -> InventoryChange:
    """What makes the rows the shape, whose islands are given. Sets the new values on the rows. Raises Conflict."""
    change = InventoryChange()
    known: dict[str, Device] = {}
    for row in sorted(rows, key=lambda row: (row.presence != Presence.REMOVED, row.pk)):
        known[row.uuid] = row  # the live row of a UUID wins over its tombstones
    taken = {(device.type, device.minor) for device in shape.devices}
    wanted = {device.uuid for device in shape.devices}
    for row in known.values():
        if row.uuid not in wanted and row.presence != Presence.REMOVED and shape.owns(row.type):
            _leave(row, change, taken=taken, now=now)
    sick: set[str] = set()
    for device in sorted(shape.devices, key=lambda device: bool(device.parent)):  # GPUs before their instances
        number = island[device.minor] if device.type == GPU and not device.parent else -1
        reason = "" if device.healthy else REPORTED
        _list(
            known.get(device.uuid),
            device,
            change,
            island=number,
            now=now,
            sick=SICK if device.parent in sick else reason,
        )
        before = known.get(device.uuid)
        if not (
            device.healthy if before is None else before.healthy
        ):  # whose health flaps counts as sick, whatever is said
            sick.add(device.uuid)
    return change


def _leave(row: Device, change: InventoryChange, *, taken: set[tuple[str, int]], now: datetime) -> None:
    held = bool(row.core_used or row.memory_used)
    displaced = held and (row.type, row.minor) in taken
    if held and row.presence == Presence.VANISHED and not displaced:
        return
    if held:
        row.presence = Presence.VANISHED
        change.vanished.append(row)
        if displaced:
            row.minor = DISPLACED_MINOR + row.pk
    else:
        row.presence, row.closed = Presence.REMOVED, ""
        change.removed.append(row)
    row.healthy, row.health_reason, row.changed_at = False, VANISHED, now


def _list(
    row: Device | None, device: DeviceShape, change: InventoryChange, *, island: int, now: datetime, sick: str
) -> None:
    """`sick`: why the device is unhealthy, empty where it is well."""
    memory = device.memory
    if row is None:
        healthy = not sick
        fresh = Device(
            uuid=device.uuid,
            type=device.type,
            minor=device.minor,
            model=device.model,
            memory_bytes=memory,
            numa=device.numa,
            pcie=device.pcie,
            bus_id=device.bus_id,
            island=island,
            healthy=healthy,
            health_reason=sick,
            mig=device.mig,
            parent=device.parent,
            profile=device.profile,
            changed_at=now,
        )
        change.added.append(fresh)
        if not healthy:
            change.health.append(fresh)
        return
    _check_holder_unharmed(row, device)
    returned = row.presence != Presence.PRESENT
    place = (row.type, row.minor)
    numbers = (row.memory_bytes, row.numa, row.pcie, row.bus_id, row.island, row.healthy)
    before = (*place, row.model, *numbers, *_mig_of(row))
    health_changed = _heed(row, sick, change, now=now, returned=returned)
    after = (
        device.type,
        device.minor,
        device.model,
        memory,
        device.numa,
        device.pcie,
        device.bus_id,
        island,
        row.healthy,
        *_mig_of(device),
    )
    if before == after and not returned:
        return
    if health_changed:
        change.health.append(row)
    if row.presence != Presence.REMOVED and place != (device.type, device.minor):
        change.renumbered.append(row)
    row.type, row.minor, row.model, row.memory_bytes = device.type, device.minor, device.model, memory
    row.numa, row.pcie, row.bus_id, row.island = device.numa, device.pcie, device.bus_id, island
    row.mig, row.parent, row.profile = _mig_of(device)
    row.presence, row.changed_at = Presence.PRESENT, now
    (change.returned if returned else change.changed).append(row)


def _heed(row: Device, sick: str, change: InventoryChange, *, now: datetime, returned: bool) -> bool:
    """Take the health into the row; whether people are to be told. An inventory that says no more than that it is sick changes no reason."""
    if returned:
        flapping.forget(row)
        row.healthy, row.health_reason = not sick, sick
        return bool(sick)
    if flapping.is_said_well(row) == (not sick):
        return False
    heeded = flapping.heed(row, sick, now=now)
    if heeded is Heeded.NOTED:
        change.noted.append(row)
    return heeded is Heeded.CHANGED


def _mig_of(one: Device | DeviceShape) -> tuple[bool, str, str]:
    return one.mig, one.parent, one.profile


def _check_holder_unharmed(row: Device, device: DeviceShape) -> None:
    """What is held keeps its type and at least the memory that is held; a full device keeps its size."""
    if not (row.core_used or row.memory_used):
        return
    if device.type != row.type:
        raise Conflict(f"{row.uuid} is held as {row.type} and cannot become {device.type}; release it first")
    full = row.memory_used == row.memory_bytes
    if device.memory < row.memory_used or (full and device.memory != row.memory_bytes):
        raise Conflict(f"{row.memory_used} bytes of {row.uuid} are held; its memory cannot change now")
