"""`recount`: compare the use of devices with their live grants (LEASE-6).

Called by reconciling. Both are written in one transaction, so they differ only where somebody wrote past the ledger (by
hand, or by a partial restore); a device that counts too little could never be given back. Invariants: the grants count,
since they carry the constraints; devices are compared under their locks, which every take and return needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from allocations.engine.amounts import NONE, Amounts, merged
from allocations.models import AllocationDevice
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from nodes.choices import Presence
from nodes.models import Device
from nodes.revisions import next_revision
from storage.transactions import atomic_retry

CORE_FULL = 100


@dataclass(frozen=True, slots=True)
class Miscounted:
    """A device whose use is not the sum of its grants. `corrected`: it is now; else the sum is more than it has."""

    node: str
    message: str
    corrected: bool


def recount(*, now: datetime, actor: str) -> list[Miscounted]:
    """Correct devices whose use is not that of their live grants, and write an event for each that was corrected."""
    # Read without locks, the two may be of different moments: what differs is checked again.
    given = _given(AllocationDevice.objects.filter(live=True))
    used = Device.objects.filter(Q(core_used__gt=0) | Q(memory_used__gt=0))
    said = {pk: (core, memory) for pk, core, memory in used.values_list("pk", "core_used", "memory_used")}
    suspects = [pk for pk in sorted({*given, *said}) if given.get(pk, NONE) != said.get(pk, NONE)]
    return _correct(suspects, now=now, actor=actor) if suspects else []


def _given(grants: QuerySet[AllocationDevice]) -> dict[int, Amounts]:
    rows: Iterable[tuple[int | None, int, int]] = grants.values_list("device_id", "core_percent", "memory_bytes")
    return merged((device_id, core, memory) for device_id, core, memory in rows if device_id is not None)


@atomic_retry
def _correct(suspects: list[int], *, now: datetime, actor: str) -> list[Miscounted]:
    revision = next_revision()
    locked = list(Device.objects.select_for_update(of=("self",)).filter(pk__in=suspects).order_by("pk"))
    given = _given(AllocationDevice.objects.filter(live=True, device__in=suspects))
    names = dict(Device.objects.filter(pk__in=suspects).values_list("pk", "node__name"))
    found: list[Miscounted] = []
    for device in locked:
        core, memory = given.get(device.pk, NONE)
        said = f"{device.core_used} core and {device.memory_used} bytes"
        if (device.core_used, device.memory_used) == (core, memory):
            continue
        fits = core <= CORE_FULL and memory <= device.memory_bytes
        message = (
            f"{device.type} {device.minor} of {names[device.pk]} counted {said} as used; its holders were given {core}"
            f" and {memory}"
        )
        if fits:
            left = device.presence == Presence.VANISHED and (core, memory) == NONE
            presence = Presence.REMOVED if left else device.presence
            Device.objects.filter(pk=device.pk).update(
                core_used=core, memory_used=memory, presence=presence, revision=revision
            )
        found.append(Miscounted(names[device.pk], message + (": corrected" if fits else ""), corrected=fits))
    corrected = [one for one in found if one.corrected]
    for node in {one.node for one in corrected}:
        announce(node=node)
    record_many(
        [
            NewEvent(kind=EventKind.DIFFERENCE, message=one.message, actor=actor, at=now, node=one.node)
            for one in corrected
        ]
    )
    return found
