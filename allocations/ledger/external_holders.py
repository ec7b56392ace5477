"""Devices that somebody outside the ledger holds: given to nobody until that holder lets go."""

from __future__ import annotations

from datetime import datetime

from audit.choices import EventKind
from audit.services import record
from nodes.models import Device
from nodes.revisions import next_revision
from storage.transactions import atomic_retry

TAKEN = "its lease is held by somebody else"
LET_GO = "who held its lease outside the ledger let go of it"


@atomic_retry
def external_holder_set(device_uuid: str, holder: str, *, now: datetime, actor: str) -> bool:
    """Write who holds the device, empty for nobody; False when the row says so already, or another has written it.

    The event names the holder to those who may see its namespace.
    """
    device = (
        Device.objects.select_related("node")
        .defer("node__links", "node__disputed")
        .filter(uuid=device_uuid)
        .exclude(presence="removed")
        .first()
    )
    if device is None or device.stranger == holder[:300]:
        return False
    as_read = Device.objects.filter(pk=device.pk, stranger=device.stranger)
    if not as_read.update(stranger=holder[:300], revision=next_revision(), changed_at=now):
        return False  # whoever wrote it has seen the lease later: a comparison looks again
    record(
        kind=EventKind.DEVICE_TAKEN,
        message=f"{device.type} {device.minor} of {device.node.name}: {TAKEN if holder else LET_GO}",
        actor=actor,
        now=now,
        node=device.node.name,
        data={"uuid": device_uuid},
        other=holder or device.stranger,
    )
    return True
