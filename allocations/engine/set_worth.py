"""The best set of devices of one node where sets are worth something besides, told by what their devices are under.

Called by `engine.joint`: a device has a mark (one bit: its PCIe switch), a set has the marks of its devices, and a table says what each mix of
marks is worth. Kept true: the set of the highest worth wins; of those the best wired one for whole GPUs, as in `engine.sets`, and for the others
the one that comes first in packing order. Exact, but for a node with more than 16 GPUs free: there the first `_WAYS` mixes of the highest worth
are looked at, each by `engine.sets`, within the steps of the decision's budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.sets import best_set, scores_of
from allocations.engine.subsets import positions_of, subsets_of
from allocations.engine.topology import EXACT_UP_TO, Topology

_WAYS: Final = 64

Rank = tuple[float, float]
"""What devices are ordered by, before their minors; the lower the better."""


class WiredSet(NamedTuple):
    """Positions ascending, what the set is worth, the sum of its pair scores, and that of the GPUs that are left."""

    positions: tuple[int, ...]
    worth: int
    score: int
    left: int


class PackedSet(NamedTuple):
    """Places in packing order, ascending, the ranks of the devices there, and what the set is worth."""

    positions: tuple[int, ...]
    ranks: tuple[Rank, ...]
    worth: int


@lru_cache(maxsize=16)
def span_table(bits: int) -> NDArray[np.int64]:
    """[2^b, b] the bits of every number."""
    return (np.arange(1 << bits)[:, None] >> np.arange(bits)) & 1


def packed_set_by(ranks: Sequence[Rank], marks: Sequence[int], size: int, *, worth: NDArray[np.int64]) -> PackedSet:
    """The set of the highest worth whose devices come first in packing order, by their ranks and then their places.

    `ranks`: of each device, ascending; `marks`: one bit for each.
    """
    mixes, most = _best_mixes(marks, size, worth)
    first = tuple(range(size))
    ways = [first] if int(worth[_mix(marks, first)]) == most else [_covering(marks, mix, size) for mix in mixes]
    found = [(tuple(ranks[place] for place in places), places) for places in ways]
    told, places = min(found)
    return PackedSet(places, told, most)


def best_set_by(
    topology: Topology,
    free_mask: int,
    size: int,
    *,
    marks: Mapping[int, int],
    worth: NDArray[np.int64],
    budget: Budget,
) -> WiredSet:
    """The set of the highest worth, of those the best wired one, by the rules of `engine.sets.best_set`.

    `marks`: position → one bit, of the GPUs that may be chosen; `free_mask` has bit p set where position p is free. `budget`: what searches on
    nodes with more than 16 GPUs free spend.
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
) -> WiredSet:
    """Every subset of the size looked at, all at once."""
    subsets = subsets_of(topology.size, size).astype(np.int32)
    others = ~sum(1 << position for position in marks)
    subsets = subsets[(subsets & others) == 0]
    mix = np.zeros(len(subsets), dtype=np.int64)
    for position, mark in marks.items():
        mix |= ((subsets >> position) & 1) * mark
    table, found = scores_of(topology), worth[mix]
    subsets = subsets[found == found.max()]
    for score in (lambda some: table[some], lambda some: table[free_mask & ~some]):
        values = score(subsets)
        subsets = subsets[values == values.max()]
    chosen = int(subsets[0])  # subsets stand in the order of their minors
    positions = positions_of(chosen)
    return WiredSet(
        positions,
        int(worth[_mix(marks, positions)]),
        int(table[chosen]),
        int(table[free_mask & ~chosen]),
    )


def _of_many(
    topology: Topology,
    free_mask: int,
    size: int,
    marks: Mapping[int, int],
    worth: NDArray[np.int64],
    budget: Budget,
) -> WiredSet:
    """See the module for what this promises."""
    listed = sorted(marks)
    mixes, most = _best_mixes([marks[position] for position in listed], size, worth)
    found: list[tuple[int, ...]] = []
    for mix in (None, *islice(mixes, _WAYS)):
        eligible = sum(1 << position for position in listed if mix is None or marks[position] & mix)
        one = best_set(topology, free_mask, size, within_island=False, eligible=eligible, budget=budget)
        if one is not None:
            found.append(one.positions)
        if mix is not None:
            places = _covering([marks[position] for position in listed], mix, size)
            found.append(tuple(listed[place] for place in places))
    free = positions_of(free_mask)
    sets = [
        WiredSet(
            positions, most, topology.score(positions), topology.score([one for one in free if one not in positions])
        )
        for positions in found
        if int(worth[_mix(marks, positions)]) == most
    ]
    return max(sets, key=lambda one: (one.score, one.left, [-position for position in one.positions]))


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
