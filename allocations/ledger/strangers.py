"""Devices in the hands of somebody outside the ledger: not given to anyone until the stranger lets go."""

from __future__ import annotations

from datetime import datetime

from access.transactions import atomic_retry
from audit.choices import Kind
from audit.services import record
from nodes.models import Device
from nodes.revisions import next_revision

TAKEN = "its lease is held by somebody else"
LET_GO = "who held its lease outside the ledger let go of it"


@atomic_retry
def stranger_set(*, device_uuid: str, stranger: str, now: datetime, actor: str) -> bool:
    """Note who holds the device (empty: nobody any more). False when that was known. The event names them to those who see their namespace."""
    device = (
        Device.objects.select_related("node")
        .defer("node__links", "node__disputed")
        .filter(uuid=device_uuid)
        .exclude(presence="removed")
        .first()
    )
    if device is None or device.stranger == stranger[:300]:
        return False
    Device.objects.filter(pk=device.pk).update(stranger=stranger[:300], revision=next_revision(), changed_at=now)
    record(
        kind=Kind.DEVICE_TAKEN,
        message=f"{device.type} {device.minor} of {device.node.name}: {TAKEN if stranger else LET_GO}",
        actor=actor,
        now=now,
        node=device.node.name,
        data={"uuid": device_uuid},
        other=stranger or device.stranger,
    )
    return True
