"""Nodes of a scenario as the engine sees them. Called by `allocations.scenario.run` and `growth`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocations.engine.build import DeviceRow, NodeRow, build_snapshot
from allocations.engine.snapshot import DEVICE_PLUGIN, EXCLUSIVE, Snapshot, Withheld
from kube.device_types import mig_type

if TYPE_CHECKING:
    from nodes.inventory import NodeShape


def snapshot_of(nodes: Iterable[NodeShape]) -> Snapshot:
    """The empty fleet; device ids number the devices in the order of the file."""
    rows = []
    number = 0
    for node in nodes:
        rows.append(node_row(node, after=number))
        number += len(node.devices)
    return build_snapshot(rows)


def node_row(node: NodeShape, *, after: int = 0) -> NodeRow:
    """The node, empty. Its devices are numbered from `after` + 1."""
    devices = []
    sick = {device.uuid for device in node.devices if not device.healthy}
    for number, device in enumerate(node.devices, start=after + 1):
        devices.append(
            DeviceRow(
                device_id=number,
                uuid=device.uuid,
                type=mig_type(device.profile) if device.parent else device.type,
                minor=device.minor,
                model=device.model,
                memory_bytes=device.memory,
                numa=device.numa,
                pcie=device.pcie,
                healthy=device.healthy and device.parent not in sick,
                kept=Withheld.MIG if device.mig else Withheld.NOT,
            )
        )
    mode = EXCLUSIVE if node.mode == "exclusive" else DEVICE_PLUGIN
    return NodeRow(name=node.name, mode=mode, links=node.links, devices=tuple(devices))
