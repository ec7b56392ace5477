"""Devices that are new to the ledger: pods may run with them already, after a reinstall, say.

Marked by `nodes.services` when it adds them, released by `allocations.reconcile.unverified_devices` once the pods of
their node were read and adopted. Invariants: until then `Device.stranger` keeps them from every pod; a Lease would not
keep shares from a device in full use, since it is open to sharers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.conf import settings

from nodes.models import Device
from storage.enqueue import send_after_commit

UNREAD: Final = "pods that may run with it: not read yet"
TASK: Final = "allocations.read_newcomers"


def mark_unverified(devices: Iterable[Device]) -> bool:
    """Mark the devices, not written yet, that nobody holds; whether there were any. Without a cluster no pod runs."""
    if not settings.GPUPLANE_KUBECONFIG:
        return False
    marked = [device for device in devices if not device.is_allocated]
    for device in marked:
        device.stranger = UNREAD
    return bool(marked)


def verify_soon() -> None:
    """Have a worker read the pods after the commit; without a broker, reconciling does it."""
    send_after_commit(TASK)
