"""The best set of whole GPUs of one node.

Called by `engine.choice`; `engine.set_scores` ranks nodes by the same scores. Up to 16 GPUs every subset is scored once
for each wiring, and the answer for free GPUs and a size, which equals brute force, is cached. On larger nodes the
search is bounded in steps: `engine.large_nodes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.caches import MIB, BoundedCache, cached_in
from allocations.engine.large_nodes import best_positions
from allocations.engine.subsets import mask_of, positions_of, subsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allocations.engine.topology import Topology

TABLES: Final = BoundedCache(64 * MIB)
"""For 16 GPUs the answers for one size take 0.8 MB with the scores of all subsets, for 8 GPUs 3 KB."""


class BestSet(NamedTuple):
    """A set of GPUs of one node: positions ascending, and the sum of its pair scores."""

    positions: tuple[int, ...]
    score: int


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
        budget = Budget() if budget is None else budget
        positions = best_positions(topology, free_mask, choosable, size, within_island=within_island, budget=budget)
        return BestSet(positions, topology.score(positions)) if positions else None
    answers = _answers(topology, size, within_island)
    chosen = int(answers.chosen[free_mask]) if choosable == free_mask else -1
    if chosen < 0:
        chosen = _search(topology, size, within_island, choosable, free_mask)
        if choosable == free_mask:
            answers.chosen[free_mask] = chosen
    return BestSet(positions_of(chosen), int(answers.scores[chosen])) if chosen else None


def best_first(topology: Topology, free_mask: int, sets: Iterable[BestSet | None]) -> list[BestSet]:
    """The sets there are of equally many GPUs, in the order of `best_set`."""
    found = [one for one in sets if one is not None]

    def key(one: BestSet) -> tuple[int, int, tuple[int, ...]]:
        left = positions_of(free_mask & ~mask_of(one.positions))
        return -one.score, -topology.score(left), one.positions

    return sorted(found, key=key) if len(found) > 1 else found


class _Answers(NamedTuple):
    """The answers so far for one (topology, size, within_island), with the scores, so that one look has both."""

    chosen: NDArray[np.int32]
    """By free mask: the chosen set as bits, 0 for none, -1 where not computed yet."""
    scores: NDArray[np.int64]
    """Of every subset."""


def _answers(topology: Topology, size: int, within_island: bool) -> _Answers:
    """The cached ones, or new ones. Without `cached_in`, which takes longer: every filter comes here."""
    key = (topology.fingerprint, size, within_island)
    answers: _Answers | None = TABLES.get(key)
    if answers is None:
        answers = _Answers(np.full(1 << topology.size, -1, dtype=np.int32), scores_of(topology))
        TABLES.put(key, answers, answers.chosen.nbytes + answers.scores.nbytes)
    return answers


def _search(topology: Topology, size: int, within_island: bool, choosable: int, free_mask: int) -> int:
    """The best subset as bits, 0 where there is none."""
    subsets, scores = _by_score(topology, size, within_island)
    fits = np.flatnonzero((subsets & ~choosable) == 0)
    if not len(fits):
        return 0
    tied = subsets[fits[scores[fits] == scores[fits[0]]]]
    left = scores_of(topology)[free_mask & ~tied]
    return int(tied[left.argmax()])  # the first of equals has the lower minors


@cached_in(TABLES, lambda ranked, *_: sum(column.nbytes for column in ranked))
def _by_score(topology: Topology, size: int, within_island: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Subsets of a size, best score first, lower minors first among equals; and their scores."""
    subsets = subsets_of(topology.size, size).astype(np.int32)
    if within_island:
        subsets = subsets[_in_island(topology)[subsets]]
    scores = scores_of(topology)[subsets]
    order = np.argsort(-scores, kind="stable")
    return subsets[order], scores[order]


@cached_in(TABLES, lambda table, *_: table.nbytes)
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


@cached_in(TABLES, lambda held, *_: held.nbytes)
def _in_island(topology: Topology) -> NDArray[np.bool_]:
    """[2^k] whether one island holds the subset (the empty set has none)."""
    every = np.arange(1 << topology.size, dtype=np.int32)
    held = np.zeros(len(every), dtype=np.bool_)
    for island in topology.island_masks:
        held |= (every & ~np.int32(island)) == 0
    held[0] = False
    return held
