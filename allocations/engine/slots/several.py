"""Option 3: a slot on several GPUs of one runner that have room.

One a model, made and called by `slots.plan`. The best set of each runner is kept until memory of that runner changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.slots.candidates import Candidates, Choice, narrowed
from allocations.engine.slots.sets import NO_SET, Memory, best_sets, fits_somewhere

if TYPE_CHECKING:
    from allocations.engine.budget import Budget
    from allocations.engine.slots.room import Room, Wiring


class _Known:
    """The best sets of one number of GPUs, by runner."""

    def __init__(self, runners: int) -> None:
        self.score = np.full(runners, NO_SET, dtype=np.int64)
        self.memory = np.zeros(runners, dtype=np.int64)
        self.positions: list[tuple[int, ...]] = [()] * runners
        self.seen = -1
        """How many of the room's changes are in it; -1: nothing yet."""


class Several:
    """The option for one model."""

    def __init__(self, room: Room, candidates: Candidates, budget: Budget) -> None:
        self._room = room
        self._candidates = candidates
        self._budget = budget
        self._known: dict[int, _Known] = {}

    def with_room(self) -> Choice | None:
        """The fewest GPUs first; then model on disk, highest pair score, most free in sum, the runner with less memory
        in slots, its name, the minors.
        """
        room, candidates = self._room, self._candidates
        for count in candidates.several:
            known = self._refreshed(count)
            runners = np.flatnonzero((known.score != NO_SET) & room.open)
            if not len(runners):
                continue
            for values in (candidates.on_disk, known.score, known.memory, -room.memory_in_slots):
                runners = narrowed(runners, values)
            runner = int(runners[0])
            gpus = tuple(int(room.first[runner]) + place for place in known.positions[runner])
            return Choice(runner, gpus, candidates.claimed(room, gpus, room.free))
        return None

    def _refreshed(self, count: int) -> _Known:
        room = self._room
        known = self._known.setdefault(count, _Known(len(room.runners)))
        among = self._candidates.runners
        if known.seen >= 0:
            changed = np.zeros(len(among), dtype=np.bool_)
            changed[room.changed[known.seen :]] = True
            among = among & changed
        known.seen = len(room.changed)
        for wiring in room.wirings(among):
            self._refresh(known, count, wiring)
        return known

    def _refresh(self, known: _Known, count: int, wiring: Wiring) -> None:
        needed, model = self._candidates.several[count], self._candidates.model
        memory = memory_of(self._room, self._candidates, wiring.gpus, self._room.raw[wiring.gpus])
        known.score[wiring.runners] = NO_SET
        hopeful = fits_somewhere(memory, model, needed)
        if not hopeful.any():
            return
        runners = wiring.runners[hopeful]
        found = best_sets(wiring.topology, Memory(*(part[hopeful] for part in memory)), model, needed, self._budget)
        known.score[runners] = found.score
        known.memory[runners] = found.memory
        for runner, positions in zip(runners.tolist(), found.positions, strict=True):
            known.positions[runner] = positions


def memory_of(room: Room, candidates: Candidates, gpus: NDArray[np.intp], raw: NDArray[np.int64]) -> Memory:
    """Memory of [r, k] places in the row, where `raw` is what is free of them, now or after evictions."""
    free = np.where(candidates.gpus[gpus], np.maximum(raw, 0), np.int64(-1))
    return Memory(free, room.free[gpus], room.size[gpus])
