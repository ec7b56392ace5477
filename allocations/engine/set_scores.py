"""Scores of the best sets of many nodes at once, to rank nodes by.

Called by `engine.plan` through the snapshot's index. `engine.sets` finds the set itself, on one node and with ties
broken; here all subsets of a size, of all wirings, are one matrix product. Invariants: scores are exact integers (far
below 2^53, so float64 holds them) and equal those of `engine.sets`.
"""

from __future__ import annotations

import threading
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
"""Nodes times subsets scored at once, which bounds memory."""


class SetScores:
    """Best-set scores of a fleet's nodes of up to 16 GPUs, cached with the free GPUs that they were computed for.

    Between two requests few nodes change, so nearly every answer is a comparison of masks. Threads may share it: cached
    arrays are replaced, never written, and the lock is not held while scores are computed.
    """

    def __init__(self, topologies: Sequence[Topology], topology_of: NDArray[np.int32]) -> None:
        self._lock = threading.Lock()
        self.topologies = topologies
        self.topology_of = topology_of
        self.known: dict[tuple[int, bool], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def scores(
        self, nodes: NDArray[np.intp], masks: NDArray[np.int64], size: int, *, within_island: bool
    ) -> NDArray[np.int64]:
        """[a] the score of the best set of `size` among the free GPUs ([a] masks) of these nodes, NO_SET where none."""
        fleet = len(self.topology_of)
        key = (size, within_island)
        with self._lock:
            known = self.known.get(key)
        scored, score = known or (np.full(fleet, -1, dtype=np.int64), np.zeros(fleet, dtype=np.int64))
        stale = scored[nodes] != masks
        if stale.any():
            rows = nodes[stale]
            new = best_scores(self.topologies, self.topology_of[rows], masks[stale], size, within_island=within_island)
            scored, score = scored.copy(), score.copy()
            scored[rows], score[rows] = masks[stale], new
            with self._lock:
                self.known[key] = (scored, score)
        return score[nodes]


def best_scores(
    topologies: Sequence[Topology],
    wiring: NDArray[np.int32],
    masks: NDArray[np.int64],
    size: int,
    *,
    within_island: bool,
) -> NDArray[np.int64]:
    """[m] the score of the best set for each free mask; `wiring`: [m] the topology of each."""
    distinct, back = np.unique(wiring.astype(np.int64) << 32 | masks, return_inverse=True)
    found = np.full(len(distinct), NO_SET, dtype=np.int64)
    wiring_of, free = (distinct >> 32).astype(np.intp), distinct & 0xFFFFFFFF
    gpus = np.array([topology.size for topology in topologies], dtype=np.int64)[wiring_of]
    for count in np.unique(gpus[gpus >= size]).tolist():
        rows = np.flatnonzero(gpus == count)
        step = max(1, _CELLS // len(subsets_of(count, size)))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found[part] = _best(topologies, wiring_of[part], free[part], count, size, within_island=within_island)
    return found[back]


def _best(
    topologies: Sequence[Topology],
    wiring: NDArray[np.intp],
    free: NDArray[np.int64],
    gpus: int,
    size: int,
    *,
    within_island: bool,
) -> NDArray[np.float64]:
    """[p] the best scores for free masks of equally many GPUs."""
    subsets, pairs = subsets_of(gpus, size), pairs_of(gpus, size)
    wirings, which = np.unique(wiring, return_inverse=True)
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
