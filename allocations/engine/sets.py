"""The best set of whole GPUs of one node, found exactly.

Called by `engine.choice`; `engine.set_scores` ranks nodes by the same scores. Up to 16 GPUs every subset is scored once per fingerprint; a question
(free GPUs, size) is then a search over the subsets of that size, answered once and remembered. No
greedy choice, so the answer equals brute force. On a node of more than 16 GPUs the search is bounded in steps: `engine.large_nodes`.

What is remembered has `TABLES.most_bytes` at most and holds only what the wiring implies; nothing here depends on its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.large_nodes import best_positions
from allocations.engine.remembered import MIB, Remembered, remembered
from allocations.engine.subsets import positions_of, subsets_of

if TYPE_CHECKING:
    from allocations.engine.topology import Topology

TABLES: Final = Remembered(64 * MIB)
"""Of 16 GPUs the answers for one size count 0.8 MB with the scores that they rest on, of 8 GPUs 3 KB."""

_CELLS = 4_000_000
"""Masks times subsets looked at in one go, which bounds the memory of a search."""


class BestSet(NamedTuple):
    """A set of GPUs of one node: positions ascending, the sum of its pair scores, and whether one island holds it."""

    positions: tuple[int, ...]
    score: int
    in_island: bool


def best_set(
    topology: Topology,
    free_mask: int,
    size: int,
    *,
    within_island: bool,
    eligible: int | None = None,
    budget: Budget | None = None,
) -> BestSet | None:
    """The set of `size` free GPUs with the highest score, None where there is none.

    Ties go to the set that leaves the highest total pair score among the GPUs still free, then to
    the lower minors. `free_mask` has bit p set where position p is free; `eligible` narrows what may
    be chosen (a model filter) without narrowing what counts as left over. `within_island`: only
    sets that one island holds. `budget`: what searches on nodes of more than 16 GPUs spend.
    """
    choosable = free_mask if eligible is None else free_mask & eligible
    if size < 1 or choosable.bit_count() < size:
        return None
    if not topology.exact:
        return _of_many(topology, free_mask, choosable, size, within_island, Budget() if budget is None else budget)
    answers = _answers(topology, size, within_island)
    if choosable == free_mask:
        chosen = int(answers.of(np.array([free_mask], dtype=np.int32))[0])
    else:
        one, other = np.array([choosable], dtype=np.int32), np.array([free_mask], dtype=np.int32)
        chosen = int(_search(topology, size, within_island, one, other)[0])
    if not chosen:
        return None
    return BestSet(positions_of(chosen), int(answers.scores[chosen]), bool(answers.in_island[chosen]))


def _of_many(
    topology: Topology, free_mask: int, choosable: int, size: int, within_island: bool, budget: Budget
) -> BestSet | None:
    """The answer for a node of more than 16 GPUs; see `engine.large_nodes` for what it promises."""
    positions = best_positions(topology, free_mask, choosable, size, within_island=within_island, budget=budget)
    if not positions:
        return None
    in_island = len({topology.islands[place] for place in positions}) == 1
    return BestSet(positions, topology.score(positions), in_island)


class _Answers:
    """Every answer found so far for one (topology, size, within_island), by free mask: -1 not asked yet, 0 none.

    The tables of its wiring are at hand here, so that a question is one look into the store.
    """

    __slots__ = ("chosen", "in_island", "scores", "size", "topology", "within_island")

    def __init__(self, topology: Topology, size: int, within_island: bool) -> None:
        self.topology = topology
        self.size = size
        self.within_island = within_island
        self.chosen = np.full(1 << topology.size, -1, dtype=np.int32)
        self.scores = scores_of(topology)
        self.in_island = _in_island(topology)

    @property
    def nbytes(self) -> int:
        """What it keeps alive, the tables that it shares with others included."""
        return self.chosen.nbytes + self.scores.nbytes + self.in_island.nbytes

    def of(self, masks: NDArray[np.int32]) -> NDArray[np.int32]:
        """[m] the chosen set of each mask as bits, 0 where there is none."""
        answer = self.chosen[masks]
        unknown = answer < 0
        if unknown.any():
            new = np.unique(masks[unknown])
            self.chosen[new] = _search(self.topology, self.size, self.within_island, new, new)
            answer = self.chosen[masks]
        return answer


def _answers(topology: Topology, size: int, within_island: bool) -> _Answers:
    """Those kept, or new ones. Looked up without `remembered`, since every filter comes here."""
    key = (topology.fingerprint, size, within_island)
    answers: _Answers | None = TABLES.get(key)
    if answers is None:
        answers = _Answers(topology, size, within_island)
        TABLES.put(key, answers, answers.nbytes)
    return answers


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


@remembered(TABLES, lambda ranked, *_: sum(column.nbytes for column in ranked))
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


@remembered(TABLES, lambda table, *_: table.nbytes)
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


@remembered(TABLES, lambda held, *_: held.nbytes)
def _in_island(topology: Topology) -> NDArray[np.bool_]:
    """[2^k] whether one island holds the subset (the empty set has none)."""
    every = np.arange(1 << topology.size, dtype=np.int32)
    held = np.zeros(len(every), dtype=np.bool_)
    for island in topology.island_masks:
        held |= (every & ~np.int32(island)) == 0
    held[0] = False
    return held
