"""Reads the rows that groups of GPUs are changed by, as fixed SQL: a bind by a reservation pod reads them five times.

Django's query compiler takes longer than the database for each of them. Invariants: what is locked is locked in the
order of its ids, by everybody.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import Final

from django.db import DEFAULT_DB_ALIAS

from allocations.choices import GROUP_LIVE
from allocations.models import GpuGroup
from kube.device_types import GPU
from nodes.models import Device, Node
from storage.columns import identity
from storage.cursors import marks, on_postgresql

_DEVICE: Final = (
    *("id", "node_id", "type", "minor", "uuid", "model", "memory_bytes", "core_used", "memory_used"),
    *("healthy", "presence", "mig", "stranger", "closed", "conflict"),
    *("gpu_group", "gpu_group_open", "no_group_until"),
)
"""Columns of a device that those who lock it need: reading all of them takes twice as long."""
_NODE_NAME: Final = "name_of_node"


def lock_gpus(node_ids: Collection[int]) -> dict[int, Device]:
    """The GPUs of these nodes, locked in their order, by id. Call inside a transaction."""
    if not node_ids:
        return {}
    gpus = Device.objects.raw(
        f"SELECT {', '.join(_DEVICE)} FROM nodes_device"  # noqa: S608 - constants
        f" WHERE type = %s AND node_id IN ({marks(node_ids)}) ORDER BY id{_for_update('')}",
        [GPU, *node_ids],
    )
    return {device.pk: device for device in gpus}


def lock_groups(group_ids: Collection[uuid.UUID]) -> list[GpuGroup]:
    """The rows of these groups with their nodes' names, locked. Call inside a transaction."""
    if not group_ids:
        return []
    return _groups(f"one.id IN ({marks(group_ids)})", [*map(identity, group_ids)], lock=True)


def live_groups(names: Iterable[str], *, lock: bool = False) -> list[GpuGroup]:
    """The rows of the groups of these names that are not gone, with their nodes' names; empty names are none."""
    wanted = {name for name in names if name}
    if not wanted:
        return []
    asked = f"one.name IN ({marks(wanted)}) AND one.state IN ({marks(GROUP_LIVE)})"
    return _groups(asked, [*wanted, *GROUP_LIVE], lock=lock)


def _groups(asked: str, values: list[object], *, lock: bool) -> list[GpuGroup]:
    found = list(
        GpuGroup.objects.raw(
            f"SELECT one.*, node.name AS {_NODE_NAME} FROM allocations_gpugroup one"  # noqa: S608 - constants
            f" JOIN nodes_node node ON node.id = one.node_id WHERE {asked} ORDER BY one.id"
            + (_for_update(" OF one") if lock else ""),
            values,
        )
    )
    for row in found:
        row.node = node_named(row.node_id, getattr(row, _NODE_NAME))
    return found


def node_named(node_id: int, name: str) -> Node:
    """The node, of which only these two columns were read."""
    return Node.from_db(DEFAULT_DB_ALIAS, ["id", "name"], [node_id, name])


def _for_update(rows: str) -> str:
    """SQLite has one writer at a time."""
    return f" FOR UPDATE{rows}" if on_postgresql() else ""
