"""The best set of devices of one node by a worth that depends on their PCIe switches.

Called by `engine.pcie_affinity`: a device has a mark (one bit: its switch), a set has the marks of its devices, and a
table gives the worth of each mix of marks. Invariants: the set of the highest worth wins; among those the best wired
one for whole GPUs, as in `engine.sets`, and otherwise the first in packing order. Exact, but for a node with more than
16 GPUs free: there `engine.sets` is asked for the best set of the first `_MIXES` mixes of the highest worth, within the
decision's budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.sets import best_set, scores_of
from allocations.engine.subsets import mask_of, positions_of, subsets_of
from allocations.engine.topology import EXACT_UP_TO, Topology

_MIXES: Final = 64

Rank = tuple[float, float, bool]
"""What devices are ordered by, before their minors, the lowest first."""


class WorthSet(NamedTuple):
    """A set: positions ascending, its worth, and what sets of equal worth are compared by, the lowest best."""

    positions: tuple[int, ...]
    worth: int
    rank: tuple[Any, ...]


@lru_cache(maxsize=16)
def span_table(bits: int) -> NDArray[np.int64]:
    """[2^b, b] the bits of all numbers below 2^b."""
    return (np.arange(1 << bits)[:, None] >> np.arange(bits)) & 1


def packed_set_by(ranks: Sequence[Rank], marks: Sequence[int], size: int, *, worth: NDArray[np.int64]) -> WorthSet:
    """The set of the highest worth whose devices come first by rank, then by place.

    `ranks`: of each device, ascending; `marks`: one bit for each.
    """
    mixes, most = _best_mixes(marks, size, worth)
    first = tuple(range(size))
    sets = [first] if int(worth[_mix(marks, first)]) == most else [_covering(marks, mix, size) for mix in mixes]
    best_ranks, places = min((tuple(ranks[place] for place in places), places) for places in sets)
    return WorthSet(places, most, best_ranks)


def best_set_by(
    topology: Topology,
    free_mask: int,
    size: int,
    *,
    marks: Mapping[int, int],
    worth: NDArray[np.int64],
    budget: Budget,
) -> WorthSet:
    """The set of the highest worth, the best wired one among equals, by the rules of `engine.sets.best_set`.

    `marks`: position → one bit, of the GPUs that may be chosen; `free_mask`, `budget`: see `best_set`.
    """
    if topology.exact:
        return _exact(topology, free_mask, size, marks, worth)
    free = positions_of(free_mask)
    if len(free) > EXACT_UP_TO:
        return _of_many(topology, free_mask, size, marks, worth, budget)
    place = {position: bit for bit, position in enumerate(free)}
    small = {place[position]: mark for position, mark in marks.items()}
    found = _exact(topology.restricted(free), (1 << len(free)) - 1, size, small, worth)
    return found._replace(positions=tuple(free[bit] for bit in found.positions))


def _exact(
    topology: Topology, free_mask: int, size: int, marks: Mapping[int, int], worth: NDArray[np.int64]
) -> WorthSet:
    """The best of all subsets of the size."""
    subsets = subsets_of(topology.size, size).astype(np.int32)
    subsets = subsets[(subsets & ~mask_of(marks)) == 0]
    mix = np.zeros(len(subsets), dtype=np.int64)
    for position, mark in marks.items():
        mix |= ((subsets >> position) & 1) * mark
    table, found = scores_of(topology), worth[mix]
    subsets = subsets[found == found.max()]
    for score in (lambda some: table[some], lambda some: table[free_mask & ~some]):
        values = score(subsets)
        subsets = subsets[values == values.max()]
    chosen = int(subsets[0])  # subsets are in the order of their minors
    positions = positions_of(chosen)
    rank = (-int(table[chosen]), -int(table[free_mask & ~chosen]))
    return WorthSet(positions, int(worth[_mix(marks, positions)]), rank)


def _of_many(
    topology: Topology,
    free_mask: int,
    size: int,
    marks: Mapping[int, int],
    worth: NDArray[np.int64],
    budget: Budget,
) -> WorthSet:
    """The best set found among the first mixes; see the module."""
    listed = sorted(marks)
    mixes, most = _best_mixes([marks[position] for position in listed], size, worth)
    found: list[tuple[int, ...]] = []
    for mix in (None, *islice(mixes, _MIXES)):
        eligible = mask_of(position for position in listed if mix is None or marks[position] & mix)
        one = best_set(topology, free_mask, size, within_island=False, eligible=eligible, budget=budget)
        if one is not None:
            found.append(one.positions)
        if mix is not None:
            places = _covering([marks[position] for position in listed], mix, size)
            found.append(tuple(listed[place] for place in places))
    free = positions_of(free_mask)
    sets = []
    for positions in found:
        if int(worth[_mix(marks, positions)]) == most:
            left = [one for one in free if one not in positions]
            sets.append(WorthSet(positions, most, (-topology.score(positions), -topology.score(left))))
    return min(sets, key=lambda one: (one.rank, one.positions))


def _mix(marks: Mapping[int, int] | Sequence[int], positions: Sequence[int]) -> int:
    mix = 0
    for position in positions:
        mix |= marks[position]
    return mix


def _best_mixes(marks: Sequence[int], size: int, worth: NDArray[np.int64]) -> tuple[list[int], int]:
    """(the mixes of marks of the highest worth that sets of this size have, that worth)."""
    span = span_table(len(worth).bit_length() - 1)
    there = np.array([marks.count(1 << bit) for bit in range(span.shape[1])])
    number = span.sum(axis=1)
    able = (number >= 1) & (number <= size) & (span @ there >= size) & ((span @ (there == 0)) == 0)
    most = int(worth[able].max())
    return np.flatnonzero(able & (worth == most)).tolist(), most


def _covering(marks: Sequence[int], mix: int, size: int) -> tuple[int, ...]:
    """The places of the first set in order that has exactly these marks."""
    chosen: list[int] = []
    missing = mix
    for place, mark in enumerate(marks):
        if mark & mix and (mark & missing or size - len(chosen) > missing.bit_count()):
            chosen.append(place)
            missing &= ~mark
            if len(chosen) == size:
                break
    return tuple(chosen)
