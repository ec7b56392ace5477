"""What an inventory changes in a node's rows: compared, not written.

Called by `nodes.services.inventory_put` with locked rows. Invariants: a device keeps its row as long as it keeps its
UUID, whatever its minor; a held device is never removed, never made smaller than what is held, and keeps its type;
devices of types that the source does not report stay as they are; a MIG instance is no healthier than its GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from access.errors import Conflict
from kube.device_types import GPU
from nodes import flapping
from nodes.choices import Presence
from nodes.flapping import HealthChange
from nodes.mig import SICK
from nodes.models import Device
from nodes.topology import islands, normal_links

if TYPE_CHECKING:
    from nodes.inventory import DeviceShape, NodeShape

REPORTED = "reported unhealthy"
VANISHED = "missing from the node's inventory"
DISPLACED_MINOR = 1_000_000
"""A held device that vanished gets this plus its id as its minor where its replacement needs the old one."""


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
    """Rows of which only `nodes.flapping.COLUMNS` are to be written, without an event; they count as no change."""

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.rows)

    @property
    def leaving(self) -> list[Device]:
        """Rows of devices that the inventory does not list."""
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
        """UUIDs by what happened, for the audit event; empty kinds left out."""
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
    """The shape with normalised links, and its islands: before the transaction, since a node may have 100,000 links."""
    ordered = msgspec.structs.replace(shape, links=tuple(normal_links(shape.links)))
    return ordered, shape_islands(ordered)


def compare(rows: Iterable[Device], shape: NodeShape, *, island: Mapping[int, int], now: datetime) -> InventoryChange:
    """Compare the rows with the shape, whose islands are given, and set the new values on them. Raises Conflict."""
    change = InventoryChange()
    known: dict[str, Device] = {}
    for row in sorted(rows, key=lambda row: (row.presence != Presence.REMOVED, row.pk)):
        known[row.uuid] = row  # the live row of a UUID wins over its tombstones
    taken = {(device.type, device.minor) for device in shape.devices}
    wanted = {device.uuid for device in shape.devices}
    for row in known.values():
        if row.uuid not in wanted and row.presence != Presence.REMOVED and shape.owns(row.type):
            _leave(row, change, taken=taken, now=now)
    unhealthy: set[str] = set()
    for device in sorted(shape.devices, key=lambda device: bool(device.parent)):  # GPUs before their instances
        number = island[device.minor] if device.type == GPU and not device.parent else -1
        reason = SICK if device.parent in unhealthy else "" if device.healthy else REPORTED
        present = known.get(device.uuid)
        _list(present, device, change, island=number, now=now, problem=reason)
        # a device whose health flaps counts as sick, whatever the inventory says
        if not (device if present is None else present).healthy:
            unhealthy.add(device.uuid)
    return change


def _leave(row: Device, change: InventoryChange, *, taken: set[tuple[str, int]], now: datetime) -> None:
    held = row.is_allocated
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
    row: Device | None, device: DeviceShape, change: InventoryChange, *, island: int, now: datetime, problem: str
) -> None:
    """Add or update the row of a device. `problem`: why the device is unhealthy, empty where it is healthy."""
    described: dict[str, Any] = {
        "type": device.type,
        "minor": device.minor,
        "model": device.model,
        "memory_bytes": device.memory,
        "numa": device.numa,
        "pcie": device.pcie,
        "bus_id": device.bus_id,
        "island": island,
        "mig": device.mig,
        "parent": device.parent,
        "profile": device.profile,
    }
    if row is None:
        fresh = Device(uuid=device.uuid, healthy=not problem, health_reason=problem, changed_at=now, **described)
        change.added.append(fresh)
        if problem:
            change.health.append(fresh)
        return
    _check_holder_unharmed(row, device)
    returned = row.presence != Presence.PRESENT
    was_healthy = row.healthy
    health_changed = _apply_health(row, problem, change, now=now, returned=returned)
    is_same = row.healthy == was_healthy and all(getattr(row, name) == value for name, value in described.items())
    if is_same and not returned:
        return
    if health_changed:
        change.health.append(row)
    if row.presence != Presence.REMOVED and (row.type, row.minor) != (device.type, device.minor):
        change.renumbered.append(row)
    for name, value in described.items():
        setattr(row, name, value)
    row.presence, row.changed_at = Presence.PRESENT, now
    (change.returned if returned else change.changed).append(row)


def _apply_health(row: Device, problem: str, change: InventoryChange, *, now: datetime, returned: bool) -> bool:
    """Set the row's health; whether it changed. An inventory gives no reason, so it changes no reason either."""
    if returned:
        flapping.reset(row)
        row.healthy, row.health_reason = not problem, problem
        return bool(problem)
    if flapping.was_reported_healthy(row) == (not problem):
        return False
    applied = flapping.apply_report(row, problem, now=now)
    if applied is HealthChange.NOTED:
        change.noted.append(row)
    return applied is HealthChange.CHANGED


def _check_holder_unharmed(row: Device, device: DeviceShape) -> None:
    """Require that a held device keeps its type and the held memory; a device held as a whole its size. Raises
    Conflict.
    """
    if not row.is_allocated:
        return
    if device.type != row.type:
        raise Conflict(f"{row.uuid} is held as {row.type} and cannot become {device.type}; release it first")
    full = row.memory_used == row.memory_bytes
    if device.memory < row.memory_used or (full and device.memory != row.memory_bytes):
        raise Conflict(f"{row.memory_used} bytes of {row.uuid} are held; its memory cannot change now")
