"""Several asks for one device type: the containers of a pod, which may share a device.

Called by `engine.plan` (which nodes serve all of them at once) and by `engine.choice` (with which devices). Invariants:
at no step of the pod's life do the shares of a device exceed it, nor is a whole device shared; asks without a step in
common may have the same amounts of a device, and do where possible; a node is refused only where no assignment of its
devices serves, or none of the first ones tried (`TRIES_A_NODE`, `TRIES`), which the reason then says. Nodes are tried
one by one, the best first, so a pod that fits on the best node costs one search.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.needs import amounts
from allocations.engine.sets import best_first, best_set
from allocations.engine.subsets import mask_of
from claims.dialects.request import CORE_WHOLE
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from allocations.engine.budget import Budget
    from allocations.engine.needs import Need
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

TRIES_A_NODE: Final = 1_000
"""Sets of devices tried on one node, over all asks: some 10 ms."""
TRIES: Final = 8_000
"""The same over all nodes of one request."""
TRY_DEVICES: Final = 64
"""A set counts as one try for each so many devices of the node, since trying takes that much longer."""

Rows = list[int]
State = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], int, int, int, tuple[bool, ...]]
Growth = tuple[bool, float, int]
_NO_GROWTH: Final[Growth] = (False, 0.0, 0)


class MultiContainerNeeds:
    """The needs of a request of which several are for one type."""

    def __init__(self, snapshot: Snapshot, request: DeviceRequest, needs: Sequence[Need], budget: Budget) -> None:
        self.snapshot = snapshot
        self.request = request
        self.needs = needs
        self.budget = budget
        self.steps = request.steps
        self._known: dict[tuple[bool, bytes], bool | None] = {}
        self._assigned: dict[int, list[Rows]] = {}
        self._left = TRIES
        self.given_up = False
        """Whether a node was refused before every assignment was tried."""

    def serves(self, node: int) -> bool:
        """Whether all can be served now on a node that can serve each alone."""
        return self._search(node, empty=False) is True

    def _search(self, node: int, *, empty: bool) -> bool | None:
        """Whether all can be served, None where not every assignment was tried. `empty`: as if nothing were used.

        Nodes with devices in the same state are searched once.
        """
        state = empty, self._state(node, empty=empty)
        if state not in self._known:
            if self._left <= 0:
                self.given_up = True
                return None
            search = _NodeSearch(self, node, empty=empty, most=min(TRIES_A_NODE, self._left))
            assigned = search.run()
            if assigned is not None and not empty:
                self._assigned[node] = assigned
            self._left -= search.tries
            self.given_up = self.given_up or search.given_up
            self._known[state] = None if search.given_up and assigned is None else assigned is not None
        return self._known[state]

    def able(self, likely: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] those of the likely nodes where all can be served now."""
        return self._served(likely, empty=False, unknown=False)

    def ever(self, likely: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] those of the likely nodes where all could be served if nothing were used, or that is unknown."""
        enough = [need.per_node(need.ever) >= need.ask.count for need in self.needs]
        return self._served(np.logical_and.reduce([likely, *enough]), empty=True, unknown=True)

    def choose(self, node: int) -> list[Rows]:
        """Device rows on a node that serves, for each need."""
        found = self._assigned.get(node)
        if found is None:  # one in the same state was searched, whose GPUs may be wired otherwise
            found = _NodeSearch(self, node, empty=False, most=TRIES_A_NODE).run()
        if found is None:
            raise AssertionError("the node was found able to serve")
        return found

    def _served(self, likely: NDArray[np.bool_], *, empty: bool, unknown: bool) -> NDArray[np.bool_]:
        found = np.zeros(len(likely), dtype=np.bool_)
        for node in np.flatnonzero(likely).tolist():
            served = self._search(node, empty=empty)
            found[node] = unknown if served is None else served
        return found

    def _state(self, node: int, *, empty: bool) -> bytes:
        """All that decides what the node's devices can serve."""
        snapshot = self.snapshot
        here = snapshot.rows_of_node(node)
        columns: list[NDArray[Any]] = [snapshot.device_type, snapshot.memory_total, snapshot.device_numa]
        if not empty:
            columns += [snapshot.core_used, snapshot.memory_used, snapshot.device_group]
        eligible = [need.eligible[need.view.of_node(node)] for need in self.needs]
        return b"|".join([*(column[here].tobytes() for column in columns), *(one.tobytes() for one in eligible)])


