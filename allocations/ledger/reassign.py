"""`reassign_devices`: give bound allocations other devices of their node, all at once.

Called by reconciling where a kubelet chose by itself (DEV-8): what the ledger held was a guess. Invariants: rows that
changed since they were read are left alone; devices may pass between the allocations of one call; one that another
allocation holds refuses them all.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from allocations.engine.decision import Grant
from allocations.errors import MovedOn
from allocations.ledger.capacity import check_taken, remove_unused, return_capacity, taking
from allocations.ledger.hold import devices_text
from allocations.ledger.holder import Holder
from allocations.ledger.rows import granting
from allocations.models import AllocationDevice
from audit.choices import EventKind
from audit.events import NewEvent
from audit.services import record_many
from nodes.models import Device
from nodes.revisions import next_stamp
from storage.columns import identity
from storage.cursors import moment, on_postgresql, run_all
from storage.transactions import atomic_retry


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The new grants of one allocation. `seen`: its `changed_at` when it was read."""

    allocation_id: uuid.UUID
    holder: Holder
    node: str
    seen: datetime
    grants: tuple[Grant, ...]


@atomic_retry
def reassign_devices(changes: Sequence[Reassignment], *, now: datetime, actor: str) -> None:
    """Write them in one transaction. Raises MovedOn (a row changed meanwhile), LostRace (another holds a device)."""
    stamp = next_stamp()
    with connection.cursor() as cursor:
        for change in sorted(changes, key=lambda one: one.allocation_id):
            cursor.execute(
                "UPDATE allocations_allocation SET changed_at = %s WHERE id = %s AND state = 'bound' AND changed_at"
                " = %s",
                [moment(now), identity(change.allocation_id), moment(change.seen)],
            )
            if cursor.rowcount != 1:
                raise MovedOn("the allocation changed meanwhile")
        _lock(changes)
        left: set[int] = set()
        for change in changes:
            left.update(return_capacity(cursor, change.allocation_id, stamp, ends=False))
            cursor.execute(
                "DELETE FROM allocations_allocationdevice WHERE allocation_id = %s", [identity(change.allocation_id)]
            )
    wanted = [grant for change in changes for grant in change.grants]
    check_taken(wanted, run_all(taking(wanted, stamp, taker=None)), stamp)
    remove_unused(left, stamp)
    run_all([granting(change.allocation_id, change.grants) for change in changes])
    record_many(
        [
            NewEvent(
                kind=EventKind.ALLOCATION_CORRECTED,
                message=f"{change.holder.label} has {devices_text(change.grants)} of {change.node}: the kubelet chose",
                actor=actor,
                at=now,
                namespace=change.holder.namespace,
                name=change.holder.pod_name,
                node=change.node,
                allocation_id=change.allocation_id,
            )
            for change in changes
        ]
    )


def _lock(changes: Sequence[Reassignment]) -> None:
    """Lock all devices that are returned or taken, in their order. SQLite's writers are serial."""
    if not on_postgresql():
        return
    allocations = [change.allocation_id for change in changes]
    left = AllocationDevice.objects.filter(allocation__in=allocations, live=True).values_list("device_id", flat=True)
    wanted = {*left, *(grant.device_id for change in changes for grant in change.grants)}
    list(Device.objects.select_for_update().filter(pk__in=wanted).order_by("pk").values_list("pk", flat=True))
