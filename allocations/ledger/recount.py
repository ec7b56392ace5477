"""What devices say of their use, compared with what their holders were given (LEASE-6).

Called by reconciling. Both are written in one transaction, so they differ only where somebody wrote past the ledger (a hand in the
database, a backup set back in part); left alone, a device that says too little could never be given back. Kept true: the grants are
believed, they carry the constraints; devices are compared under their locks, which every taker and giver needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from access.transactions import atomic_retry
from allocations.models import AllocationDevice
from audit.announce import announce
from audit.choices import Kind
from audit.happenings import Happening
from audit.services import record_many
from nodes.choices import Presence
from nodes.models import Device
from nodes.revisions import next_revision

CORE_FULL = 100
Use = tuple[int, int]
"""(core percent, bytes)."""


@dataclass(frozen=True, slots=True)
class Miscounted:
    """A device whose columns did not say what its grants add up to. `corrected`: they do now; else there is more than it has."""

    node: str
    message: str
    corrected: bool


def recount(*, now: datetime, actor: str) -> list[Miscounted]:
    """Correct every device whose use is not that of its live grants, and write an event for each that was corrected."""
    # Read without locks, these two may be from different moments: what differs is only suspected.
    given = _given(AllocationDevice.objects.filter(live=True))
    used = Device.objects.filter(Q(core_used__gt=0) | Q(memory_used__gt=0))
    said = {pk: (core, memory) for pk, core, memory in used.values_list("pk", "core_used", "memory_used")}
    suspects = [pk for pk in sorted({*given, *said}) if given.get(pk, (0, 0)) != said.get(pk, (0, 0))]
    return _correct(suspects, now=now, actor=actor) if suspects else []


def _given(grants: QuerySet[AllocationDevice]) -> dict[int, Use]:
    found: dict[int, Use] = defaultdict(lambda: (0, 0))
    rows: Iterable[tuple[int | None, int, int]] = grants.values_list("device_id", "core_percent", "memory_bytes")
    for device_id, core, memory in rows:
        if device_id is not None:
            found[device_id] = found[device_id][0] + core, found[device_id][1] + memory
    return dict(found)


@atomic_retry
def _correct(suspects: list[int], *, now: datetime, actor: str) -> list[Miscounted]:
    revision = next_revision()
    locked = list(Device.objects.select_for_update(of=("self",)).filter(pk__in=suspects).order_by("pk"))
    given = _given(AllocationDevice.objects.filter(live=True, device__in=suspects))
    names = dict(Device.objects.filter(pk__in=suspects).values_list("pk", "node__name"))
    found: list[Miscounted] = []
    for device in locked:
        core, memory = given.get(device.pk, (0, 0))
        said = f"{device.core_used} core and {device.memory_used} bytes"
        if (device.core_used, device.memory_used) == (core, memory):
            continue
        fits = core <= CORE_FULL and memory <= device.memory_bytes
        message = f"{device.type} {device.minor} of {names[device.pk]} counted {said} as used; its holders were given {core} and {memory}"
        if fits:
            left = device.presence == Presence.VANISHED and (core, memory) == (0, 0)
            presence = Presence.REMOVED if left else device.presence
            Device.objects.filter(pk=device.pk).update(
                core_used=core, memory_used=memory, presence=presence, revision=revision
            )
        found.append(Miscounted(names[device.pk], message + (": corrected" if fits else ""), corrected=fits))
    corrected = [one for one in found if one.corrected]
    for node in {one.node for one in corrected}:
        announce(node=node)
    record_many(
        [Happening(kind=Kind.DIFFERENCE, message=one.message, actor=actor, at=now, node=one.node) for one in corrected]
    )
    return found
