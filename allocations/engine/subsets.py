"""Sets of positions as bit masks, and the tables of subsets that all searches share.

Invariants: the tables depend on two numbers up to 16: the masks of all sizes have 0.3 MB; the tables of pairs, of which
the largest has 12 MB, are in a cache bounded by bytes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.caches import MIB, BoundedCache, cached_in

if TYPE_CHECKING:
    from collections.abc import Iterable

PAIR_TABLES: Final = BoundedCache(32 * MIB)


@lru_cache(maxsize=160)
def subsets_of(size: int, count: int) -> NDArray[np.uint16]:
    """Bit masks of `count` out of `size` positions, lexicographically lowest sorted positions first."""
    every = np.arange(1 << size, dtype=np.uint32)
    picked: NDArray[np.uint32] = every[np.equal(np.bitwise_count(every), count)]
    backwards = np.zeros_like(picked)
    for place in range(size):
        backwards |= ((picked >> np.uint32(place)) & np.uint32(1)) << np.uint32(size - 1 - place)
    return picked[np.argsort(-backwards.astype(np.int64), kind="stable")].astype(np.uint16)


@cached_in(PAIR_TABLES, lambda table, *_: table.nbytes)
def pairs_of(size: int, count: int) -> NDArray[np.float64]:
    """[pairs, subsets] 1 where a subset has both positions of a pair; pairs in the order of `triu_indices`."""
    subsets = subsets_of(size, count).astype(np.int64)
    both = [(subsets >> low & 1) * (subsets >> high & 1) for low, high in combinations(range(size), 2)]
    return np.array(both, dtype=np.float64).reshape(len(both), len(subsets))


@cached_in(PAIR_TABLES, lambda table, *_: table.nbytes)
def members_of(size: int, count: int) -> NDArray[np.float64]:
    """[subsets, positions] 1 where a subset has a position."""
    subsets = subsets_of(size, count).astype(np.int64)
    return ((subsets[:, None] >> np.arange(size)) & 1).astype(np.float64)


def mask_of(positions: Iterable[int]) -> int:
    """The bits of distinct positions."""
    return sum(1 << position for position in positions)


def positions_of(mask: int) -> tuple[int, ...]:
    """The set bits, ascending."""
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return tuple(places)
