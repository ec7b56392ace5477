"""Devices of several types under the same PCIe switches (DEV-10).

Called by `engine.plan` (where that is possible, and with how few switches) and by `engine.choice` (which devices). Served under a set of
switches means: each of them gives at least one device of every type, together they give all. Kept true: the fewest switches win, then
the best set of the first type; a device whose switch is not known is never counted in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.sets import best_set
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from allocations.engine.needs import Need
    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceRequest

SWITCHES_MOST: Final = 12
"""Switches of a node that are looked at in every combination; those past it are left out."""
_SETS_MOST: Final = 20_000
"""Sets of GPUs looked at one by one; every choice out of 16 is below it."""

Ranked = Sequence[int]
"""Device rows, the one to take first before all others."""


class Together:
    """The needs of a request that are to be served under the same switches."""

    def __init__(self, picture: Picture, needs: Sequence[Need], *, required: bool) -> None:
        self.picture = picture
        self.needs = needs
        self.required = required

    @staticmethod
    def of(picture: Picture, request: DeviceRequest, needs: Sequence[Need]) -> Together | None:
        """Those that the request names, None where it names none."""
        if request.joint is None:
            return None
        named = [need for need in needs if need.ask.type in request.joint.types]
        return Together(picture, named, required=request.joint.required)

    @property
    def text(self) -> str:
        """The types, for reasons."""
        return " and ".join(need.ask.type for need in self.needs)

    @cached_property
    def fewest(self) -> NDArray[np.int64]:
        """[n] the fewest switches under which all can be served now, 0 where there are none."""
        return self._fewest([need.fits for need in self.needs])

    @cached_property
    def ever(self) -> NDArray[np.int64]:
        """[n] the same if nothing were used."""
        return self._fewest([need.ever for need in self.needs])

    def _fewest(self, fits: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
        found = np.zeros(len(self.picture.node_names), dtype=np.int64)
        tables = [self._by_switch(need, able) for need, able in zip(self.needs, fits, strict=True)]
        if any(not table.size for table in tables):
            return found
        counts = [need.ask.count for need in self.needs]
        enough = np.logical_and.reduce(
            [table.sum(axis=1) >= count for table, count in zip(tables, counts, strict=True)]
        )
        rows = np.flatnonzero(enough)  # the others never can, whatever the switches
        if not len(rows):
            return found
        tables = [table[rows] for table in tables]
        common = np.logical_and.reduce([table > 0 for table in tables])
        columns = np.flatnonzero(common.any(axis=0)).tolist()
        size_of = np.zeros(len(rows), dtype=np.int64)
        for size in range(1, min(self._widest, len(columns)) + 1):
            for chosen in combinations(columns, size):
                able = (size_of == 0) & common[:, chosen].all(axis=1)
                for table, count in zip(tables, counts, strict=True):
                    able &= table[:, chosen].sum(axis=1) >= count
                size_of[able] = size
            if size_of.all():
                break
        found[rows] = size_of
        return found

    @property
    def _widest(self) -> int:
        """More switches than devices of any type never share."""
        return min(need.ask.count for need in self.needs)

    def _by_switch(self, need: Need, able: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[n, s] how many of a node's able devices are under each of its switches."""
        nodes = len(self.picture.node_names)
        if need.view is None:
            return np.zeros((nodes, 0), dtype=np.int64)
        rows = need.view.rows[able]
        switch = self.picture.device_pcie[rows]
        counted = (switch >= 0) & (switch < SWITCHES_MOST)
        place = self.picture.device_node[rows[counted]].astype(np.int64) * SWITCHES_MOST + switch[counted]
        return np.bincount(place, minlength=nodes * SWITCHES_MOST).reshape(nodes, SWITCHES_MOST)

    def choose(self, node: int, *, ranked: Callable[[Need], Ranked]) -> Mapping[str, list[int]]:
        """Type → device rows on a node, under the fewest switches; empty where they cannot be served together.

        `ranked`: the rows of a need that can serve on the node, the first choice first.
        """
        size = int(self.fewest[node])
        if not size:
            return {}
        rows = {need.ask.type: list(ranked(need)) for need in self.needs}
        best: tuple[int, Mapping[str, list[int]]] | None = None
        for switches in combinations(range(SWITCHES_MOST), size):
            under = {
                kind: [row for row in listed if self.picture.device_pcie[row] in switches]
                for kind, listed in rows.items()
            }
            if not all(self._covers(under[need.ask.type], switches, need.ask.count) for need in self.needs):
                continue
            lead = self.needs[0]
            score, first = self._first(lead, rows[lead.ask.type], under[lead.ask.type], switches, node)
            chosen = {lead.ask.type: first}
            for need in self.needs[1:]:
                chosen[need.ask.type] = self._one_each(under[need.ask.type], switches, need.ask.count)
            if best is None or score > best[0]:
                best = score, chosen
        return {} if best is None else best[1]

    def _covers(self, rows: Ranked, switches: Sequence[int], count: int) -> bool:
        return len(rows) >= count and {int(self.picture.device_pcie[row]) for row in rows} == set(switches)

    def _one_each(self, rows: Ranked, switches: Sequence[int], count: int) -> list[int]:
        """The first choice under each switch, then the first choices of what is left."""
        taken = [next(row for row in rows if self.picture.device_pcie[row] == switch) for switch in switches]
        return sorted([*taken, *[row for row in rows if row not in taken][: count - len(taken)]])

    def _first(
        self, need: Need, free: Ranked, rows: Ranked, switches: Sequence[int], node: int
    ) -> tuple[int, list[int]]:
        """(score, rows) of the type whose wiring counts: whole GPUs are the best set that has one under each switch.

        `free`: those of the whole node, which count as what is left over.
        """
        count = need.ask.count
        if need.view is None or need.ask.type != GPU or not need.ask.whole or count == 1:
            return 0, self._one_each(rows, switches, count)
        start = int(need.view.rows[need.view.of_node(node).start])
        topology = self.picture.node_topology[node]
        eligible = sum(1 << (row - start) for row in rows)
        found = best_set(
            topology, sum(1 << (row - start) for row in free), count, within_island=False, eligible=eligible
        )
        if found is not None and self._covers([start + place for place in found.positions], switches, count):
            return found.score, [start + place for place in found.positions]
        chosen = self._one_each(rows, switches, count)
        if comb(len(rows), count) <= _SETS_MOST:
            sets = (one for one in combinations(sorted(rows), count) if self._covers(one, switches, count))
            chosen = list(max(sets, key=lambda one: topology.score([row - start for row in one])))
        return topology.score([row - start for row in chosen]), chosen
