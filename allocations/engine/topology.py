"""How the GPUs of one node are wired: pair scores and NVLink islands.

Called when a snapshot is built; read by `engine.sets` and `engine.plan`. Invariants: a Topology has positions (a node's
GPUs by ascending minor, 0..k-1), never minors; equal wirings are one object with one fingerprint, so that what is
computed for one node serves all nodes built alike. Bad links never raise: those to an unknown GPU or to itself are
ignored, and of a pair listed several times the smallest number counts.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from allocations.engine.caches import MIB, BoundedCache, cached_in

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

PER_NVLINK = 100
SAME_SWITCH, SAME_NUMA, APART = 50, 20, 10
"""The PCIe part of a pair's score (as link scoring by NVML has it, in three classes)."""

EXACT_UP_TO = 16
"""Nodes of up to so many GPUs have every subset scored."""

MOST_LINKS = 1_000_000
"""Links between two GPUs count up to this, so that no sum of scores can overflow."""

Link = tuple[int, int, int]
"""(position, position, NVLinks between them)."""

WIRINGS: Final = BoundedCache(32 * MIB)
"""Topologies by what nodes report: 5 KB for 8 GPUs, each linked to each. Snapshots keep those in use."""

_interned: WeakValueDictionary[bytes, Topology] = WeakValueDictionary()
_interning = threading.Lock()


class Topology:
    """The wiring of k GPUs. Immutable; equal and hashable by fingerprint.

    `pair_score`: [k, k] int64, symmetric, zero diagonal. `islands`: k island numbers, in the order of their lowest
    positions. `island_masks`: the positions of each island as bits.
    """

    __slots__ = ("__weakref__", "_hash", "fingerprint", "island_masks", "islands", "pair_score", "size")

    def __init__(self, pair_score: NDArray[np.int64], islands: tuple[int, ...]) -> None:
        self.size = len(islands)
        self.pair_score = pair_score
        self.pair_score.flags.writeable = False
        self.islands = islands
        masks = [0] * (max(islands) + 1 if islands else 0)
        for position, island in enumerate(islands):
            masks[island] |= 1 << position
        self.island_masks = tuple(masks)
        self.fingerprint = _fingerprint(pair_score, islands)
        self._hash = hash(self.fingerprint)

    @property
    def exact(self) -> bool:
        """Whether every subset can be scored."""
        return self.size <= EXACT_UP_TO

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Topology) and self.fingerprint == other.fingerprint)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Topology(size={self.size}, islands={self.islands})"

    @staticmethod
    def of(
        minors: Sequence[int],
        links: Iterable[Sequence[int]] = (),
        *,
        pcie: Sequence[Hashable] | None = None,
        numa: Sequence[int] | None = None,
    ) -> Topology:
        """The topology of GPUs with these minors (ascending).

        `links` are `[minor, minor, NVLinks]`; `pcie` and `numa` go with the minors, where "", -1 or None means unknown
        and matches nothing.
        """
        position = {minor: place for place, minor in enumerate(minors)}
        placed = tuple(
            (position[a], position[b], count if type(count) is int and 0 <= count <= MOST_LINKS else _bounded(count))
            for a, b, count in links
            if a != b and a in position and b in position
        )
        return _build(len(minors), placed, _codes(pcie, len(minors)), _codes(numa, len(minors)))

    def restricted(self, positions: Sequence[int]) -> Topology:
        """The topology of some of these GPUs, ascending; islands stay as built."""
        chosen = list(positions)
        scores = np.ascontiguousarray(self.pair_score[np.ix_(chosen, chosen)])
        return _intern(scores, _codes([self.islands[place] for place in chosen], len(chosen)))

    def score(self, positions: Sequence[int]) -> int:
        """The sum of the pair scores of a set."""
        chosen = list(positions)
        return int(self.pair_score[np.ix_(chosen, chosen)].sum()) // 2


def _bytes_of(topology: Topology, size: int, links: tuple[Link, ...], *_: tuple[int, ...]) -> int:
    """Of a topology and of the arguments that it is cached by."""
    return topology.pair_score.nbytes + 32 * size + 128 * len(links)


@cached_in(WIRINGS, _bytes_of)
def _build(size: int, links: tuple[Link, ...], pcie: tuple[int, ...], numa: tuple[int, ...]) -> Topology:
    counts: dict[tuple[int, int], int] = {}
    for a, b, count in links:
        pair = (a, b) if a < b else (b, a)
        before = counts.get(pair)
        if before is None or count < before:
            counts[pair] = count
    scores = np.full((size, size), APART, dtype=np.int64)
    for codes, worth in ((numa, SAME_NUMA), (pcie, SAME_SWITCH)):
        code = np.asarray(codes, dtype=np.int64)
        scores[(code[:, None] == code[None, :]) & (code >= 0)[:, None]] = worth
    np.fill_diagonal(scores, 0)
    parent = list(range(size))
    linked = [(a, b, count) for (a, b), count in counts.items() if count > 0]
    if linked:
        one, other, count_of = np.array(linked, dtype=np.int64).T
        scores[one, other] += PER_NVLINK * count_of
        scores[other, one] += PER_NVLINK * count_of
    for a, b, _ in linked:
        if parent[a] == parent[b]:  # joined already, as most pairs of a large island are
            continue
        root_a, root_b = _root(parent, a), _root(parent, b)
        parent[max(root_a, root_b)] = min(root_a, root_b)
    return _intern(scores, _codes([_root(parent, place) for place in range(size)], size))


def _bounded(count: int) -> int:
    return min(max(int(count), 0), MOST_LINKS)


def _root(parent: list[int], place: int) -> int:
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
    return place


def _codes(values: Sequence[Hashable] | None, size: int) -> tuple[int, ...]:
    """A number for each value, equal for equal values, -1 where unknown."""
    if values is None:
        return (-1,) * size
    seen: dict[Hashable, int] = {}
    return tuple(-1 if value in ("", -1, None) else seen.setdefault(value, len(seen)) for value in values)


def _intern(scores: NDArray[np.int64], islands: tuple[int, ...]) -> Topology:
    with _interning:
        known = _interned.get(_fingerprint(scores, islands))
        if known is None:
            known = Topology(scores, islands)
            _interned[known.fingerprint] = known
        return known


def _fingerprint(scores: NDArray[np.int64], islands: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(repr(islands).encode() + scores.tobytes(), digest_size=16).digest()
