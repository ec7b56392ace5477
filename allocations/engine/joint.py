"""Devices of several types under the same PCIe switches (DEV-10).

Called by `engine.plan` (where that is possible, and how well) and by `engine.choice` (which devices). Served under a set of switches means: each
of them gives at least one device of every type, together they give all. Kept true: the fewest switches win, then the choice that the first
type would have anyway (the best set of whole GPUs, the fullest device for a share); a device whose switch is not known is never counted in.
Where it is preferred and not possible, as many of the other devices as can be are under switches of the first type's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.needs import free_positions
from allocations.engine.set_worth import best_set_by, packed_set_by, span_table
from kube.device_types import GPU

if TYPE_CHECKING:
    from allocations.engine.budget import Budget
    from allocations.engine.needs import Need
    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceRequest

SWITCHES_MOST: Final = 12
"""Switches of a node that are looked at in every combination; those past it are left out."""
_STRICT: Final = 1 << 20
"""What a set under the same switches is worth, less their number; above any number of devices that are merely beside."""

Ranked = Sequence[int]
"""Device rows, the one to take first before all others."""
Fullness = tuple[float, float]
"""What rows are ranked by, before their minors; the lower the better."""


class Together:
    """The needs of a request that are to be served under the same switches."""

    def __init__(self, picture: Picture, needs: Sequence[Need], budget: Budget, *, required: bool) -> None:
        self.picture = picture
        self.needs = needs
        self.budget = budget
        self.required = required

    @staticmethod
    def of(picture: Picture, request: DeviceRequest, needs: Sequence[Need], budget: Budget) -> Together | None:
        """Those that the request names, None where it names none."""
        if request.joint is None:
            return None
        named = [need for need in needs if need.ask.type in request.joint.types]
        return Together(picture, named, budget, required=request.joint.required)

    @property
    def text(self) -> str:
        """The types, for reasons."""
        return " and ".join(need.ask.type for need in self.needs)

    @cached_property
    def fewest(self) -> NDArray[np.int64]:
        """[n] the fewest switches under which all can be served now, 0 where there are none."""
        return self._fewest_at_numa([need.fits for need in self.needs])

    @cached_property
    def ever(self) -> NDArray[np.int64]:
        """[n] the same if nothing were used."""
        return self._fewest_at_numa([need.ever for need in self.needs])

    def worth(self, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """[a] what the best choice on each node is worth: fewer switches first, then more devices beside those of the first type."""
        fewest = self.fewest[nodes]
        worth = _STRICT - fewest
        apart = np.flatnonzero(fewest == 0)
        if len(apart):
            worth[apart] = 0 if self.required else self._beside(nodes[apart])
        return worth

    def _fewest_at_numa(self, fits: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
        """The fewest switches, of devices of the first type at one NUMA node where they have to be."""
        least: NDArray[np.int64] | None = None
        for own in self._apart_by_numa(fits[0]):
            found = self._fewest([own, *fits[1:]])
            least = found if least is None else np.where((found > 0) & ((least == 0) | (found < least)), found, least)
        return np.zeros(len(self.picture.node_names), dtype=np.int64) if least is None else least

    def _apart_by_numa(self, able: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """[v] each: the able devices of the first type, for each NUMA node those there where that matters."""
        lead = self.needs[0]
        if lead.view is None or not lead.at_one_numa:
            return [able]
        numa = lead.view.column(self.picture.device_numa)
        return [able & (numa == one) for one in np.unique(numa[able]).tolist() if one >= 0]

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

    def _beside(self, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """[a] the most devices of the other types that can be under switches of devices of the first."""
        lead, *others = self.needs
        most = np.zeros(len(nodes), dtype=np.int64)
        tables = [self._by_switch(need, need.fits)[nodes] for need in others]
        for own in self._apart_by_numa(lead.fits):
            led = self._by_switch(lead, own)[nodes] > 0
            under = [table * led for table in tables]
            columns = np.flatnonzero(np.logical_or.reduce([table.any(axis=0) for table in under])).tolist()
            for chosen in combinations(columns, min(lead.ask.count, len(columns))):  # more switches never give less
                total = np.zeros(len(nodes), dtype=np.int64)
                for table, need in zip(under, others, strict=True):
                    total += np.minimum(table[:, chosen].sum(axis=1), need.ask.count)
                np.maximum(most, total, out=most)
        return most

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

    def choose(
        self,
        node: int,
        *,
        ranked: Callable[[Need], Ranked],
        fullness: Callable[[int], Fullness],
        beside: Callable[[Need, Ranked], Ranked],
    ) -> Mapping[str, list[int]]:
        """Type → device rows on a node that can serve.

        `ranked`: the rows of a need that can serve on the node, the first choice first, by `fullness`. `beside`: the same where these rows are
        taken of the first type, those under their switches first.
        """
        lead, *others = self.needs
        listed = {need.ask.type: ranked(need) for need in others}
        sets = [
            self._lead(node, rows, fullness, [(listed[need.ask.type], need.ask.count) for need in others])
            for rows in lead.numas(ranked(lead))
            if len(rows) >= lead.ask.count
        ]
        (lacking, *_), rows = min(sets, key=lambda found: found[0])
        chosen = {lead.ask.type: rows}
        switches = {int(self.picture.device_pcie[row]) for row in rows}
        for need in others:
            count = need.ask.count
            if -lacking >= _STRICT - SWITCHES_MOST:
                chosen[need.ask.type] = self._one_each(listed[need.ask.type], switches, count)
            else:
                chosen[need.ask.type] = list(beside(need, rows)[:count])
        return chosen

    def _lead(
        self, node: int, rows: Ranked, fullness: Callable[[int], Fullness], others: Sequence[tuple[Ranked, int]]
    ) -> tuple[tuple[int, object, object], list[int]]:
        """(what to compare by, the lowest best; rows) of the devices of the first type.

        `rows`: enough to choose from; `others`: rows and number of each other type.
        """
        lead, count = self.needs[0], self.needs[0].ask.count
        pcie = self.picture.device_pcie
        switches = sorted({int(pcie[row]) for row in rows if 0 <= pcie[row] < SWITCHES_MOST})
        place = {switch: bit for bit, switch in enumerate(switches)}
        unknown = len(switches)
        marks = [1 << place.get(int(pcie[row]), unknown) for row in rows]
        there = [
            np.array([sum(1 for row in listed if pcie[row] == switch) for switch in switches], dtype=np.int64)
            for listed, _ in others
        ]
        worth = _worth(unknown, there, [number for _, number in others])
        if lead.ask.whole and lead.ask.type == GPU:
            start = int(self.picture.node_start[node])
            found = best_set_by(
                self.picture.node_topology[node],
                free_positions(self.picture, lead, node),
                count,
                marks={row - start: mark for row, mark in zip(rows, marks, strict=True)},
                worth=worth,
                budget=self.budget,
            )
            return (-found.worth, (-found.score, -found.left), found.positions), [
                start + one for one in found.positions
            ]
        packed = packed_set_by([fullness(row) for row in rows], marks, count, worth=worth)
        minors = [int(self.picture.device_minor[rows[one]]) for one in packed.positions]
        return (-packed.worth, packed.ranks, minors), [rows[one] for one in packed.positions]

    def _one_each(self, rows: Ranked, switches: set[int], count: int) -> list[int]:
        """The first choice under each switch, then the first choices of what is left there."""
        under = [row for row in rows if int(self.picture.device_pcie[row]) in switches]
        taken = [next(row for row in under if self.picture.device_pcie[row] == switch) for switch in sorted(switches)]
        return [*taken, *[row for row in under if row not in taken][: count - len(taken)]]


def _worth(switches: int, there: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> NDArray[np.int64]:
    """[2^(s+1)] what it is worth that the first type's devices are under these of s switches, the last bit: some under none that is known.

    `there`: [s] devices of each other type under each switch; `counts`: how many of it are asked.
    """
    span = span_table(switches + 1)
    known = span[:, :switches]
    sums = [known @ under for under in there]
    beside = np.add.reduce([np.minimum(total, count) for total, count in zip(sums, counts, strict=True)])
    number = known.sum(axis=1)
    strict = (number > 0) & ~span[:, switches].astype(np.bool_)
    for under, total, count in zip(there, sums, counts, strict=True):
        strict &= (total >= count) & (number <= count) & ~(known @ (under == 0)).astype(np.bool_)
    worth: NDArray[np.int64] = np.where(strict, _STRICT - number, beside)
    return worth
