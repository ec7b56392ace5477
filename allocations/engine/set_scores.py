"""How good the best set of each node is, for ranking nodes: scores only, many nodes and wirings at once.

Called by `engine.plan` through the picture's index. Where `engine.sets` answers which set (ties
broken, one node), this answers how good it is, which ties cannot change: all subsets of the size
asked, of all wirings at once, are one matrix product. Kept true: scores are exact integers (float64
holds them: far below 2^53) and equal those of `engine.sets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.subsets import pairs_of, subsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.topology import Topology

NO_SET = -1
"""The score where there is no set."""

_CELLS = 2_000_000
"""Nodes times subsets looked at in one go, which bounds memory."""


class SetScores:
    """Best-set scores of a fleet's nodes, remembered by the free GPUs they were worked out for.

    Between two requests few nodes change, so nearly every answer is a comparison of masks. Only for
    nodes of up to 16 GPUs. Threads may share it: what is remembered is replaced, never written.
    """

    def __init__(self, topologies: Sequence[Topology], topology_of: NDArray[np.int32]) -> None:
        self.topologies = topologies
        self.topology_of = topology_of
        self.known: dict[tuple[int, bool], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def scores(
        self, nodes: NDArray[np.intp], masks: NDArray[np.int64], size: int, *, within_island: bool
    ) -> NDArray[np.int64]:
        """[a] the score of the best set of `size` among the free GPUs ([a] masks) of these nodes, NO_SET where none."""
        fleet = len(self.topology_of)
        key = (size, within_island)
        asked, score = self.known.get(key) or (np.full(fleet, -1, dtype=np.int64), np.zeros(fleet, dtype=np.int64))
        stale = asked[nodes] != masks
        if stale.any():
            rows = nodes[stale]
            new = best_scores(self.topologies, self.topology_of[rows], masks[stale], size, within_island=within_island)
            asked, score = asked.copy(), score.copy()
            asked[rows], score[rows] = masks[stale], new
            self.known[key] = (asked, score)
        return score[nodes]


def best_scores(
    topologies: Sequence[Topology],
    wiring: NDArray[np.int32],
    masks: NDArray[np.int64],
    size: int,
    *,
    within_island: bool,
) -> NDArray[np.int64]:
    """[m] the score of the best set for each free mask; `wiring` says which topology each one is about."""
    score = np.full(len(masks), NO_SET, dtype=np.int64)
    questions, back = np.unique(wiring.astype(np.int64) << 32 | masks, return_inverse=True)
    found = np.full(len(questions), NO_SET, dtype=np.int64)
    about, free = (questions >> 32).astype(np.intp), questions & 0xFFFFFFFF
    gpus = np.array([topology.size for topology in topologies], dtype=np.int64)[about]
    for count in np.unique(gpus[gpus >= size]).tolist():
        rows = np.flatnonzero(gpus == count)
        step = max(1, _CELLS // len(subsets_of(count, size)))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found[part] = _best(topologies, about[part], free[part], count, size, within_island=within_island)
    score[:] = found[back]
    return score


def _best(
    topologies: Sequence[Topology],
    about: NDArray[np.intp],
    free: NDArray[np.int64],
    gpus: int,
    size: int,
    *,
    within_island: bool,
) -> NDArray[np.float64]:
    """[p] the best scores for nodes of equally many GPUs."""
    subsets, pairs = subsets_of(gpus, size), pairs_of(gpus, size)
    wirings, which = np.unique(about, return_inverse=True)
    low, high = np.triu_indices(gpus, 1)
    weights = np.array([topologies[one].pair_score[low, high] for one in wirings], dtype=np.float64)
    worth = weights @ pairs
    if within_island:
        islands = np.array([topologies[one].islands for one in wirings], dtype=np.int64)
        joined = (islands[:, low] == islands[:, high]).astype(np.float64) @ pairs
        worth[joined < size * (size - 1) // 2] = NO_SET
    taken = (~free).astype(np.uint16)
    fits = (subsets[None, :] & taken[:, None]) == 0
    best: NDArray[np.float64] = np.where(fits, worth[which], NO_SET).max(axis=1)
    return best
