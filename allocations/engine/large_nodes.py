"""The best set of GPUs where more than 16 may be chosen from: exact in part, and bounded in steps.

Called by `engine.sets` for nodes of more than 16 GPUs. What is promised:

- While no more than 16 GPUs may be chosen from, and for a single GPU, the answer is exact.
- Sets of up to 16 out of more: for each GPU the 16 best wired to it (itself included, lower positions first among equals) are a pool; every
  set of every pool is looked at, all at once, and the best is taken, by the rules of `engine.sets`.
- Sets of more than 16: from each GPU a set grows by the GPU that adds most, and the best is taken.
- Pools, and GPUs to grow from, are looked at in the order of what they promise (the best pair scores of their GPU, added up) until the
  steps given are spent; the first always is. Pools that are wired alike are looked at once and count once.

So one search takes at most the steps given, or those of one pool (12,870) or one growth, whichever is more, beside ordering every GPU's
neighbours: its time grows with the square of the number of GPUs. Nodes of up to 125 GPUs have every pool and every growth looked at.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.remembered import MIB, Remembered
from allocations.engine.subsets import members_of, pairs_of, positions_of, subsets_of
from allocations.engine.topology import EXACT_UP_TO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allocations.engine.budget import Budget
    from allocations.engine.topology import Topology

ANSWERS: Final = Remembered(4 * MIB)
"""Answers by (wiring, free, choosable, size, within an island, steps given)."""

POOL_STEPS: Final = comb(EXACT_UP_TO, EXACT_UP_TO // 2)
"""The sets of one size that a pool of 16 has at most; a search may always take these."""

_CELLS: Final = 1_000_000
"""Pools times subsets scored in one go, which bounds memory to 8 MB."""
_TAKEN: Final = -(1 << 60)

Key = tuple[int, int, tuple[int, ...]]
"""What sets are compared by, the lowest best: the score and the pair scores to all that is free, the one negative; then the positions."""


class _Answer(NamedTuple):
    positions: tuple[int, ...]
    """Empty where there is no set."""
    steps: int


def best_positions(
    topology: Topology, free_mask: int, choosable: int, size: int, *, within_island: bool, budget: Budget
) -> tuple[int, ...]:
    """The positions of the best set found, ascending, empty where there is none. See the module for what that promises."""
    if size == 1:
        return _lone(topology, free_mask, choosable)
    given = max(budget.of_a_question, POOL_STEPS)
    count = choosable.bit_count()
    enough = count * (POOL_STEPS if size <= EXACT_UP_TO else size * count)
    key = (topology.fingerprint, free_mask, choosable, size, within_island, min(given, enough))
    answer: _Answer | None = ANSWERS.get(key)
    if answer is None:
        search = _Search(topology, free_mask, size, given)
        for group in _groups(topology, choosable, size, within_island=within_island):
            search.add(group)
        answer = search.answer()
        ANSWERS.put(key, answer, 64 * len(answer.positions) + free_mask.bit_length() // 2)
    budget.spend(answer.steps)
    return answer.positions


def _lone(topology: Topology, free_mask: int, choosable: int) -> tuple[int, ...]:
    """The GPU whose loss hurts the others least: exact, and no search."""
    places, free = (np.array(positions_of(mask), dtype=np.intp) for mask in (choosable, free_mask))
    held = topology.pair_score[np.ix_(places, free)].sum(axis=1)
    return (int(places[held.argmin()]),)


def _groups(topology: Topology, choosable: int, size: int, *, within_island: bool) -> Iterator[NDArray[np.intp]]:
    """Positions, ascending, out of which a set may be."""
    for mask in topology.island_masks if within_island else (choosable,):
        if (mask & choosable).bit_count() >= size:
            yield np.array(positions_of(mask & choosable), dtype=np.intp)


class _Search:
    """One question. Groups are added, then answered in the order of what they promise."""

    def __init__(self, topology: Topology, free_mask: int, size: int, given: int) -> None:
        free = np.array(positions_of(free_mask), dtype=np.intp)
        self.pairs = topology.pair_score
        self.size = size
        self.given = given
        self.steps = 0
        # what is left over is the better wired, the less its GPUs lose by the set: this, added up over the set
        self.held = self.pairs[:, free].sum(axis=1)
        self.best: Key | None = None
        self._pools: list[tuple[int, tuple[int, ...]]] = []
        self._seeds: list[tuple[int, int, NDArray[np.intp]]] = []

    def add(self, group: NDArray[np.intp]) -> None:
        """Note where to look in a group, with what it promises (negative: sorted, the best comes first)."""
        if len(group) <= max(EXACT_UP_TO, self.size):
            first = tuple(group.tolist())
            self._pools.append((-int(self._promise(self.pairs[np.ix_(group, group)]).max()), first))
            return
        between = self.pairs[np.ix_(group, group)]
        promise = (-self._promise(between)).tolist()
        if self.size > EXACT_UP_TO:
            self._seeds += [(told, place, group) for place, told in enumerate(promise)]
            return
        # each GPU first in its own pool, then the best wired to it, lower positions first
        order = -between * len(group) + np.arange(len(group))
        np.fill_diagonal(order, -(1 << 62))
        near = np.argpartition(order, EXACT_UP_TO - 1, axis=1)[:, :EXACT_UP_TO]
        pools = group[np.sort(near, axis=1)].tolist()
        self._pools += [(told, tuple(pool)) for told, pool in zip(promise, pools, strict=True)]

    def answer(self) -> _Answer:
        """The best set, and the steps it took."""
        self._look_at_pools()
        self._grow()
        return _Answer(self.best[2] if self.best else (), self.steps)

    def _promise(self, between: NDArray[np.int64]) -> NDArray[np.int64]:
        """[g] the best pair scores of each GPU of a group, as many as a set has beside it, added up: no set with it has more."""
        others = self.size - 1
        if not others:
            return np.zeros(len(between), dtype=np.int64)
        most: NDArray[np.int64] = -np.partition(-between, others - 1, axis=1)[:, :others].sum(axis=1)
        return most

    def _look_at_pools(self) -> None:
        """Pools of equal wiring stand together; as many wirings as the steps allow are looked at, the most promising first."""
        alike: dict[bytes, list[tuple[int, ...]]] = {}
        left = self.given - self.steps
        for _, pool in sorted(set(self._pools)):
            wiring = self.pairs[np.ix_(pool, pool)].tobytes() + self.held[list(pool)].tobytes()
            known = alike.get(wiring)
            if known is not None:
                known.append(pool)
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
            self._look_at(length, by_length[length])

    def _look_at(self, length: int, wirings: list[list[tuple[int, ...]]]) -> None:
        """Every set of some pools of one length. `wirings`: for each wiring the pools that have it."""
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
        """From each GPU, as many as the steps allow, the most promising first."""
        by_group: dict[int, tuple[NDArray[np.intp], list[int]]] = {}
        left = self.given - self.steps
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
        """Take a set where it is better than the best so far."""
        chosen = list(positions)
        score = int(self.pairs[np.ix_(chosen, chosen)].sum()) // 2
        key = (-score, int(self.held[chosen].sum()), positions)
        if self.best is None or key < self.best:
            self.best = key
