"""Requests that arrive and find room: the usual round, by one statement of PostgreSQL and three of SQLite.

Called by gateways on their event loop, and by `inference.dispatch.rounds`, which decides about all others. Invariants:
a request gets the slot that `allocations.engine.slots.serving` would choose, while nobody waits for its model; of what
is not placed nothing is written.

Models are not locked. Nothing is given back here, and each round that gives places back serves who waits: so a free
place for which somebody waits is there only while such a round is under way, and is then taken once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from inference.choices import RequestState
from inference.dispatch import rows
from inference.dispatch.endings import Moment
from inference.dispatch.places import runtimes_name
from inference.dispatch.records import Arrival, Place
from storage.cursors import Query, moment, on_postgresql, rows_of, run_all
from storage.transactions import one_trip_retry

KEYS_AT_ONCE: Final = 4
"""Models and LoRAs of one round that are tried one by one before it decides: each is a transaction."""


def placed_at_once(steps: Sequence[Arrival], to_moment: Moment, *, gateway: str, now: datetime) -> dict[int, Place]:
    """Index of a step → its place, if one slot has room for all requests of the step's model and LoRA."""
    placed: dict[int, Place] = {}
    for requests in _by_key(steps, to_moment, gateway):
        place = _place_taken([*requests.values()], now=now)
        if place is not None:
            placed |= dict.fromkeys(requests, place)
    return placed


RowsOf = Callable[[Query], Awaitable[list[Any] | None]]
"""Rows of a statement of PostgreSQL; None where it changed nothing."""


async def placed_on_loop(
    rows_on_loop: RowsOf, steps: Sequence[Arrival], to_moment: Moment, *, gateway: str, now: datetime
) -> dict[int, Place]:
    """As `placed_at_once`, by statements that are awaited. Those of many models and LoRAs are left to a round.

    Raises what `rows_on_loop` raises.
    """
    placed: dict[int, Place] = {}
    grouped = _by_key(steps, to_moment, gateway)
    for requests in grouped if len(grouped) <= KEYS_AT_ONCE else ():
        found = await rows_on_loop(_taking_query([*requests.values()], now=now))
        for row in found or ():
            placed |= dict.fromkeys(requests, _place(row, requests.values()))
    return placed


def _by_key(steps: Sequence[Arrival], to_moment: Moment, gateway: str) -> list[dict[int, rows.NewRequest]]:
    """For each model and LoRA: index of a step → the row of its request."""
    by_key: defaultdict[tuple[str, str], dict[int, rows.NewRequest]] = defaultdict(dict)
    for place, step in enumerate(steps):
        request = rows.new_request(step, gateway=gateway, arrived_at=to_moment(step.at))
        by_key[step.model, step.lora][place] = request
    return [by_key[key] for key in sorted(by_key)]


@one_trip_retry
def _place_taken(requests: Sequence[rows.NewRequest], *, now: datetime) -> Place | None:
    """The place that new requests of one model and LoRA were written into; None where nothing was written."""
    if on_postgresql():
        found = rows_of(_taking_query(requests, now=now))
        return _place(found[0], requests) if found else None
    free = [requests[0].model, requests[0].lora, moment(now)]
    for row in rows_of(Query(_FREE_ON_SQLITE, free)):
        place, most = _place(row, requests), row[-1]
        (taken,) = run_all([rows.taking(place.slot, len(requests), parallel=most, now=now)])
        if taken.rows:
            run_all([rows.inserting([msgspec.structs.replace(one, slot=place.slot) for one in requests], now=now)])
            return place
    return None


_FREE: Final = """
SELECT s.id, s.address, m.runtime, COALESCE(NULLIF({source}, ''), NULLIF(m.source, ''), m.name) AS source,
  {parallel} AS most
FROM inference_slot s LEFT JOIN inference_runner r ON r.id = s.runner_id JOIN inference_model m ON m.id = s.model_id
WHERE m.name = %s AND s.lora = %s AND s.state = 'ready' AND (r.state = 'connected' OR s.pod_name <> '')
  AND {runtime} = m.runtime AND s.active < {parallel}
  AND NOT EXISTS (SELECT 1 FROM inference_request q WHERE q.model_name = m.name AND q.state = 'waiting')
ORDER BY s.active DESC, COALESCE({latest}, %s) DESC, s.id{collation} LIMIT 1
"""
"""The slot whose turn it is. No column more than its place needs: each costs PostgreSQL and us ten microseconds."""
_FREE_ON_SQLITE: Final = _FREE.format(
    parallel="COALESCE(NULLIF(json_extract(s.launch, '$.parallel'), 0), m.parallel)",
    runtime="COALESCE(NULLIF(json_extract(s.launch, '$.runtime'), ''), m.runtime)",
    source="json_extract(s.launch, '$.source')",
    latest="max(COALESCE(s.last_used_at, s.ready_at), COALESCE(s.ready_at, s.last_used_at))",
    collation="",
)
_FREE_ON_POSTGRESQL: Final = _FREE.format(
    parallel="COALESCE(NULLIF((s.launch ->> 'parallel')::int, 0), m.parallel)",
    runtime="COALESCE(NULLIF(s.launch ->> 'runtime', ''), m.runtime)",
    source="s.launch ->> 'source'",
    latest="GREATEST(s.last_used_at, s.ready_at)",
    collation=' COLLATE "C"',
)


def _taking_query(requests: Sequence[rows.NewRequest], *, now: datetime) -> Query:
    """PostgreSQL's statement for requests of one model and LoRA, which returns the slot."""
    count = len(requests)
    written = [value for one in requests for value in rows.row_values(one, RequestState.RUNNING, started_at=now)]
    return Query(_taking(count), [requests[0].model, requests[0].lora, now, count, now, count, *written])


@lru_cache(maxsize=64)
def _taking(count: int) -> str:
    """The text that takes places for so many requests, and writes them."""
    written = (
        f"put{place} AS ({rows.INSERT} SELECT {rows.ROW}, taken.id FROM taken)"  # noqa: S608 - constants and a number
        for place in range(count)
    )
    return f"""
WITH free AS ({_FREE_ON_POSTGRESQL}), taken AS (
  UPDATE inference_slot t SET active = t.active + %s, last_used_at = %s FROM free
  WHERE t.id = free.id AND t.state = 'ready' AND t.active + %s <= free.most RETURNING free.*
), {", ".join(written)} SELECT * FROM taken"""  # noqa: S608 - constants and a number


def _place(row: Sequence[Any], requests: Collection[rows.NewRequest]) -> Place:
    """The place in a slot of `_FREE` for such requests."""
    slot_id, address, runtime, source, _ = row
    one = next(iter(requests))
    return Place(slot=slot_id, address=address, model_name=runtimes_name(runtime, source, one.model, one.lora))
