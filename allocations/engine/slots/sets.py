"""The best set of n GPUs of a runner for a slot's amounts.

Called by `slots.several` and `slots.several_evicting`. Pair scores are the engine's. Up to 16 GPUs every set is
compared; on larger nodes the engine's bounded search chooses among the GPUs that have room for the largest amount.
Invariants: the set with the highest pair score, then the most free memory in sum, then the lower minors.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine import sets as engine_sets
from allocations.engine.slots.memory import claims
from allocations.engine.subsets import mask_of, subsets_of

if TYPE_CHECKING:
    from allocations.engine.budget import Budget
    from allocations.engine.slots.records import SlotModel
    from allocations.engine.topology import Topology

CELLS_MOST: Final = 2_000_000
"""Rows times sets times GPUs compared at once, which bounds memory."""
LARGE_ROWS: Final = 16
"""Rows of a node of more than 16 GPUs that are looked at, where several are equally good."""
NO_SET: Final = -1


class Sets(NamedTuple):
    """The best set of each row: its score, NO_SET where there is none, its free memory in sum, and its positions."""

    score: NDArray[np.int64]
    memory: NDArray[np.int64]
    positions: list[tuple[int, ...]]


class Memory(NamedTuple):
    """[r, k] bytes of the GPUs of each row: free, -1 where a GPU may not be had; free before evictions; in all."""

    free: NDArray[np.int64]
    before: NDArray[np.int64]
    size: NDArray[np.int64]


@lru_cache(maxsize=160)
def _members(size: int, count: int) -> NDArray[np.intp]:
    """[s, n] the positions of every set, the lowest first."""
    masks = subsets_of(size, count).astype(np.int64)
    return np.nonzero((masks[:, None] >> np.arange(size)) & 1)[1].reshape(len(masks), count)


def best_sets(topology: Topology, memory: Memory, model: SlotModel, needed: tuple[int, ...], budget: Budget) -> Sets:
    """The best set of each row. `needed`: bytes on each GPU, the largest first."""
    rows, size, count = len(memory.free), topology.size, len(needed)
    found = Sets(np.full(rows, NO_SET, dtype=np.int64), np.zeros(rows, dtype=np.int64), [()] * rows)
    if size < count:
        return found
    if not topology.exact:
        for row in range(rows):
            _on_a_large_node(found, row, topology, Memory(*(part[row] for part in memory)), model, needed, budget)
        return found
    members = _members(size, count)
    masks = subsets_of(size, count)
    scores = engine_sets.scores_of(topology)[masks]
    step = max(1, CELLS_MOST // (len(members) * count))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        some = Memory(*(column[part] for column in memory))
        score = np.where(_fits(some, members, masks, model, needed), scores[None, :], np.int64(NO_SET))
        best = score.max(axis=1)
        sums = np.where(score == best[:, None], some.before[:, members].sum(axis=2), np.int64(-1))
        chosen = sums.argmax(axis=1)  # the first of equals has the lower minors
        found.score[part] = best
        found.memory[part] = sums[np.arange(len(chosen)), chosen]
        found.positions[part] = [
            tuple(members[at].tolist()) if most != NO_SET else ()
            for at, most in zip(chosen.tolist(), best.tolist(), strict=True)
        ]
    return found


class OneSet(NamedTuple):
    """A set of GPUs that one row has room for. `memory`: free before evictions, in sum."""

    row: int
    positions: tuple[int, ...]
    score: int
    memory: int


def best_of_any(
    topology: Topology, memory: Memory, model: SlotModel, needed: tuple[int, ...], budget: Budget
) -> OneSet | None:
    """The best set of any row, and the first row that has room for it. Rows are one runner's, after evictions that are
    equally good, of which there may be very many: equal amounts are compared exactly, uneven ones for the first rows.
    """
    if topology.exact and needed[0] == needed[-1]:
        return _best_of_masks(topology, memory, model, needed)
    each = len(subsets_of(topology.size, len(needed))) if topology.exact else CELLS_MOST // LARGE_ROWS
    rows = slice(max(1, CELLS_MOST // (each * len(needed))))
    found = best_sets(topology, Memory(*(part[rows] for part in memory)), model, needed, budget)
    columns = zip(found.score.tolist(), found.memory.tolist(), found.positions, strict=True)
    ranked = [(-score, -free, positions, row) for row, (score, free, positions) in enumerate(columns) if positions]
    if not ranked:
        return None
    score, free, positions, row = min(ranked)
    return OneSet(row, positions, -score, -free)


def _best_of_masks(topology: Topology, memory: Memory, model: SlotModel, needed: tuple[int, ...]) -> OneSet | None:
    """By the GPUs of each row that have room. Sets are tried in their order until one is within any row's GPUs."""
    size, count = topology.size, len(needed)
    roomy = (memory.free >= claims(model, needed[0], memory.size)) @ (1 << np.arange(size))
    masks, first = np.unique(roomy, return_index=True)
    if size < count or not len(masks):
        return None
    members, subsets = _members(size, count), subsets_of(size, count).astype(np.int64)
    scores, before = engine_sets.scores_of(topology)[subsets], memory.before[0][members].sum(axis=1)
    order = np.lexsort((-before, -scores))  # equals stay in order: the lower minors first
    step = max(1, CELLS_MOST // len(masks))
    for start in range(0, len(order), step):
        some = order[start : start + step]
        within = (subsets[some][:, None] & ~masks[None, :]) == 0
        able = np.flatnonzero(within.any(axis=1))
        if len(able):
            at = some[able[0]]
            row = int(first[within[able[0]]].min())
            return OneSet(row, tuple(members[at].tolist()), int(scores[at]), int(before[at]))
    return None


def fits_somewhere(memory: Memory, model: SlotModel, needed: tuple[int, ...]) -> NDArray[np.bool_]:
    """[r] whether any set has room, regardless of wiring. Exact where all amounts are equal, or all GPUs are."""
    count = len(needed)
    if memory.free.shape[1] < count:
        return np.zeros(len(memory.free), dtype=np.bool_)
    if needed[0] == needed[-1]:
        fits: NDArray[np.bool_] = (memory.free >= claims(model, needed[0], memory.size)).sum(axis=1) >= count
        return fits
    most = -np.partition(-memory.free, count - 1, axis=1)[:, :count]
    room: NDArray[np.bool_] = np.all(np.sort(most, axis=1)[:, ::-1] >= np.array(needed, dtype=np.int64), axis=1)
    return room


def _fits(
    memory: Memory, members: NDArray[np.intp], masks: NDArray[np.uint16], model: SlotModel, needed: tuple[int, ...]
) -> NDArray[np.bool_]:
    """[r, s] whether a set has room, the largest amount on the GPU with the most free."""
    if needed[0] == needed[-1]:
        short = memory.free < claims(model, needed[0], memory.size)
        without = (short * (1 << np.arange(memory.free.shape[1]))).sum(axis=1)
        none_short: NDArray[np.bool_] = (masks[None, :].astype(np.int64) & without[:, None]) == 0
        return none_short
    free = memory.free[:, members]
    order = np.argsort(-free, axis=2, kind="stable")
    free = np.take_along_axis(free, order, axis=2)
    size = np.take_along_axis(memory.size[:, members], order, axis=2)
    fits = np.ones(free.shape[:2], dtype=np.bool_)
    for place, amount in enumerate(needed):
        fits &= free[:, :, place] >= claims(model, amount, size[:, :, place])
    return fits


def _on_a_large_node(
    found: Sets,
    row: int,
    topology: Topology,
    memory: Memory,
    model: SlotModel,
    needed: tuple[int, ...],
    budget: Budget,
) -> None:
    """The engine's set of GPUs that each have room for the largest amount; else those with the most free."""
    count = len(needed)
    roomy = np.flatnonzero(memory.free >= claims(model, needed[0], memory.size)).tolist()
    best = engine_sets.best_set(topology, mask_of(roomy), count, within_island=False, budget=budget)
    positions = best.positions if best is not None else ()
    if not positions:
        order = np.argsort(-memory.free, kind="stable")[:count]
        fits = [
            int(memory.free[place]) >= int(claims(model, amount, memory.size[place : place + 1])[0])
            for place, amount in zip(order.tolist(), needed, strict=True)
        ]
        if not all(fits):
            return
        positions = tuple(sorted(order.tolist()))
    found.score[row] = topology.score(positions)
    found.memory[row] = int(memory.before[list(positions)].sum())
    found.positions[row] = positions
