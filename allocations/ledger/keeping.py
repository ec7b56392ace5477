"""Devices reserved for preemptors, in columns of the device, so that the statement that takes it can refuse others.

Called by `allocations.scheduling.preemption` and `allocations.scheduling.queueing` inside the transaction that writes
or deletes a reservation, and by the ledger's takes. Invariants: a device names the pod of the most important
reservation of it (of equals the oldest), or none; it is stamped with a revision, so every snapshot learns of it; past
`kept_until`, by the database's clock, it is free.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from allocations.models import QueueReservation
from nodes.models import Device, PreemptionReservation
from nodes.revisions import next_revision
from storage.cursors import moment

BELOW_ALL = -(2**31)
"""The priority of a holder without one: Kubernetes' least. A reservation keeps a device from its equals too."""

FREE_FOR = "(kept_for = '' OR kept_for = %s OR kept_priority < %s OR kept_until <= %s)"
"""SQL: whether the taker may have the device; its parameters are `Taker.parameters`."""


class Taker(NamedTuple):
    """Who takes devices. `priority` None: below every pod, as holders over REST are. `now` by the database's clock."""

    pod_uid: str
    priority: int | None
    now: datetime

    @property
    def parameters(self) -> list[object]:
        """The parameters of `FREE_FOR`."""
        return [self.pod_uid, BELOW_ALL if self.priority is None else self.priority, moment(self.now)]


@dataclass(frozen=True, slots=True)
class KeptFor:
    """For whom a device is kept, and until when."""

    pod_uid: str
    priority: int
    until: datetime

    def bars(self, taker: Taker) -> bool:
        """Whether it is kept from the taker: the rule of `FREE_FOR`."""
        rank = BELOW_ALL if taker.priority is None else taker.priority
        return self.pod_uid != taker.pod_uid and self.priority >= rank and self.until > taker.now


def keep(device_ids: Collection[int], *, now: datetime) -> None:
    """Update these devices by the reservations that there are. Call inside a transaction."""
    if not device_ids:
        return
    revision = next_revision()
    locked = Device.objects.select_for_update(of=("self",)).filter(pk__in=device_ids).order_by("pk")
    said = {pk: tuple(kept) for pk, *kept in locked.values_list("pk", "kept_for", "kept_priority", "kept_until")}
    # Read under the locks: a concurrent writer of a reservation of these devices comes after, or is seen.
    due: dict[int, tuple[str, int, datetime | None]] = dict.fromkeys(said, ("", 0, None))
    rows: list[PreemptionReservation | QueueReservation] = [*PreemptionReservation.objects.filter(until__gt=now)]
    rows += QueueReservation.objects.filter(until__gt=now)
    for row in sorted(rows, key=lambda one: (one.priority, -one.made_at.timestamp(), -one.pk)):
        due |= {pk: (row.pod_uid, row.priority, row.until) for pk in row.devices if pk in due}
    for pk, (pod_uid, priority, until) in due.items():
        if said[pk] != (pod_uid, priority, until):
            Device.objects.filter(pk=pk).update(
                kept_for=pod_uid, kept_priority=priority, kept_until=until, revision=revision
            )
