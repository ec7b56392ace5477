"""Several asks for one device type: the containers of a pod, planned one by one, that may meet on a device.

Called by `engine.plan` (which nodes serve all of them at once) and by `engine.choice` (with which devices). Kept true:
at no step of the pod's life do the amounts that meet on a device add up to more than it has, nor does anybody meet a
whole device; asks without a step in common may have the same room, and have it where they can; a node is passed over
only where no way of dividing its devices would do, or where the first ways that were tried did not (`TRIES_A_NODE`,
`TRIES`), and then that is said. Nodes are looked at one by one, the best first, so a pod that fits where it should
costs one look.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.needs import amounts
from allocations.engine.sets import best_set
from claims.dialects.request import CORE_WHOLE
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from allocations.engine.budget import Budget
    from allocations.engine.needs import Need
    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceRequest

TRIES_A_NODE: Final = 1_000
"""Sets of devices tried on one node, over all asks: some 10 ms."""
TRIES: Final = 8_000
"""The same over all nodes of one request."""
TRY_DEVICES: Final = 64
"""On nodes of more devices a set counts as many tries as these are in them, since trying it takes that much longer."""

Rows = list[int]
State = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], int, int, tuple[bool, ...]]
Growth = tuple[bool, float, int]


class Several:
    """The needs of a request of which several are for one type."""

    def __init__(self, picture: Picture, request: DeviceRequest, needs: Sequence[Need], budget: Budget) -> None:
        self.picture = picture
        self.request = request
        self.needs = needs
        self.budget = budget
        self.steps = request.steps
        self._known: dict[tuple[bool, bytes], bool | None] = {}
        self._divided: dict[int, list[Rows]] = {}
        self._left = TRIES
        self.given_up = False
        """Whether nodes were passed over that were not looked at to the end."""

    @staticmethod
    def of(picture: Picture, request: DeviceRequest, needs: Sequence[Need], budget: Budget) -> Several | None:
        """None where each type is asked for once."""
        return Several(picture, request, needs, budget) if request.several else None

    def serves(self, node: int) -> bool:
        """Whether all can be served now on a node that can serve each alone."""
        return self._look(node, empty=False) is True

    def _look(self, node: int, *, empty: bool) -> bool | None:
        """Whether all can be served, None where that was not tried to the end. Nodes with devices in the same state are looked at once."""
        state = empty, self._state(node, empty=empty)
        if state not in self._known:
            if self._left <= 0:
                self.given_up = True
                return None
            looked = _Node(self, node, empty=empty, most=min(TRIES_A_NODE, self._left))
            divided = looked.divide()
            found = divided is not None
            if divided is not None and not empty:
                self._divided[node] = divided
            self._left -= looked.tries
            self.given_up = self.given_up or looked.given_up
            self._known[state] = None if looked.given_up and not found else found
        return self._known[state]

    def able(self, likely: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] those of the likely nodes where all can be served now."""
        return self._served(likely, empty=False, untold=False)

    def ever(self, likely: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] those of the likely nodes where all could be served if nothing were used, or where that is not known."""
        enough = [need.per_node(need.ever) >= need.ask.count for need in self.needs]
        return self._served(np.logical_and.reduce([likely, *enough]), empty=True, untold=True)

    def choose(self, node: int) -> list[Rows]:
        """Device rows on a node that serves, for each need."""
        found = self._divided.get(node)
        if found is None:  # one in the same state was looked at, whose GPUs may be wired otherwise
            found = _Node(self, node, empty=False, most=TRIES_A_NODE).divide()
        if found is None:
            raise AssertionError("the node was found able to serve")
        return found

    def _served(self, likely: NDArray[np.bool_], *, empty: bool, untold: bool) -> NDArray[np.bool_]:
        found = np.zeros(len(likely), dtype=np.bool_)
        for node in np.flatnonzero(likely).tolist():
            looked = self._look(node, empty=empty)
            found[node] = untold if looked is None else looked
        return found

    def _state(self, node: int, *, empty: bool) -> bytes:
        """Whatever of the node's devices decides what they can serve."""
        picture = self.picture
        own = slice(int(picture.node_start[node]), int(picture.node_start[node + 1]))
        columns: list[NDArray[Any]] = [picture.device_type, picture.memory_total, picture.device_numa]
        if not empty:
            columns += [picture.core_used, picture.memory_used]
        eligible = [need.eligible[need.view.of_node(node)] for need in self.needs if need.view is not None]
        return b"|".join([*(column[own].tobytes() for column in columns), *(one.tobytes() for one in eligible)])


class _Part:
    """One ask on one node: what it would take of each device, None where it may not have it."""

    def __init__(self, need: Need, place: int, rows: Rows, totals: Sequence[int], able: set[int]) -> None:
        self.need = need
        self.place = place
        self.takes = [
            amounts(need.ask, total) if row in able else None for row, total in zip(rows, totals, strict=True)
        ]

    @property
    def size(self) -> tuple[bool, int, int, int]:
        """What is hard to place comes first."""
        known = [taken for taken in self.takes if taken is not None]
        core, memory = max(known, default=(0, 0))
        return self.need.ask.whole, self.need.ask.count, core, memory