class _Part:
    """One ask on one node: what it takes of each device, None of one that it may not have."""

    def __init__(self, need: Need, place: int, node: int, rows: Rows, totals: Sequence[int]) -> None:
        """`place`: that of the ask in the request; `rows`, `totals`: rows and memory of the node's devices."""
        self.need = need
        self.place = place
        here = need.view.of_node(node)
        able = set(need.view.rows[here][need.eligible[here]].tolist())
        self.takes = [
            amounts(need.ask, total) if row in able else None for row, total in zip(rows, totals, strict=True)
        ]

    @property
    def size(self) -> tuple[bool, int, int, int]:
        """The sort key: asks that are hard to place are the largest."""
        known = [taken for taken in self.takes if taken is not None]
        core, memory = max(known, default=(0, 0))
        return self.need.ask.whole, self.need.ask.count, core, memory


class _NodeSearch:
    """Assigns the devices of one node to the asks, by backtracking."""

    def __init__(self, containers: MultiContainerNeeds, node: int, *, empty: bool, most: int) -> None:
        """`most`: sets of devices to try."""
        snapshot = containers.snapshot
        self.topology = snapshot.node_topology[node]
        self.request = containers.request
        self.budget = containers.budget
        here = snapshot.rows_of_node(node)
        self.rows = list(range(here.start, here.stop))
        self.total: list[int] = snapshot.memory_total[here].tolist()
        self.numa: list[int] = snapshot.device_numa[here].tolist()
        core: list[int] = [0] * len(self.rows) if empty else snapshot.core_used[here].tolist()
        memory: list[int] = [0] * len(self.rows) if empty else snapshot.memory_used[here].tolist()
        self.grouped: list[int] = [0] * len(self.rows) if empty else snapshot.device_group[here].tolist()
        self.steps = containers.steps
        # what is used of each device, step by step, by others and by the asks placed so far
        self.core = [used for used in core for _ in range(self.steps)]
        self.memory = [used for used in memory for _ in range(self.steps)]
        self.sealed = [False] * len(self.core)
        self.met = [False] * len(self.rows)
        self.parts = [_Part(need, place, node, self.rows, self.total) for place, need in enumerate(containers.needs)]
        self.tries = 0
        self.each = max(1, len(self.rows) // TRY_DEVICES)
        self.most = most
        self.given_up = False

    def run(self) -> list[Rows] | None:
        """Device rows for each need, None where no assignment was found."""
        chosen: list[Rows] = [[] for _ in self.parts]
        order = sorted(self.parts, key=lambda part: part.size, reverse=True)
        return chosen if self._place(order, 0, chosen) else None

    def _place(self, order: Sequence[_Part], at: int, chosen: list[Rows]) -> bool:
        if at == len(order):
            return True
        part = order[at]
        tried: set[tuple[State, ...]] = set()
        for devices in self._choices(part):
            self.tries += self.each
            if self.tries > self.most:
                self.given_up = True
                return False
            alike = tuple(sorted(self._state(device) for device in devices))
            if alike in tried:
                continue
            tried.add(alike)
            before = self.core[:], self.memory[:], self.sealed[:], self.met[:]
            self._take(part, devices)
            if self._place(order, at + 1, chosen):
                chosen[part.place] = sorted(self.rows[device] for device in devices)
                return True
            self.core, self.memory, self.sealed, self.met = before
        return False

    def _choices(self, part: _Part) -> Iterator[tuple[int, ...]]:
        """Sets of devices that fit now, the first choice first."""
        count = part.need.ask.count
        fitting = [row for device, row in enumerate(self.rows) if self._fits(part, device)]
        groups = [[row - self.rows[0] for row in rows] for rows in part.need.numas(fitting)]
        if part.need.ask.whole and part.need.ask.type == GPU:
            yield from self._best_wired(groups, count)
        rank = partial(self._rank, part)
        ranked = [sorted(group, key=rank) for group in groups if len(group) >= count]
        for group in sorted(ranked, key=lambda group: list(map(rank, group[:count]))):
            yield from combinations(group, count)

    def _best_wired(self, groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
        """The best set of each group, the best first; before them those of devices that the pod holds anyway."""
        met = [[device for device in group if self.met[device]] for group in groups]
        free = mask_of(chain.from_iterable(groups))  # GPUs come first among a node's devices, as in its topology
        for some in (met, groups) if self.steps > 1 else (groups,):
            sets = [
                best_set(self.topology, free, count, within_island=False, eligible=mask_of(group), budget=self.budget)
                for group in some
            ]
            yield from (one.positions for one in best_first(self.topology, free, sets))

    def _rank(self, part: _Part, device: int) -> tuple[Growth, tuple[float, float, bool], int]:
        """The sort key of a device, the first choice first."""
        growth = _NO_GROWTH if self.steps == 1 else self._growth(part, device)
        return growth, self._fullness(device), device

    def _fits(self, part: _Part, device: int) -> bool:
        taken = part.takes[device]
        if taken is None:
            return False
        whole, core, memory = part.need.ask.whole, CORE_WHOLE - taken[0], self.total[device] - taken[1]
        if whole and self.grouped[device]:
            return False
        for place in self._places(part, device):
            if self.sealed[place] or self.core[place] > core or self.memory[place] > memory:
                return False
            if whole and (self.core[place] or self.memory[place]):
                return False
        return True

    def _take(self, part: _Part, devices: Sequence[int]) -> None:
        for device in devices:
            taken = part.takes[device] or (0, 0)
            self.met[device] = True
            for place in self._places(part, device):
                self.core[place] += taken[0]
                self.memory[place] += taken[1]
                self.sealed[place] = self.sealed[place] or part.need.ask.whole

    def _places(self, part: _Part, device: int) -> range:
        """Indices of the device's use at the steps of the ask."""
        first, last = part.need.ask.steps
        return range(device * self.steps + first, device * self.steps + last + 1)

    def _every(self, device: int) -> slice:
        return slice(device * self.steps, (device + 1) * self.steps)

    def _growth(self, part: _Part, device: int) -> Growth:
        """How much more of the device the pod would hold; what it holds at other steps costs nothing."""
        if not self.met[device]:
            return True, 0.0, 0
        taken, places, before = part.takes[device] or (0, 0), self._places(part, device), self._most(device)
        core = max(self.core[place] for place in places) + taken[0] - before[0]
        memory = max(self.memory[place] for place in places) + taken[1] - before[1]
        return False, max(memory, 0) / max(self.total[device], 1), max(core, 0)

    def _fullness(self, device: int) -> tuple[float, float, bool]:
        """As `DeviceRanking.fullness`."""
        sign = 1.0 if self.request.to_emptiest else -1.0
        core, memory = self._most(device)
        return sign * memory / max(self.total[device], 1), sign * core, not self.grouped[device]

    def _most(self, device: int) -> tuple[int, int]:
        """The most core and memory in use at any step."""
        every = self._every(device)
        return max(self.core[every]), max(self.memory[every])

    def _state(self, device: int) -> State:
        """Devices of equal state serve the asks that follow equally well."""
        every = self._every(device)
        allowed = tuple(other.takes[device] is not None for other in self.parts)
        used = tuple(self.core[every]), tuple(self.memory[every]), tuple(self.sealed[every])
        return *used, self.total[device], self.numa[device], self.grouped[device], allowed
