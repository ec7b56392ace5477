"""MIG instances and their GPUs: two ways of giving the same hardware, of which only one may hold at a time (DEV-12).

Called by `nodes.services` when an inventory comes in, and by every comparison (`allocations.reconcile.closing`). A GPU in MIG mode is never offered
itself (`Device.mig`). Kept true: what somebody holds keeps its holder; an instance of a GPU that is held itself, and a GPU that has left MIG mode
while an instance of it is held, are closed to newcomers until that ends; held by a stranger or an intruder, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from nodes.choices import Presence
from nodes.models import Device
from nodes.newcomers import UNREAD

GPU_HELD: Final = "its GPU is still held itself"
INSTANCES_HELD: Final = "MIG instances of it are still held"
SICK: Final = "its GPU is unhealthy"
LONGEST_REASON: Final = 200
_HELD_BY: Final = ("core_used", "memory_used", "conflict", "stranger")


def mig_closings(*, node_id: int | None = None) -> dict[int, str]:
    """Device id → why it is closed, on one node or all. One query where there is no MIG instance, two elsewhere."""
    instances = Device.objects.exclude(parent="").exclude(presence=Presence.REMOVED)
    if node_id is not None:
        instances = instances.filter(node=node_id)
    listed = list(instances.only("pk", "node_id", "parent", *_HELD_BY))
    if not listed:
        return {}
    gpus = Device.objects.filter(node__in={one.node_id for one in listed}, parent="").exclude(presence=Presence.REMOVED)
    return closings_of([*listed, *gpus.only("pk", "node_id", "uuid", "mig", "parent", *_HELD_BY)])


def close_for_mig(*, node_id: int, revision: int, now: datetime) -> None:
    """At once, within the caller's transaction; reconciling opens them again."""
    for pk, why in mig_closings(node_id=node_id).items():
        Device.objects.filter(pk=pk, closed="").update(closed=why, revision=revision, changed_at=now)


def follow_gpus(settled: Sequence[Device]) -> None:
    """MIG instances that flapped follow their GPU again: no healthier than it, and well where it alone was the reason."""
    parents = {device.parent for device in settled if device.parent}
    if not parents:
        return
    rows = Device.objects.select_for_update(no_key=True).filter(uuid__in=parents, presence=Presence.PRESENT)
    gpus = {row.uuid: row for row in rows.order_by("id")} | {device.uuid: device for device in settled}
    for device in settled:
        gpu = gpus.get(device.parent)
        if gpu is not None and device.healthy and not gpu.healthy:
            device.healthy, device.health_reason = False, f"{SICK}: {gpu.health_reason}"[:LONGEST_REASON]
        elif gpu is not None and gpu.healthy and device.health_reason.startswith(SICK):
            device.healthy, device.health_reason = True, ""


def closings_of(devices: Iterable[Device]) -> dict[int, str]:
    """The same of these devices, GPUs and their instances."""
    listed = list(devices)
    gpus = {(one.node_id, one.uuid): one for one in listed if not one.parent}
    found: dict[int, str] = {}
    for one in listed:
        gpu = gpus.get((one.node_id, one.parent)) if one.parent else None
        if gpu is None:
            continue
        if _is_held(gpu):
            found[one.pk] = GPU_HELD
        if not gpu.mig and _is_held(one):
            found[gpu.pk] = INSTANCES_HELD
    return found


def _is_held(device: Device) -> bool:
    """By the ledger's holders, or past it. Not that it is closed: that may come from here."""
    return bool(device.core_used or device.memory_used or device.conflict or device.stranger not in ("", UNREAD))
