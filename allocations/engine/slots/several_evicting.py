"""Option 4: a slot on several GPUs of one runner once idle slots have gone.

One a model, made and called by `slots.plan`. Numbers of evictions are tried from the least that a runner may do with.
What a number gives on a runner is kept until that runner changes. Invariants: as few slots as possible go, those idle
longest first; up to `SETS_MOST` sets of slots all are compared, beyond that slots that need not go are taken off from
the whole, those idle shortest first.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.caches import MIB, BoundedCache, cached_in
from allocations.engine.slots.candidates import Candidates, Choice
from allocations.engine.slots.memory import NEVER, claims
from allocations.engine.slots.sets import Memory, OneSet, best_of_any, fits_somewhere
from allocations.engine.slots.several import memory_of
from allocations.engine.slots.single import fewest_evictions, within

if TYPE_CHECKING:
    from allocations.engine.budget import Budget
    from allocations.engine.slots.room import Room

SETS_MOST: Final = 20_000
CELLS_MOST: Final = 4_000_000
"""Sets times slots times GPUs that are compared at once, which bounds memory."""


class _Plan(NamedTuple):
    """Slots to evict on a runner, idle longest first, and the set of GPUs. `memory`: free before, in sum."""

    idle: tuple[int, ...]
    evicts: tuple[int, ...]
    positions: tuple[int, ...]
    score: int
    memory: int


@cached_in(BoundedCache(8 * MIB), lambda table, *_: table.nbytes)
def _combinations(size: int, count: int) -> NDArray[np.intp]:
    """[c, count] the places of every set, the lowest first."""
    return np.array(list(combinations(range(size), count)), dtype=np.intp)


class SeveralEvicting:
    """The option for one model."""

    def __init__(self, room: Room, candidates: Candidates, budget: Budget) -> None:
        self._room = room
        self._candidates = candidates
        self._budget = budget
        self._plans: dict[int, dict[int, _Plan | None]] = {}
        """Runner → number of evictions → the plan."""
        self._reduced: dict[int, _Plan | None] = {}
        self._own: dict[int, list[int]] = {}
        """Runner → slots that may go."""
        self._least = np.full(len(room.runners), NEVER, dtype=np.int64)
        """[r] evictions that a runner needs at least, NEVER where none suffice."""
        self._seen = -1

    def choice(self) -> Choice | None:
        """Fewest evicted, idle longest, fewest GPUs, then as with room."""
        if not self._candidates.several or not len(self._room.by_age.slot):
            return None
        self._refresh()
        least = self._least
        own = {runner: self._slots_of(runner) for runner in np.flatnonzero(least < NEVER).tolist()}
        most = max(map(len, own.values()), default=0)
        for count in range(int(least.min(initial=NEVER)), most + 1):
            runners = [runner for runner, slots in own.items() if least[runner] <= count <= len(slots)]
            best = self._best(runners, own, count)
            if best is not None:
                return self._chosen(*best)
        return None

    def _refresh(self) -> None:
        """Forget what is known of runners that changed."""
        room = self._room
        among = self._candidates.runners
        if self._seen >= 0:
            changed = room.changed[self._seen :]
            for runner in changed:
                for known in (self._plans, self._reduced, self._own):
                    known.pop(runner, None)
            among = np.zeros(len(among), dtype=np.bool_)
            among[changed] = True
            among &= self._candidates.runners
        self._seen = len(room.changed)
        if among.any():
            self._bound(among)

    def _slots_of(self, runner: int) -> list[int]:
        if runner not in self._own:
            self._own[runner] = self._room.evictable_on(runner)
        return self._own[runner]

    def _best(self, runners: list[int], own: dict[int, list[int]], count: int) -> tuple[int, _Plan] | None:
        """The best plan of so many evictions on any of these runners."""
        room, on_disk = self._room, self._candidates.on_disk
        bounds = {runner: tuple(room.seconds[slot] for slot in own[runner][:count]) for runner in runners}
        best: tuple[int, _Plan] | None = None
        best_rank: tuple[object, ...] = ()
        for runner in sorted(runners, key=bounds.__getitem__, reverse=True):
            if best is not None and bounds[runner] < best[1].idle:
                break
            plan = self._plan(runner, own[runner], count)
            if plan is None:
                continue
            rank = (
                tuple(-seconds for seconds in plan.idle),
                len(plan.positions),
                not on_disk[runner],
                -plan.score,
                -plan.memory,
                int(room.memory_in_slots[runner]),
                runner,
            )
            if best is None or rank < best_rank:
                best, best_rank = (runner, plan), rank
        return best

    def _chosen(self, runner: int, plan: _Plan) -> Choice:
        room = self._room
        first = int(room.first[runner])
        gpus = tuple(first + place for place in plan.positions)
        after = room.raw.copy()
        for number in plan.evicts:
            for gpu, amount in room.held[number]:
                after[gpu] += amount
        return Choice(runner, gpus, self._candidates.claimed(room, gpus, np.maximum(after, 0)), plan.evicts)

    def _bound(self, among: NDArray[np.bool_]) -> None:
        """The least evictions of some runners: on each GPU as many slots as the smallest amount needs, where a slot on
        several GPUs counts for all of them.
        """
        room, candidates = self._room, self._candidates
        entries = room.by_amount
        gpus = candidates.gpus & among[room.runner_of]
        entries = entries.of(room.evictable[entries.slot] & gpus[entries.gpu])
        self._least[among] = NEVER
        for count, needed in candidates.several.items():
            smallest = np.where(gpus, claims(candidates.model, needed[-1], room.size), NEVER)
            fewest = fewest_evictions(room, smallest, entries)
            fewest = np.where(room.free >= smallest, 0, np.where(fewest > 0, fewest, NEVER))
            for wiring in room.wirings(among):
                if wiring.topology.size < count:
                    continue
                cheapest = np.partition(fewest[wiring.gpus], count - 1, axis=1)[:, :count]
                possible = cheapest.max(axis=1) < NEVER
                evictions = -(-np.where(cheapest < NEVER, cheapest, 0).sum(axis=1) // room.widest[wiring.runners])
                found = np.where(possible, np.maximum(evictions, 1), NEVER)
                self._least[wiring.runners] = np.minimum(self._least[wiring.runners], found)

    def _plan(self, runner: int, slots: list[int], count: int) -> _Plan | None:
        known = self._plans.setdefault(runner, {})
        if count not in known:
            known[count] = self._compared(runner, slots, count)
        return known[count]

    def _compared(self, runner: int, slots: list[int], count: int) -> _Plan | None:
        """The best of all sets of so many slots."""
        sets = comb(len(slots), count)
        if sets > SETS_MOST or sets * count * self._room.topologies[runner].size > CELLS_MOST:
            reduced = self._taken_off(runner, slots)
            return reduced if reduced is not None and len(reduced.evicts) <= count else None
        room = self._room
        some = _combinations(len(slots), count)
        limits = room.limited(slots)
        if limits:
            numbers = np.array(slots)
            kept = [within(room, numbers[row].tolist(), limits) for row in some]
            some = some[np.array(kept, dtype=np.bool_)]
        idle = room.idle[slots][some]
        after = self._raw(runner)[None, :] + self._gains(runner, slots)[some].sum(axis=1)
        rows = np.arange(len(some))
        able = {
            needed: fits_somewhere(self._memory(runner, after), self._candidates.model, needed)
            for needed in self._candidates.several.values()
        }
        rows = rows[np.logical_or.reduce(list(able.values()))[rows]] if len(rows) else rows
        while len(rows):
            oldest = rows
            for column in range(count):
                oldest = oldest[idle[oldest, column] == idle[oldest, column].max()]
            for needed, fits in able.items():
                tied = oldest[fits[oldest]]
                found = self._of_sets(runner, after[tied], needed)
                if found is not None:
                    row = tied[found.row]
                    chosen = tuple(slots[one] for one in some[row].tolist())
                    return _Plan(tuple(idle[row].tolist()), chosen, found.positions, found.score, found.memory)
            rows = np.setdiff1d(rows, oldest)
        return None

    def _of_sets(self, runner: int, after: NDArray[np.int64], needed: tuple[int, ...]) -> OneSet | None:
        """The best set of GPUs after any of these evictions ([c, k] bytes)."""
        if not len(after):
            return None
        topology = self._room.topologies[runner]
        return best_of_any(topology, self._memory(runner, after), self._candidates.model, needed, self._budget)

    def _taken_off(self, runner: int, slots: list[int]) -> _Plan | None:
        """All slots that may go together, less those that need not, idle shortest first. For very many slots."""
        if runner in self._reduced:
            return self._reduced[runner]
        room = self._room
        limits = room.limited(slots)
        going: list[int] = []
        for number in slots:
            if within(room, [*going, number], limits):
                going.append(number)
        gains = dict(zip(slots, self._gains(runner, slots), strict=True))
        after = self._raw(runner) + sum((gains[one] for one in going), start=np.zeros_like(self._raw(runner)))
        for number in reversed(going.copy()):
            if self._suffices(runner, after - gains[number]):
                after = after - gains[number]
                going.remove(number)
        plan = None
        for needed in self._candidates.several.values():
            found = self._of_sets(runner, after[None, :], needed)
            if found is not None:
                idle = tuple(room.seconds[one] for one in going)
                plan = _Plan(idle, tuple(going), found.positions, found.score, found.memory)
                break
        self._reduced[runner] = plan
        return plan

    def _suffices(self, runner: int, after: NDArray[np.int64]) -> bool:
        memory = self._memory(runner, after[None, :])
        return any(
            bool(fits_somewhere(memory, self._candidates.model, needed)[0])
            for needed in self._candidates.several.values()
        )

    def _raw(self, runner: int) -> NDArray[np.int64]:
        return self._room.raw[self._room.first[runner] : self._room.first[runner + 1]]

    def _memory(self, runner: int, after: NDArray[np.int64]) -> Memory:
        """The runner's GPUs after each of these evictions ([c, k])."""
        room = self._room
        gpus = np.arange(int(room.first[runner]), int(room.first[runner + 1]), dtype=np.intp)
        one = memory_of(room, self._candidates, gpus[None, :], after)
        rows = after.shape[0]
        return Memory(one.free, np.repeat(one.before, rows, axis=0), np.repeat(one.size, rows, axis=0))

    def _gains(self, runner: int, slots: list[int]) -> NDArray[np.int64]:
        """[m, k] bytes that each slot gives back on each GPU."""
        first = int(self._room.first[runner])
        gains = np.zeros((len(slots), self._room.topologies[runner].size), dtype=np.int64)
        for row, number in enumerate(slots):
            for gpu, amount in self._room.held[number]:
                gains[row, gpu - first] += amount
        return gains
