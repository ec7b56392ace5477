"""MIG instances and their GPUs: the same hardware, of which either may be allocated, but not both (DEV-12).

Called by `nodes.services` for inventories and by `allocations.reconcile.closing`. A GPU in MIG mode is never allocated
itself (`Device.mig`). Invariants: what is held stays held; an instance of a held GPU, and a GPU that left MIG mode with
an instance of it held, are closed to new pods until that ends, whoever the holder is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from nodes.choices import Presence
from nodes.models import Device
from nodes.unverified_devices import UNREAD

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
    """Close the node's devices within the caller's transaction; reconciling opens them again."""
    for pk, why in mig_closings(node_id=node_id).items():
        Device.objects.filter(pk=pk, closed="").update(closed=why, revision=revision, changed_at=now)


def instances_following(changed: Sequence[Device], *, now: datetime) -> list[Device]:
    """MIG instances, other than those in `changed`, whose health changes with that of their GPUs; not written yet."""
    gpus = {device.uuid: device for device in changed if device.mig}
    if not gpus:
        return []
    others = Device.objects.exclude(pk__in=[device.pk for device in changed])
    rows = others.select_for_update(no_key=True).filter(parent__in=gpus, presence=Presence.PRESENT).order_by("id")
    found = [device for device in rows if _follow(device, gpus[device.parent])]
    for device in found:
        device.changed_at = now
    return found


def follow_gpus(settled: Sequence[Device]) -> None:
    """Set the health of MIG instances that flapped after that of their GPUs."""
    parents = {device.parent for device in settled if device.parent}
    if not parents:
        return
    rows = Device.objects.select_for_update(no_key=True).filter(uuid__in=parents, presence=Presence.PRESENT)
    gpus = {row.uuid: row for row in rows.order_by("id")} | {device.uuid: device for device in settled}
    for device in settled:
        if device.parent in gpus:
            _follow(device, gpus[device.parent])


def _follow(instance: Device, gpu: Device) -> bool:
    """Make the instance no healthier than its GPU, and healthy again where the GPU alone was the reason; whether that
    changed it.
    """
    if gpu.healthy and not instance.healthy and instance.health_reason.startswith(SICK):
        instance.healthy, instance.health_reason = True, ""
    elif not gpu.healthy and instance.healthy:
        instance.healthy, instance.health_reason = False, f"{SICK}: {gpu.health_reason}"[:LONGEST_REASON]
    else:
        return False
    return True


def closings_of(devices: Iterable[Device]) -> dict[int, str]:
    """Device id → why it is closed, of these GPUs and their instances."""
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
    """Whether anybody holds any of it; `Device.closed` does not count, since it may come from here."""
    return device.is_allocated or bool(device.conflict) or device.stranger not in ("", UNREAD)
