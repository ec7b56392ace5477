"""Requests that arrive and find room: the usual round, by one statement of PostgreSQL and three of SQLite.

Called by `inference.dispatch.rounds`, which decides about all others. Invariants: a request gets the slot that
`allocations.engine.slots.serving` would choose, while nobody waits for its model; of what is not placed nothing is
written.

Models are not locked. Nothing is given back here, and each round that gives places back serves who waits: so a free
place for which somebody waits is there only while such a round is under way, and is then taken once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from inference.choices import RequestState
from inference.dispatch import rows
from inference.dispatch.endings import Moment
from inference.dispatch.places import OpenSlot
from inference.dispatch.records import Arrival, Place
from storage.cursors import Query, moment, on_postgresql, rows_of, run_all
from storage.transactions import one_trip_retry


def placed_at_once(steps: Sequence[Arrival], to_moment: Moment, *, gateway: str, now: datetime) -> dict[int, Place]:
    """By place of a step: where those are placed for whose model and LoRA one slot has room for all."""
    by_key: defaultdict[tuple[str, str], dict[int, rows.NewRequest]] = defaultdict(dict)
    for place, step in enumerate(steps):
        request = rows.new_request(step, gateway=gateway, arrived_at=to_moment(step.at))
        by_key[step.model, step.lora][place] = request
    placed: dict[int, Place] = {}
    for key in sorted(by_key):
        slot = _slot_taken([*by_key[key].values()], now=now)
        if slot is not None:
            placed |= dict.fromkeys(by_key[key], slot.place)
    return placed


@one_trip_retry
def _slot_taken(requests: Sequence[rows.NewRequest], *, now: datetime) -> OpenSlot | None:
    """The slot that new requests of one model and LoRA were written into; None where nothing was written."""
    free = [requests[0].model, requests[0].lora, moment(now)]
    count = len(requests)
    if on_postgresql():
        written = [value for one in requests for value in rows.row_values(one, RequestState.RUNNING, started_at=now)]
        slots = _read(rows_of(Query(_taking(count), [*free, count, now, count, *written])), now=now)
        return slots[0] if slots else None
    for slot in _read(rows_of(Query(_FREE_ON_SQLITE, free)), now=now):
        (taken,) = run_all([rows.taking(slot, count, now=now)])
        if taken.rows:
            run_all([rows.inserting([msgspec.structs.replace(one, slot=slot.id) for one in requests], now=now)])
            return slot
    return None


_FREE: Final = """
SELECT s.id, s.model_id, s.lora, s.launch, s.active, s.last_used_at, s.ready_at, s.address, FALSE AS waits,
  m.name, m.runtime, m.source, m.parallel, {parallel} AS most
FROM inference_slot s LEFT JOIN inference_runner r ON r.id = s.runner_id JOIN inference_model m ON m.id = s.model_id
WHERE m.name = %s AND s.lora = %s AND s.state = 'ready' AND (r.state = 'connected' OR s.pod_name <> '')
  AND {runtime} = m.runtime AND s.active < {parallel}
  AND NOT EXISTS (SELECT 1 FROM inference_request q WHERE q.model_name = m.name AND q.state = 'waiting')
ORDER BY s.active DESC, COALESCE({latest}, %s) DESC, s.id{collation} LIMIT 1
"""
"""The slot whose turn it is, as `reading_slots` reads it, with its model."""
_FREE_ON_SQLITE: Final = _FREE.format(
    parallel="COALESCE(NULLIF(json_extract(s.launch, '$.parallel'), 0), m.parallel)",
    runtime="COALESCE(NULLIF(json_extract(s.launch, '$.runtime'), ''), m.runtime)",
    latest="max(COALESCE(s.last_used_at, s.ready_at), COALESCE(s.ready_at, s.last_used_at))",
    collation="",
)
_FREE_ON_POSTGRESQL: Final = _FREE.format(
    parallel="COALESCE(NULLIF((s.launch ->> 'parallel')::int, 0), m.parallel)",
    runtime="COALESCE(NULLIF(s.launch ->> 'runtime', ''), m.runtime)",
    latest="GREATEST(s.last_used_at, s.ready_at)",
    collation=' COLLATE "C"',
)


@lru_cache(maxsize=64)
def _taking(count: int) -> str:
    """PostgreSQL's statement that takes places for so many requests, and writes them."""
    written = (
        f"put{place} AS ({rows.INSERT} SELECT {rows.ROW}, taken.id FROM taken)"  # noqa: S608 - constants and a number
        for place in range(count)
    )
    return f"""
WITH free AS ({_FREE_ON_POSTGRESQL}), taken AS (
  UPDATE inference_slot t SET active = t.active + %s, last_used_at = %s FROM free
  WHERE t.id = free.id AND t.state = 'ready' AND t.active + %s <= free.most RETURNING free.*
), {", ".join(written)} SELECT * FROM taken"""  # noqa: S608 - constants and a number


def _read(found: Sequence[Any], *, now: datetime) -> list[OpenSlot]:
    """The slot of `_FREE`, if any."""
    return [
        slot
        for *columns, name, runtime, source, parallel, _ in found
        for slot in rows.open_slots([columns], [rows.ModelRow(columns[1], name, runtime, source, parallel)], now=now)
    ]
