"""Requests that arrive and find room, on PostgreSQL by one statement: the usual round, in one round trip.

Called by `inference.dispatch.rounds`, which decides about all others. Invariants: a request gets the slot that
`allocations.engine.slots.serving` would choose, while nobody waits for it; of what is not placed nothing is written.

Models are not locked. Nothing is given back here, and each round that gives places back serves who waits: so a free
place for which somebody waits is there only while such a round is under way, and is then taken once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from inference.dispatch import rows
from inference.dispatch.endings import Moment
from inference.dispatch.records import Arrival, Place
from storage.cursors import run_together
from storage.transactions import one_trip_retry


@one_trip_retry
def placed_at_once(steps: Sequence[Arrival], to_moment: Moment, *, gateway: str, now: datetime) -> dict[int, Place]:
    """By place of a step: where those are placed for whose model and LoRA one slot has room for all."""
    by_key: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for place, step in enumerate(steps):
        by_key[step.model, step.lora].append(place)
    groups = [by_key[key] for key in sorted(by_key)]
    found = run_together(
        [
            rows.placing(
                [
                    rows.new_request(steps[place], gateway=gateway, arrived_at=to_moment(steps[place].at))
                    for place in group
                ],
                now=now,
            )
            for group in groups
        ]
    )
    placed: dict[int, Place] = {}
    for group, taken in zip(groups, found, strict=True):
        for row in taken:
            placed.update(dict.fromkeys(group, rows.place_taken(row)))
    return placed
