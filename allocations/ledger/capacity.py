"""Taking devices and giving them back: the only statements that change `core_used` and `memory_used`.

Called by the ledger's verbs inside their transaction. Kept true: a take is a conditional UPDATE that
must change exactly its rows; a give-back returns exactly what the live grants of one allocation say,
once. Rows are locked in device order.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain
from typing import Any

from allocations.engine.decision import Grant
from allocations.errors import LostRace
from allocations.ledger.sql import identity
from audit.cursors import on_postgresql

_USABLE = "healthy AND presence = 'present' AND stranger = ''"


def take(cursor: Any, grants: Sequence[Grant], revision: int, *, unusable_too: bool = False) -> None:
    """Mark the devices of `grants` used. Raises LostRace (roll the transaction back) when one is not free.

    A whole device must still have the memory of its grant, since that is what comes back.
    `unusable_too` is for adoption: a pod that runs holds its devices, sick or not.
    """
    guard = "1 = 1" if unusable_too else _USABLE
    sizes = {grant.device_id: grant.memory_bytes or 0 for grant in grants if grant.whole}
    whole = sorted(sizes)
    lost: list[int] = []
    if whole:
        marks = ", ".join(["%s"] * len(whole))
        sized = ", ".join(["(%s, %s)"] * len(whole))
        rows = (
            f"id IN (SELECT id FROM nodes_device WHERE id IN ({marks}) ORDER BY id FOR UPDATE)"  # noqa: S608 - only marks are put in
            if on_postgresql() and len(whole) > 1
            else f"id IN ({marks})"
        )
        cursor.execute(
            f"UPDATE nodes_device SET core_used = 100, memory_used = memory_bytes, revision = %s "  # noqa: S608 - only marks and constants are put in
            f"WHERE {rows} AND (id, memory_bytes) IN (VALUES {sized}) AND core_used = 0 AND memory_used = 0 AND {guard}",
            [revision, *whole, *chain.from_iterable(sorted(sizes.items()))],
        )
        if cursor.rowcount != len(whole):
            cursor.execute(
                f"SELECT id FROM nodes_device WHERE id IN ({marks}) AND revision <> %s",  # noqa: S608 - only marks are put in
                [*whole, revision],
            )
            lost += [row[0] for row in cursor.fetchall()]
            raise LostRace(tuple(lost) or tuple(whole))
    for grant in sorted((grant for grant in grants if not grant.whole), key=lambda grant: grant.device_id):
        core, memory = grant.core_percent, grant.memory_bytes or 0
        cursor.execute(
            f"UPDATE nodes_device SET core_used = core_used + %s, memory_used = memory_used + %s, revision = %s "  # noqa: S608 - only a constant is put in
            f"WHERE id = %s AND core_used <= 100 - %s AND memory_used <= memory_bytes - %s AND {guard}",
            [core, memory, revision, grant.device_id, core, memory],
        )
        if cursor.rowcount != 1:
            lost.append(grant.device_id)
    if lost:
        raise LostRace(tuple(lost))


def give_back(cursor: Any, allocation_id: uuid.UUID, revision: int) -> int:
    """Return what the allocation's live grants took, and end the grants. Returns how many devices came back.

    A device that vanished while held is removed when its last holder lets go.
    """
    cursor.execute(
        "UPDATE allocations_allocationdevice SET live = %s WHERE allocation_id = %s AND live = %s "
        "RETURNING device_id, core_percent, memory_bytes",
        [False, identity(allocation_id), True],
    )
    rows = sorted(cursor.fetchall())
    for device_id, core, memory in rows:
        cursor.execute(
            "UPDATE nodes_device SET core_used = core_used - %s, memory_used = memory_used - %s, revision = %s, "
            "presence = CASE WHEN presence = 'vanished' AND core_used = %s AND memory_used = %s "
            "THEN 'removed' ELSE presence END WHERE id = %s",
            [core, memory, revision, core, memory, device_id],
        )
    return len(rows)
