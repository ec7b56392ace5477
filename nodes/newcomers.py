"""Devices that the ledger has just come to know: with a cluster, pods may run with them already (after a reinstall, say).

Marked by `nodes.services` in the transaction that adds them, opened by `allocations.reconcile.newcomers` once the pods of their node
were read and adopted. Kept true: until then the devices are in a stranger's hands, so the database itself gives them to nobody; a
share would not be kept from a full device by its Lease, which is open to sharers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.conf import settings

from nodes.models import Device
from nodes.soon import soon

UNREAD: Final = "pods that may run with it: not read yet"
TASK: Final = "allocations.read_newcomers"


def mark_unread(devices: Iterable[Device]) -> bool:
    """Mark those of the devices, not written yet, that nobody holds; whether there were any. Without a cluster no pod runs anywhere."""
    if not settings.GPUPLANE_KUBECONFIG:
        return False
    marked = [device for device in devices if not (device.core_used or device.memory_used)]
    for device in marked:
        device.stranger = UNREAD
    return bool(marked)


def read_soon() -> None:
    """Have a worker read the pods after the commit. Without a broker nothing happens: reconciling does it."""
    soon(TASK)
