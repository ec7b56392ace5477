"""Packs pods on nodes there and as few new nodes of one pool as possible.

Called by `growth.plan`. Pods go hardest first, each to the fullest node that has room. Where the result is above the
lower bound, few pods are packed exactly, by a search bounded by `STEPS`, and many node by node, each as full as it can
be. Invariants: what is answered fits, as the engine decides; the same input gives the same packing; equal pods fill
nodes by age.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from allocations.engine.growth.shapes import EMPTY, Shape
from claims.dialects.request import DeviceRequest

SMALL: Final = 16
"""Pods up to which packings are exact."""
STEPS: Final = 20_000
"""Placements that an exact search may try."""
FILLING_STEPS: Final = 400
"""Placements tried to fill one node of a large packing."""


class Item(NamedTuple):
    """A pod to pack. `pools`: places of those whose nodes may hold it."""

    pod: str
    request: DeviceRequest
    pools: tuple[int, ...]
    demand: str

    @property
    def kind(self) -> Kind:
        """Equal for pods that any node holds alike."""
        return self.request, self.pools


Kind = tuple[DeviceRequest, tuple[int, ...]]
Bin = tuple[int, int]
"""(pool, state) of a node."""


class Packing(NamedTuple):
    """`seats`: item → place of its node, those given first; `bins`: all nodes; `left`: who has no room."""

    bins: tuple[Bin, ...]
    seats: dict[Item, int]
    left: tuple[Item, ...]


class Packer:
    """Packs on nodes of these shapes, by pool."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = shapes

    def pack(self, bins: Sequence[Bin], items: Sequence[Item], pool: int | None, most: int | None) -> Packing:
        """Pack the items (hardest first) on these nodes and at most `most` new ones of the pool, none without one."""
        there = tuple(bins)
        if pool is None or most == 0 or not items:
            return self._in_order(there, self._first_fit(there, items, None, 0), items)
        found = self._first_fit(there, items, pool, None)
        opened = len(found.bins) - len(there)
        least = self._least(there, items, pool)
        if not found.left and opened > least:
            found = self._fewer(there, items, pool, least, opened) or found
            opened = len(found.bins) - len(there)
        if most is not None and opened > most:
            found = self._first_fit(there, items, pool, most)
        return self._in_order(there, found, items)

    def _fewer(self, there: tuple[Bin, ...], items: Sequence[Item], pool: int, least: int, most: int) -> Packing | None:
        """A packing on fewer new nodes than `most`."""
        if len(items) <= SMALL:
            for new in range(least, most):
                if found := _Search(self.shapes, items).on((*there, *[(pool, EMPTY)] * new)):
                    return found
            return None
        full = self._node_by_node(there, items, pool)
        return full if not full.left and len(full.bins) < len(there) + most else None

    def _first_fit(self, there: tuple[Bin, ...], items: Sequence[Item], pool: int | None, most: int | None) -> Packing:
        """Each item on the fullest node that has room."""
        filling = _Filling(self.shapes, there)
        left = []
        for item in items:
            if filling.put(item):
                continue
            room = pool is not None and (most is None or len(filling.bins) - len(there) < most)
            if not room or pool not in item.pools or not filling.open(item, pool):
                left.append(item)
        return Packing(tuple(filling.bins), filling.seats, tuple(left))

    def _node_by_node(self, there: tuple[Bin, ...], items: Sequence[Item], pool: int) -> Packing:
        """The items that the nodes there have no room for, on new nodes, each filled as well as can be."""
        first = self._first_fit(there, items, None, 0)
        bins, seats = list(first.bins), dict(first.seats)
        waiting: dict[Kind, list[Item]] = {}
        for item in first.left:
            waiting.setdefault(item.kind, []).append(item)
        shape = self.shapes[pool]
        while waiting:
            state, taken = _best_filling(shape, {kind: len(some) for kind, some in waiting.items()})
            if not taken:
                break
            for _ in range(min(len(waiting[kind]) // count for kind, count in taken.items())):
                for kind, count in taken.items():
                    seats.update(dict.fromkeys(waiting[kind][:count], len(bins)))
                    del waiting[kind][:count]
                bins.append((pool, state))
            waiting = {kind: some for kind, some in waiting.items() if some}
        return Packing(tuple(bins), seats, tuple(item for some in waiting.values() for item in some))

    def _least(self, there: Sequence[Bin], items: Sequence[Item], pool: int) -> int:
        """New nodes that there have to be at least, by the sums of what is asked."""
        shape = self.shapes[pool]
        sums = [shape.demand(item.request) for item in items]
        rooms = [self.shapes[one].left(state) for one, state in there]
        least = 0
        for at, size in enumerate(shape.capacity):
            missing = sum(one[at] for one in sums) - sum(one[at] for one in rooms)
            if size > 0 and missing > 0:
                least = max(least, -(-missing // size))
        return least

    @staticmethod
    def _in_order(there: tuple[Bin, ...], found: Packing, items: Sequence[Item]) -> Packing:
        """The same with equal pods by age, and new nodes in the order of their hardest pods."""
        held: dict[int, defaultdict[Kind, int]] = defaultdict(lambda: defaultdict(int))
        for item, place in found.seats.items():
            held[place][item.kind] += 1
        first = {kind: at for at, kind in reversed(list(enumerate(item.kind for item in items)))}
        new = [place for place in range(len(there), len(found.bins)) if place in held]
        new.sort(key=lambda place: sorted((first[kind], -count) for kind, count in held[place].items()))
        order = [*range(len(there)), *new]
        seats: dict[Item, int] = {}
        left = set(found.left)
        by_kind: defaultdict[Kind, list[Item]] = defaultdict(list)
        for item in items:
            if item not in left:
                by_kind[item.kind].append(item)
        for kind, some in by_kind.items():
            waiting = iter(some)
            for after, place in enumerate(order):
                for _ in range(held[place][kind] if place in held else 0):
                    seats[next(waiting)] = after
        return Packing(tuple(found.bins[place] for place in order), seats, found.left)


class _Filling:
    """Nodes that fill up, found by their state, so that equal nodes are looked at once."""

    def __init__(self, shapes: Sequence[Shape], bins: Sequence[Bin]) -> None:
        self.shapes = shapes
        self.bins = list(bins)
        self.seats: dict[Item, int] = {}
        self._places: dict[Bin, list[int]] = {}
        for place in reversed(range(len(bins))):
            self._places.setdefault(bins[place], []).append(place)

    def put(self, item: Item) -> bool:
        """Put the item on the fullest node that has room; of equal ones the first."""
        best: tuple[int, int] | None = None
        for (pool, state), places in self._places.items():
            if places and pool in item.pools and self.shapes[pool].after(state, item.request) is not None:
                rank = (self.shapes[pool].free(state), places[-1])
                best = rank if best is None or rank < best else best
        if best is None:
            return False
        self._seat(item, best[1])
        return True

    def open(self, item: Item, pool: int) -> bool:
        """Put the item on a new node."""
        if self.shapes[pool].after(EMPTY, item.request) is None:
            return False
        self.bins.append((pool, EMPTY))
        self._places.setdefault((pool, EMPTY), []).append(len(self.bins) - 1)
        self._seat(item, len(self.bins) - 1)
        return True

    def _seat(self, item: Item, place: int) -> None:
        pool, state = self.bins[place]
        self._places[pool, state].remove(place)
        if not self._places[pool, state]:
            del self._places[pool, state]
        after = self.shapes[pool].after(state, item.request)
        self.bins[place] = pool, EMPTY if after is None else after
        places = self._places.setdefault(self.bins[place], [])
        places.append(place)
        places.sort(reverse=True)
        self.seats[item] = place


class _Search:
    """Whether the items fit on given nodes: every node for every item, equal ones once."""

    def __init__(self, shapes: Sequence[Shape], items: Sequence[Item]) -> None:
        self.shapes = shapes
        self.items = items
        self.steps = STEPS
        self.failed: set[tuple[int, tuple[Bin, ...]]] = set()

    def on(self, bins: tuple[Bin, ...]) -> Packing | None:
        """All of them on these nodes."""
        seats: dict[Item, int] = {}
        end = self._place(0, bins, seats)
        return None if end is None else Packing(end, seats, ())

    def _place(self, at: int, bins: tuple[Bin, ...], seats: dict[Item, int]) -> tuple[Bin, ...] | None:
        if at == len(self.items):
            return bins
        key = (at, tuple(sorted(bins)))
        if key in self.failed or self.steps <= 0:
            return None
        item = self.items[at]
        tried: set[Bin] = set()
        fullest = sorted(range(len(bins)), key=lambda place: (self.shapes[bins[place][0]].free(bins[place][1]), place))
        for place in fullest:
            pool, state = bins[place]
            if pool not in item.pools or bins[place] in tried:
                continue
            tried.add(bins[place])
            for after in self.shapes[pool].options(state, item.request):
                self.steps -= 1
                end = self._place(at + 1, (*bins[:place], (pool, after), *bins[place + 1 :]), seats)
                if end is not None:
                    seats[item] = place
                    return end
        self.failed.add(key)
        return None


def _best_filling(shape: Shape, counts: Mapping[Kind, int]) -> tuple[int, dict[Kind, int]]:
    """(state, how many of each kind) of the node that is filled best by the hardest pod and any others."""
    kinds = list(counts)
    steps = FILLING_STEPS
    best: tuple[int, int, dict[Kind, int]] | None = None

    def fill(at: int, state: int, taken: dict[Kind, int]) -> None:
        nonlocal best, steps
        if taken and (best is None or shape.free(state) < best[0]):
            best = shape.free(state), state, taken
        if at == len(kinds) or (best is not None and best[0] == 0) or steps <= 0:
            return
        kind = kinds[at]
        states = [state]
        while len(states) <= counts[kind] and (after := shape.after(states[-1], kind[0])) is not None:
            states.append(after)
        for number in range(len(states) - 1, 0 if at == 0 else -1, -1):
            steps -= 1
            fill(at + 1, states[number], {**taken, kind: number} if number else taken)

    fill(0, EMPTY, {})
    return (best[1], best[2]) if best is not None else (EMPTY, {})
