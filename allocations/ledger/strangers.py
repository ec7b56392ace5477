"""Devices in the hands of somebody outside the ledger: not given to anyone until the stranger lets go."""

from __future__ import annotations

from datetime import datetime

from access.transactions import atomic_retry
from audit.choices import Kind
from audit.services import record
from nodes.models import Device
from nodes.revisions import next_revision


@atomic_retry
def stranger_set(*, device_uuid: str, stranger: str, reason: str, now: datetime, actor: str) -> bool:
    """Note who holds the device (empty: nobody any more). False when that was known."""
    device = (
        Device.objects.select_related("node")
        .defer("node__links")
        .filter(uuid=device_uuid)
        .exclude(presence="removed")
        .first()
    )
    if device is None or device.stranger == stranger[:300]:
        return False
    Device.objects.filter(pk=device.pk).update(stranger=stranger[:300], revision=next_revision(), changed_at=now)
    record(
        kind=Kind.DEVICE_TAKEN,
        message=f"{device.type} {device.minor} of {device.node.name}: {reason}",
        actor=actor,
        now=now,
        node=device.node.name,
        data={"uuid": device_uuid, "stranger": stranger},
    )
    return True
