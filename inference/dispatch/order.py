"""In which order waiting requests are served: by priority, and within a priority the API tokens take turns.

Pure; called by `inference.dispatch.rounds`. Invariants: of two requests of one token and priority the earlier is served
first; a token with one request waits for at most one request of each other token, however many those have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

import msgspec


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits. `avoids`: slots that refused it a moment ago."""

    id: UUID
    model: str
    lora: str
    priority: int
    token: str
    arrived_at: datetime
    gateway: str = ""
    avoids: frozenset[str] = frozenset()


def in_turn(waiting: Iterable[Waiting], served_at: Mapping[str, datetime]) -> list[Waiting]:
    """Requests of one model and LoRA in the order in which they are served.

    `served_at`: token → when it was served last; a token that is not there was served longest ago.
    """
    turns: Counter[tuple[int, str]] = Counter()
    keyed: list[tuple[tuple[int, int, float, datetime, UUID], Waiting]] = []
    for one in sorted(waiting, key=lambda one: (one.arrived_at, one.id)):
        turn = turns[one.priority, one.token]
        turns[one.priority, one.token] += 1
        last = served_at.get(one.token)
        seconds = last.timestamp() if last is not None else 0.0
        keyed.append(((-one.priority, turn, seconds, one.arrived_at, one.id), one))
    keyed.sort(key=lambda pair: pair[0])
    return [one for _, one in keyed]
