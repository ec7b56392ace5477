"""The best set of whole GPUs of one node, found exactly (DESIGN §2, Topology).

Called by `engine.choice`; `engine.set_scores` ranks nodes by the same scores. Up to 16 GPUs every subset is scored once per fingerprint; a question
(free GPUs, size) is then a search over the subsets of that size, answered once and remembered. No
greedy choice, so the answer equals brute force.

On a node of more than 16 GPUs the answer is exact while no more than 16 of them are free. With
more, the bound is documented here: for each free GPU the 16 free ones best wired to it (itself
included, lower minors first among equals) are searched exactly and the best of those answers is
taken; sets of more than 16 grow from each free GPU by the one that adds most.

Every cache is bounded and holds only what the wiring implies; nothing here depends on its state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.topology import EXACT_UP_TO, Topology

_CELLS = 4_000_000
"""Masks times subsets looked at in one go, which bounds the memory of a search."""


class BestSet(NamedTuple):
    """A set of GPUs of one node: positions ascending, the sum of its pair scores, and whether one island holds it."""

    positions: tuple[int, ...]
    score: int
    in_island: bool


def best_set(
    topology: Topology, free_mask: int, size: int, *, within_island: bool, eligible: int | None = None
) -> BestSet | None:
    """The set of `size` free GPUs with the highest score, None where there is none.

    Ties go to the set that leaves the highest total pair score among the GPUs still free, then to
    the lower minors. `free_mask` has bit p set where position p is free; `eligible` narrows what may
    be chosen (a model filter) without narrowing what counts as left over. `within_island`: only
    sets that one island holds.
    """
    choosable = free_mask if eligible is None else free_mask & eligible
    if size < 1 or choosable.bit_count() < size:
        return None
    if not topology.exact:
        return _best_of_many(topology, free_mask, choosable, size, within_island)
    if choosable == free_mask:
        chosen = int(_answers(topology, size, within_island).of(np.array([free_mask], dtype=np.int32))[0])
    else:
        one, other = np.array([choosable], dtype=np.int32), np.array([free_mask], dtype=np.int32)
        chosen = int(_search(topology, size, within_island, one, other)[0])
    if not chosen:
        return None
    return BestSet(positions_of(chosen), int(scores_of(topology)[chosen]), bool(_in_island(topology)[chosen]))


class _Answers:
    """Every answer found so far for one (topology, size, within_island), by free mask: -1 not asked yet, 0 none."""

    __slots__ = ("chosen", "size", "topology", "within_island")

    def __init__(self, topology: Topology, size: int, within_island: bool) -> None:
        self.topology = topology
        self.size = size
        self.within_island = within_island
        self.chosen = np.full(1 << topology.size, -1, dtype=np.int32)

    def of(self, masks: NDArray[np.int32]) -> NDArray[np.int32]:
        """[m] the chosen set of each mask as bits, 0 where there is none."""
        answer = self.chosen[masks]
        unknown = answer < 0
        if unknown.any():
            new = np.unique(masks[unknown])
            self.chosen[new] = _search(self.topology, self.size, self.within_island, new, new)
            answer = self.chosen[masks]
        return answer


@lru_cache(maxsize=128)
def _answers(topology: Topology, size: int, within_island: bool) -> _Answers:
    return _Answers(topology, size, within_island)


def _search(
    topology: Topology,
    size: int,
    within_island: bool,
    eligible: NDArray[np.int32],
    free: NDArray[np.int32],
) -> NDArray[np.int32]:
    """[m] the best subset of each eligible mask as bits, 0 where there is none."""
    subsets, rank = _by_score(topology, size, within_island)
    chosen = np.zeros(len(eligible), dtype=np.int32)
    if not len(subsets):
        return chosen
    table = scores_of(topology)
    step = max(1, _CELLS // len(subsets))
    for start in range(0, len(eligible), step):
        part = slice(start, start + step)
        taken = (~eligible[part]).astype(np.uint16)
        fits = (subsets[None, :] & taken[:, None]) == 0
        first = fits.argmax(axis=1)
        # only subsets as good as the first one that fits are compared by what they leave
        fits &= rank[None, :] == rank[first][:, None]
        row, column = np.nonzero(fits)
        if not len(row):
            continue
        left = table[free[part][row] & ~subsets[column].astype(np.int32)]
        rows, begins = np.unique(row, return_index=True)
        most = np.zeros(len(taken), dtype=np.int64)
        most[rows] = np.maximum.reduceat(left, begins)
        best = np.flatnonzero(left == most[row])
        # subsets of one rank stand in the order of their minors: the first one wins
        rows, begins = np.unique(row[best], return_index=True)
        chosen[start + rows] = subsets[column[best[begins]]]
    return chosen


@lru_cache(maxsize=256)
def _by_score(topology: Topology, size: int, within_island: bool) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Subsets of a size, best score first, lower minors first among equals; and the rank of their score."""
    subsets = subsets_of(topology.size, size)
    if within_island:
        subsets = subsets[_in_island(topology)[subsets]]
    score = scores_of(topology)[subsets]
    order = np.argsort(-score, kind="stable")
    score = score[order]
    rank = np.zeros(len(score), dtype=np.int32)
    if len(score):
        rank[1:] = np.cumsum(score[1:] != score[:-1])
    return subsets[order], rank


