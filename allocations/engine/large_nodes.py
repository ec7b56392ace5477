"""The best set of GPUs of a node of more than 16: exact in part, and bounded in steps.

Called by `engine.sets`. What is promised:

- For a single GPU, and while no more than 16 GPUs may be chosen from, the answer is exact.
- Sets of up to 16 out of more: for each GPU the 16 best wired to it (itself included, lower positions first among
  equals) are a pool; all sets of all pools are scored, and the best is taken, by the rules of `engine.sets`.
- Sets of more than 16: from each GPU a set grows by the GPU that adds most, and the best is taken.
- Pools, and GPUs to grow from, are tried in the order of their bound (the sum of the best pair scores of their GPU)
  until the steps are spent; the first always is. Pools of equal wiring are scored once and count once.

So one search takes at most its steps, or those of one pool (12,870) or one growth, whichever is more, beside ordering
every GPU's neighbours: its time grows with the square of the number of GPUs. On nodes of up to 125 GPUs every pool and
every growth is tried.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.caches import MIB, BoundedCache
from allocations.engine.subsets import members_of, pairs_of, positions_of, subsets_of
from allocations.engine.topology import EXACT_UP_TO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allocations.engine.budget import Budget
    from allocations.engine.topology import Topology

ANSWERS: Final = BoundedCache(4 * MIB)
"""Answers by (wiring, free, choosable, size, within an island, steps)."""

POOL_STEPS: Final = comb(EXACT_UP_TO, EXACT_UP_TO // 2)
"""The most sets of one size of a pool of 16; a search may always take these."""

_CELLS: Final = 1_000_000
"""Pools times subsets scored at once, which bounds memory to 8 MB."""
_TAKEN: Final = -(1 << 60)

Key = tuple[int, int, tuple[int, ...]]
"""What sets are compared by, the lowest best: the negative score, the pair scores to all free GPUs, the positions."""


class _Answer(NamedTuple):
    positions: tuple[int, ...]
    """Empty where there is no set."""
    steps: int


def best_positions(
    topology: Topology, free_mask: int, choosable: int, size: int, *, within_island: bool, budget: Budget
) -> tuple[int, ...]:
    """The positions of the best set found (see the module), ascending, empty where there is none."""
    if size == 1:
        return _single(topology, free_mask, choosable)
    steps = max(budget.of_a_search, POOL_STEPS)
    count = choosable.bit_count()
    enough = count * (POOL_STEPS if size <= EXACT_UP_TO else size * count)
    key = (topology.fingerprint, free_mask, choosable, size, within_island, min(steps, enough))
    answer: _Answer | None = ANSWERS.get(key)
    if answer is None:
        search = _Search(topology, free_mask, size, steps)
        for group in _groups(topology, choosable, size, within_island=within_island):
            search.add(group)
        answer = search.answer()
        ANSWERS.put(key, answer, 64 * len(answer.positions) + free_mask.bit_length() // 2)
    budget.spend(answer.steps)
    return answer.positions


def _single(topology: Topology, free_mask: int, choosable: int) -> tuple[int, ...]:
    """The GPU with the lowest pair scores to the other free ones."""
    places, free = (np.array(positions_of(mask), dtype=np.intp) for mask in (choosable, free_mask))
    held = topology.pair_score[np.ix_(places, free)].sum(axis=1)
    return (int(places[held.argmin()]),)


def _groups(topology: Topology, choosable: int, size: int, *, within_island: bool) -> Iterator[NDArray[np.intp]]:
    """Groups of positions that a set may be out of, each ascending."""
    for mask in topology.island_masks if within_island else (choosable,):
        if (mask & choosable).bit_count() >= size:
            yield np.array(positions_of(mask & choosable), dtype=np.intp)


class _Search:
    """One search. Groups are added, then tried in the order of their bounds."""

    def __init__(self, topology: Topology, free_mask: int, size: int, most_steps: int) -> None:
        free = np.array(positions_of(free_mask), dtype=np.intp)
        self.pairs = topology.pair_score
        self.size = size
        self.most_steps = most_steps
        self.steps = 0
        # the smaller the sum of these over a set, the better wired are the GPUs that it leaves
        self.held = self.pairs[:, free].sum(axis=1)
        self.best: Key | None = None
        self._pools: list[tuple[int, tuple[int, ...]]] = []
        self._seeds: list[tuple[int, int, NDArray[np.intp]]] = []

    def add(self, group: NDArray[np.intp]) -> None:
        """Add the pools or seeds of a group, each with its negative bound, so that the best sorts first."""
        if len(group) <= max(EXACT_UP_TO, self.size):
            first = tuple(group.tolist())
            self._pools.append((-int(self._bounds(self.pairs[np.ix_(group, group)]).max()), first))
            return
        between = self.pairs[np.ix_(group, group)]
        bounds = (-self._bounds(between)).tolist()
        if self.size > EXACT_UP_TO:
            self._seeds += [(bound, place, group) for place, bound in enumerate(bounds)]
            return
        # each GPU first in its own pool, then the best wired to it, lower positions first
        order = -between * len(group) + np.arange(len(group))
        np.fill_diagonal(order, -(1 << 62))
        near = np.argpartition(order, EXACT_UP_TO - 1, axis=1)[:, :EXACT_UP_TO]
        pools = group[np.sort(near, axis=1)].tolist()
        self._pools += [(bound, tuple(pool)) for bound, pool in zip(bounds, pools, strict=True)]

    def answer(self) -> _Answer:
        """The best set, and the steps it took."""
        self._try_pools()
        self._grow()
        return _Answer(self.best[2] if self.best else (), self.steps)

    def _bounds(self, between: NDArray[np.int64]) -> NDArray[np.int64]:
        """[g] the sum of each GPU's best pair scores to the rest of a set: an upper bound of what it adds to one."""
        others = self.size - 1
        if not others:
            return np.zeros(len(between), dtype=np.int64)
        most: NDArray[np.int64] = -np.partition(-between, others - 1, axis=1)[:, :others].sum(axis=1)
        return most

    def _try_pools(self) -> None:
        """Try as many different wirings of pools as the steps allow, the highest bound first."""
        alike: dict[bytes, list[tuple[int, ...]]] = {}
        left = self.most_steps - self.steps
        for _, pool in sorted(set(self._pools)):
            wiring = self.pairs[np.ix_(pool, pool)].tobytes() + self.held[list(pool)].tobytes()
            if wiring in alike:
                alike[wiring].append(pool)
                continue
            cost = comb(len(pool), self.size) if len(pool) > self.size else 1
            if cost > left and alike:
                break
            left -= cost
            self.steps += cost
            alike[wiring] = [pool]
        by_length: dict[int, list[list[tuple[int, ...]]]] = {}
        for pools in alike.values():
            by_length.setdefault(len(pools[0]), []).append(pools)
        for length in sorted(by_length):
            self._score_pools(length, by_length[length])

    def _score_pools(self, length: int, wirings: list[list[tuple[int, ...]]]) -> None:
        """Offer the best sets of pools of one length. `wirings`: for each wiring the pools that have it."""
        if length == self.size:
            for pools in wirings:
                self._offer(min(pools))
            return
        subsets, table = subsets_of(length, self.size), pairs_of(length, self.size)
        members = members_of(length, self.size)
        low, high = np.triu_indices(length, 1)
        first = np.array([pools[0] for pools in wirings], dtype=np.intp)
        step = max(1, _CELLS // len(subsets))
        for start in range(0, len(first), step):
            part = first[start : start + step]
            scores = self.pairs[part[:, low], part[:, high]].astype(np.float64) @ table
            most = scores.max(axis=1)
            for row in np.flatnonzero(most == most.max()).tolist():
                tied = np.flatnonzero(scores[row] == most[row])
                lost = members[tied] @ self.held[part[row]].astype(np.float64)
                chosen = positions_of(int(subsets[tied[lost.argmin()]]))  # the first of equals has the lower positions
                for pool in wirings[start + row]:
                    self._offer(tuple(pool[place] for place in chosen))

    def _grow(self) -> None:
        """Grow sets from as many GPUs as the steps allow, the highest bound first."""
        by_group: dict[int, tuple[NDArray[np.intp], list[int]]] = {}
        left = self.most_steps - self.steps
        for _, place, group in sorted(self._seeds, key=lambda seed: (seed[0], int(seed[2][seed[1]]))):
            cost = self.size * len(group)
            if cost > left and by_group:
                break
            left -= cost
            self.steps += cost
            by_group.setdefault(int(group[0]), (group, []))[1].append(place)
        for group, seeds in by_group.values():
            between = self.pairs[np.ix_(group, group)]
            chosen = np.zeros((len(seeds), len(group)), dtype=np.bool_)
            row, last = np.arange(len(seeds)), np.array(seeds)
            gains = np.zeros(chosen.shape, dtype=np.int64)
            for _ in range(self.size):
                chosen[row, last] = True
                gains += between[last]
                gains[row, last] = _TAKEN
                last = gains.argmax(axis=1)  # the first of equals has the lower position
            for grown in np.unique(chosen, axis=0):
                self._offer(tuple(group[grown].tolist()))

    def _offer(self, positions: tuple[int, ...]) -> None:
        """Keep a set that is better than the best so far."""
        chosen = list(positions)
        score = int(self.pairs[np.ix_(chosen, chosen)].sum()) // 2
        key = (-score, int(self.held[chosen].sum()), positions)
        if self.best is None or key < self.best:
            self.best = key
