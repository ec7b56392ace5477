"""Requests that arrive and find room: the usual round, by one statement of PostgreSQL and three of SQLite.

Called by `inference.dispatch.rounds`, which decides about all others. Invariants: a request gets the slot that
`allocations.engine.slots.serving` would choose, while nobody waits for its model; of what is not placed nothing is
written.

Models are not locked. Nothing is given back here, and each round that gives places back serves who waits: so a free
place for which somebody waits is there only while such a round is under way, and is then taken once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from inference.dispatch import rows
from inference.dispatch.endings import Moment
from inference.dispatch.records import Arrival, Place
from storage.transactions import one_trip_retry


def placed_at_once(steps: Sequence[Arrival], to_moment: Moment, *, gateway: str, now: datetime) -> dict[int, Place]:
    """By place of a step: where those are placed for whose model and LoRA one slot has room for all."""
    by_key: defaultdict[tuple[str, str], dict[int, rows.NewRequest]] = defaultdict(dict)
    for place, step in enumerate(steps):
        request = rows.new_request(step, gateway=gateway, arrived_at=to_moment(step.at))
        by_key[step.model, step.lora][place] = request
    placed: dict[int, Place] = {}
    for key in sorted(by_key):
        placed |= _placed(by_key[key], now=now)
    return placed


@one_trip_retry
def _placed(requests: Mapping[int, rows.NewRequest], *, now: datetime) -> dict[int, Place]:
    """Those of one model and LoRA."""
    return {place: rows.place_taken(row) for row in rows.placing([*requests.values()], now=now) for place in requests}