class _Node:
    """The devices of one node while its room is divided."""

    def __init__(self, several: Several, node: int, *, empty: bool, most: int) -> None:
        """`most`: so many sets of devices are tried."""
        picture = several.picture
        self.picture = picture
        self.node = node
        self.request = several.request
        self.budget = several.budget
        self.first = int(picture.node_start[node])
        self.rows = list(range(self.first, int(picture.node_start[node + 1])))
        own = slice(self.first, self.first + len(self.rows))
        self.total: list[int] = picture.memory_total[own].tolist()
        self.numa: list[int] = picture.device_numa[own].tolist()
        core: list[int] = [0] * len(self.rows) if empty else picture.core_used[own].tolist()
        memory: list[int] = [0] * len(self.rows) if empty else picture.memory_used[own].tolist()
        self.steps = several.steps
        # of each device by step: the devices' first, then what the asks take that were placed
        self.core = core if self.steps == 1 else [used for used in core for _ in range(self.steps)]
        self.memory = memory if self.steps == 1 else [used for used in memory for _ in range(self.steps)]
        self.sealed = [False] * len(self.core)
        self.met = [False] * len(self.rows)
        self.parts = [
            _Part(need, place, self.rows, self.total, self._able(need)) for place, need in enumerate(several.needs)
        ]
        self.tries = 0
        self.each = max(1, len(self.rows) // TRY_DEVICES)
        self.most = most
        self.given_up = False

    def divide(self) -> list[Rows] | None:
        """Device rows for each need, None where there is no way."""
        chosen: list[Rows] = [[] for _ in self.parts]
        order = sorted(self.parts, key=lambda part: part.size, reverse=True)
        return chosen if self._place(order, 0, chosen) else None

    def _able(self, need: Need) -> set[int]:
        """Rows of healthy devices that the ask may have at all."""
        view = need.view
        if view is None:
            return set()
        own = view.of_node(self.node)
        return set(view.rows[own][need.eligible[own]].tolist())

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
        """Sets of devices that fit now, the one to take first before all others."""
        count = part.need.ask.count
        fitting = [device for device in range(len(self.rows)) if self._fits(part, device)]
        limits = part.need.ask.limits
        if limits is not None and limits.one_numa and count > 1:
            groups = [
                [device for device in fitting if self.numa[device] == numa]
                for numa in sorted({self.numa[device] for device in fitting} - {-1})
            ]
        else:
            groups = [fitting]
        for group in groups:
            if part.need.ask.whole:
                for some in ([device for device in group if self.met[device]], group) if self.steps > 1 else (group,):
                    best = self._best_wired(part, some)
                    yield from [best] if best is not None else []
            yield from combinations(self._ranked(part, group), count)

    def _best_wired(self, part: _Part, group: Sequence[int]) -> tuple[int, ...] | None:
        if part.need.ask.type != GPU:
            return None
        free = sum(1 << device for device in group)  # GPUs come first among a node's devices, as in its topology
        topology = self.picture.node_topology[self.node]
        found = best_set(topology, free, part.need.ask.count, within_island=False, budget=self.budget)
        return found.positions if found is not None else None

    def _ranked(self, part: _Part, group: Sequence[int]) -> list[int]:
        """The device to take first before all others."""
        if self.steps == 1:
            return sorted(group, key=lambda device: (self._fullness(device), device))
        return sorted(group, key=lambda device: (self._growth(part, device), self._fullness(device), device))

    def _fits(self, part: _Part, device: int) -> bool:
        taken = part.takes[device]
        if taken is None:
            return False
        whole, core, memory = part.need.ask.whole, CORE_WHOLE - taken[0], self.total[device] - taken[1]
        for place in (device,) if self.steps == 1 else self._places(part, device):
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
        """Where the device's use stands for the steps of the ask."""
        first, last = part.need.ask.steps
        return range(device * self.steps + first, device * self.steps + last + 1)

    def _every(self, device: int) -> slice:
        return slice(device * self.steps, (device + 1) * self.steps)

    def _growth(self, part: _Part, device: int) -> Growth:
        """How much more of the device the pod would hold; room that it has at other steps costs nothing."""
        if not self.met[device]:
            return True, 0.0, 0
        taken, places, before = part.takes[device] or (0, 0), self._places(part, device), self._most(device)
        core = max(self.core[place] for place in places) + taken[0] - before[0]
        memory = max(self.memory[place] for place in places) + taken[1] - before[1]
        return False, max(memory, 0) / max(self.total[device], 1), max(core, 0)

    def _fullness(self, device: int) -> tuple[float, float]:
        sign = 1.0 if self.request.to_emptiest else -1.0
        core, memory = self._most(device)
        return sign * memory / max(self.total[device], 1), sign * core

    def _most(self, device: int) -> tuple[int, int]:
        """Core and memory in use when most of each is."""
        if self.steps == 1:
            return self.core[device], self.memory[device]
        every = self._every(device)
        return max(self.core[every]), max(self.memory[every])

    def _state(self, device: int) -> State:
        """Devices alike in this serve the asks that follow equally well."""
        every = self._every(device)
        allowed = tuple(other.takes[device] is not None for other in self.parts)
        used = tuple(self.core[every]), tuple(self.memory[every]), tuple(self.sealed[every])
        return *used, self.total[device], self.numa[device], allowed