@lru_cache(maxsize=160)
def subsets_of(size: int, count: int) -> NDArray[np.uint16]:
    """Bit masks of `count` out of `size` positions, lexicographically lowest sorted positions first."""
    every = np.arange(1 << size, dtype=np.uint32)
    picked: NDArray[np.uint32] = every[np.equal(np.bitwise_count(every), count)]
    backwards = np.zeros_like(picked)
    for place in range(size):
        backwards |= ((picked >> np.uint32(place)) & np.uint32(1)) << np.uint32(size - 1 - place)
    return picked[np.argsort(-backwards.astype(np.int64), kind="stable")].astype(np.uint16)


@lru_cache(maxsize=64)
def scores_of(topology: Topology) -> NDArray[np.int64]:
    """[2^k] the score of every subset; a subset's bits are its index."""
    pairs = topology.pair_score
    table = np.zeros(1, dtype=np.int64)
    for last in range(topology.size):
        gain = np.zeros(1, dtype=np.int64)
        for place in range(last):
            gain = np.concatenate((gain, gain + pairs[last, place]))
        table = np.concatenate((table, table + gain))
    return table


@lru_cache(maxsize=64)
def _in_island(topology: Topology) -> NDArray[np.bool_]:
    """[2^k] whether one island holds the subset (the empty set has none)."""
    every = np.arange(1 << topology.size, dtype=np.int32)
    held = np.zeros(len(every), dtype=np.bool_)
    for island in topology.island_masks:
        held |= (every & ~np.int32(island)) == 0
    held[0] = False
    return held


@lru_cache(maxsize=4096)
def _best_of_many(topology: Topology, free_mask: int, choosable: int, size: int, within_island: bool) -> BestSet | None:
    """The answer for a node of more than 16 GPUs; see the module for what it promises."""
    free = positions_of(free_mask)
    if len(free) <= EXACT_UP_TO:
        eligible = sum(1 << place for place, position in enumerate(free) if choosable >> position & 1)
        everything = (1 << len(free)) - 1
        exact = best_set(topology.restricted(free), everything, size, within_island=within_island, eligible=eligible)
        return exact and exact._replace(positions=tuple(free[place] for place in exact.positions))
    places = positions_of(choosable)
    pools: dict[tuple[int, ...], None] = {}
    if within_island:
        held = [tuple(place for place in places if island >> place & 1) for island in topology.island_masks]
        groups = [group for group in held if len(group) >= size]
    else:
        groups = [places]
    for group in groups:
        for pool in _pools(topology, group, size):
            pools[pool] = None
    best: tuple[tuple[int, int, tuple[int, ...]], BestSet] | None = None
    for pool in pools:
        chosen = pool
        if len(pool) > size:
            small = topology.restricted(pool)
            everything = (1 << len(pool)) - 1
            within = best_set(small, everything, size, within_island=within_island)
            if within is None:
                continue
            chosen = tuple(pool[place] for place in within.positions)
        score = topology.score(chosen)
        left = topology.score([place for place in free if place not in set(chosen)])
        islands = {topology.islands[place] for place in chosen}
        key = (-score, -left, chosen)
        if best is None or key < best[0]:
            best = (key, BestSet(chosen, score, len(islands) == 1))
    return best[1] if best else None


def _pools(topology: Topology, group: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """Sets of positions to search exactly, or, of just `size`, to take as they are."""
    if len(group) <= max(EXACT_UP_TO, size):
        return [group]
    pairs = topology.pair_score
    if size <= EXACT_UP_TO:
        return [
            tuple(sorted(sorted(group, key=lambda place: (place != seed, -pairs[seed, place], place))[:EXACT_UP_TO]))
            for seed in group
        ]
    grown = []
    for seed in group:
        chosen, others = [seed], [place for place in group if place != seed]
        while len(chosen) < size:
            gains = pairs[np.ix_(others, chosen)].sum(axis=1)
            chosen.append(others.pop(int(gains.argmax())))
        grown.append(tuple(sorted(chosen)))
    return grown


def positions_of(mask: int) -> tuple[int, ...]:
    """The set bits, ascending."""
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return tuple(places)
