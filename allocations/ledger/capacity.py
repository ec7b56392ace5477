"""Taking and returning devices: the only statements that change `core_used` and `memory_used`.

Called by the ledger's verbs inside their transaction. Invariants: a take is conditional UPDATEs that must change all of
their rows; a return gives back exactly the live grants of one allocation, once. Rows are locked in device order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from allocations.engine.decision import Grant
from allocations.engine.resize import Sizing
from allocations.errors import LostRace
from allocations.ledger.device_reservations import FREE_FOR, Taker
from nodes.revisions import Stamp
from storage.columns import identity
from storage.cursors import Statement, Written, hot_cursor, marks, on_postgresql, run_all

_USABLE = (
    "healthy AND presence = 'present' AND stranger = '' AND conflict = '' AND closed = '' AND NOT mig "
    "AND (gpu_group = '' OR gpu_group_open)"
)

_UNGROUPED = " AND gpu_group = ''"


def taking(grants: Sequence[Grant], revision: Stamp, *, taker: Taker | None) -> list[Statement]:
    """The statements that mark the devices of `grants` used, to be checked by `check_taken`.

    A whole device must still have the memory of its grant, since that is what comes back. `taker` None is for adoption:
    a pod that runs holds its devices, whether sick or reserved for another.
    """
    guard = "1 = 1" if taker is None else f"{_USABLE} AND {FREE_FOR}"
    guarded = [] if taker is None else taker.parameters
    stamp = f"revision = {revision.text}"
    sizes = {grant.device_id: grant.memory_bytes or 0 for grant in grants if grant.whole}
    whole = sorted(sizes)
    statements = []
    if whole:
        named = f"id IN ({marks(whole)})"
        sized = ", ".join(["(%s, %s)"] * len(whole))
        rows = (
            f"id IN (SELECT id FROM nodes_device WHERE {named} ORDER BY id FOR UPDATE)"  # noqa: S608 - marks
            if on_postgresql() and len(whole) > 1
            else named
        )
        statements.append(
            Statement(
                "UPDATE nodes_device SET core_used = 100, memory_used = memory_bytes, "  # noqa: S608 - marks, constants
                f"{stamp} "
                f"WHERE {rows} AND (id, memory_bytes) IN (VALUES {sized}) AND core_used = 0 AND memory_used = 0 "
                f"AND {guard}{'' if taker is None else _UNGROUPED}",
                [*revision.values, *whole, *chain.from_iterable(sorted(sizes.items())), *guarded],
            )
        )
    for grant in sorted((grant for grant in grants if not grant.whole), key=lambda grant: grant.device_id):
        core, memory = grant.core_percent, grant.memory_bytes or 0
        statements.append(
            Statement(
                "UPDATE nodes_device SET core_used = core_used + %s, "  # noqa: S608 - constants
                f"memory_used = memory_used + %s, {stamp} "
                f"WHERE id = %s AND core_used <= 100 - %s AND memory_used <= memory_bytes - %s AND {guard}",
                [core, memory, *revision.values, grant.device_id, core, memory, *guarded],
            )
        )
    return statements


def resizing(sizings: Sequence[Sizing], revision: Stamp, *, taker: Taker) -> list[Statement]:
    """The statements that change what shares use, to be checked by `check_taken`. Only growth needs a usable device."""
    statements = []
    for one in sorted(sizings, key=lambda one: one.grant.device_id):
        core, memory = one.core_added, one.memory_added
        guard, guarded = (f"{_USABLE} AND {FREE_FOR}", taker.parameters) if one.grows else ("1 = 1", [])
        statements.append(
            Statement(
                "UPDATE nodes_device SET core_used = core_used + %s, "  # noqa: S608 - constants
                f"memory_used = memory_used + %s, revision = {revision.text} "
                f"WHERE id = %s AND core_used <= 100 - %s AND memory_used <= memory_bytes - %s AND {guard}",
                [core, memory, *revision.values, one.grant.device_id, core, memory, *guarded],
            )
        )
    return statements


def check_taken(grants: Sequence[Grant], taken: Iterable[Written], revision: Stamp) -> None:
    """Raise LostRace (roll the transaction back) when a device was not free. `taken`: what the statements wrote."""
    if sum(one.rows for one in taken) == len(grants):
        return
    asked = sorted(grant.device_id for grant in grants)
    with hot_cursor() as cursor:
        cursor.execute(
            "SELECT id FROM nodes_device "  # noqa: S608 - marks, constants
            f"WHERE id IN ({marks(asked)}) AND revision = {revision.text}",
            [*asked, *revision.values],
        )
        found = {row[0] for row in cursor.fetchall()}
    lost = tuple(device for device in asked if device not in found)
    raise LostRace(lost or tuple(asked))  # none: its own hold's, given back in this very transaction


def return_capacity(
    cursor: Any, allocation_id: uuid.UUID, revision: Stamp, *, sharer: bool = True, ends: bool = True
) -> list[int]:
    """Return what the allocation's live grants took, and end the grants; ids of the devices.

    A device that vanished while held is removed with its last grant, but where `ends` is False: then its use is taken
    again in the same transaction, and `remove_unused` follows. A group that loses its last sharer takes nobody new
    (`allocations.ledger.groups.release_unused` ends it). `sharer`: False for a hold, which has joined no group: one
    that was idle before is idle again.
    """
    cursor.execute(
        "UPDATE allocations_allocationdevice SET live = %s WHERE allocation_id = %s AND live = %s "
        "RETURNING device_id, core_percent, memory_bytes",
        [False, identity(allocation_id), True],
    )
    rows = sorted(cursor.fetchall())
    for device_id, core, memory in rows:
        cursor.execute(
            "UPDATE nodes_device SET core_used = core_used - %s, "  # noqa: S608 - constants
            f"memory_used = memory_used - %s, revision = {revision.text}, "
            "gpu_group_open = (gpu_group_open AND NOT (%s AND core_used = %s AND memory_used = %s)), "
            "presence = CASE WHEN %s AND presence = 'vanished' AND core_used = %s AND memory_used = %s "
            "THEN 'removed' ELSE presence END WHERE id = %s",
            [core, memory, *revision.values, sharer, core, memory, ends, core, memory, device_id],
        )
    return [device_id for device_id, *_ in rows]


def remove_unused(device_ids: Iterable[int], revision: Stamp) -> None:
    """Remove those of the devices that have vanished and that nobody holds any more."""
    run_all(
        [
            Statement(
                f"UPDATE nodes_device SET presence = 'removed', revision = {revision.text} "  # noqa: S608 - constants
                "WHERE id = %s AND presence = 'vanished' AND core_used = 0 AND memory_used = 0",
                [*revision.values, device_id],
            )
            for device_id in sorted(device_ids)
        ]
    )
