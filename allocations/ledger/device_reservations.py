"""Devices reserved for pods, in columns of the device, so that the statement that takes it can refuse others.

Called by `allocations.scheduling.preemption`, `allocations.scheduling.queueing` and `autoscaling.rounds` inside the
transaction that writes or deletes a reservation, and by the ledger's takes. Invariants: a device names the pod of the
most important reservation of it (of equals the oldest), or all that will share a new one, or none; it is stamped with a
revision, so every snapshot learns of it; past `kept_until`, by the database's clock, it is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from allocations.models import QueueReservation
from nodes.models import Device, PreemptionReservation
from nodes.revisions import next_revision
from storage.cursors import moment

BELOW_ALL = -(2**31)
"""The priority of a holder without one: Kubernetes' least. A reservation keeps a device from its equals too."""

FREE_FOR = (
    "(kept_for = '' OR REPLACE(',' || kept_for || ',', %s, '') <> ',' || kept_for || ',' "
    "OR kept_priority < %s OR kept_until <= %s)"
)
"""SQL: whether the taker may have the device; its parameters are `Taker.parameters`. The second: it is kept for it."""


class Taker(NamedTuple):
    """Who takes devices. `priority` None: below every pod, as holders over REST are. `now` by the database's clock."""

    pod_uid: str
    priority: int | None
    now: datetime

    @property
    def parameters(self) -> list[object]:
        """The parameters of `FREE_FOR`."""
        return [f",{self.pod_uid},", BELOW_ALL if self.priority is None else self.priority, moment(self.now)]


@dataclass(frozen=True, slots=True)
class KeptFor:
    """For which pods a device is kept, by UID, and until when."""

    pods: frozenset[str]
    priority: int
    until: datetime

    @classmethod
    def read(cls, kept_for: str, priority: int, until: datetime) -> Self:
        """From the columns of the device."""
        return cls(frozenset(kept_for.split(",")), priority, until)

    def bars(self, taker: Taker) -> bool:
        """Whether it is kept from the taker: the rule of `FREE_FOR`."""
        rank = BELOW_ALL if taker.priority is None else taker.priority
        return taker.pod_uid not in self.pods and self.priority >= rank and self.until > taker.now


def keep(device_ids: Collection[int], *, now: datetime) -> None:
    """Update these devices by the reservations that there are. Call inside a transaction."""
    if not device_ids:
        return
    revision = next_revision()
    locked = Device.objects.select_for_update(of=("self",)).filter(pk__in=device_ids).order_by("pk")
    said = {pk: tuple(kept) for pk, *kept in locked.values_list("pk", "kept_for", "kept_priority", "kept_until")}
    # Read under the locks: a concurrent writer of a reservation of these devices comes after, or is seen.
    due: dict[int, tuple[str, int, datetime | None]] = dict.fromkeys(said, ("", 0, None))
    sharing: defaultdict[int, list[str]] = defaultdict(list)
    rows: list[PreemptionReservation | QueueReservation] = [*PreemptionReservation.objects.filter(until__gt=now)]
    rows += QueueReservation.objects.filter(until__gt=now)
    for row in sorted(rows, key=lambda one: (one.priority, -one.made_at.timestamp(), -one.pk)):
        is_new = isinstance(row, QueueReservation) and row.growth
        for pk in due.keys() & set(row.devices):
            if is_new:
                sharing[pk].append(row.pod_uid)
            due[pk] = (",".join(sharing[pk]) if is_new else row.pod_uid, row.priority, row.until)
    for pk, (pod_uids, priority, until) in due.items():
        if said[pk] != (pod_uids, priority, until):
            Device.objects.filter(pk=pk).update(
                kept_for=pod_uids, kept_priority=priority, kept_until=until, revision=revision
            )
