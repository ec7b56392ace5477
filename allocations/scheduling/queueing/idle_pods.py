"""The pods that leave their GPUs idle, which may be lent (`GPUPLANE_IDLE_MINUTES`).

Invariants: where nothing measures, nobody is idle; a pod that came a moment ago is not idle, whatever its GPUs did
before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from allocations.engine.snapshot import Snapshot
from allocations.scheduling.queueing.waiting_rows import Holder
from kube.device_types import GPU
from nodes.history.rollups import MINUTE
from nodes.models import Device, FleetRollup

MEASURED_WITHIN: Final = timedelta(minutes=4)
"""The history's last minute began at most so long ago; with an older one nothing is known of the GPUs."""


def idle_holders(holders: Sequence[Holder], snapshot: Snapshot, now: datetime) -> frozenset[str]:
    """Names of the holders all of whose GPUs were idle for so long. Two queries, none while lending is off."""
    since = now - timedelta(minutes=settings.GPUPLANE_IDLE_MINUTES)
    if since == now or not FleetRollup.objects.filter(seconds=MINUTE, start__gt=now - MEASURED_WITHIN).exists():
        return frozenset()
    idle = set(Device.objects.filter(idle_since__lte=since).order_by().values_list("pk", flat=True))
    return frozenset(
        one.name
        for one in holders
        if one.made_at <= since and (gpus := _gpus(one, snapshot)) and all(gpu in idle for gpu in gpus)
    )


def _gpus(holder: Holder, snapshot: Snapshot) -> Collection[int]:
    devices = [device for device, _, _ in holder.held]
    rows, code = snapshot.index.rows_of(devices), snapshot.type_code.get(GPU, -1)
    return [
        one for one, row in zip(devices, rows.tolist(), strict=True) if row >= 0 and snapshot.device_type[row] == code
    ]
