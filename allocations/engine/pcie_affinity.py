"""Devices of several types under the same PCIe switches (DEV-10).

Called by `engine.plan` (where that is possible, and how well) and by `engine.choice` (which devices). A request is
served under a set of switches if each of them has at least one chosen device of every type, and together they have all.
Invariants: the fewest switches win, then the choice of the first type alone (the best set of whole GPUs, the fullest
device for a share); a device of unknown switch is under none. Where it is preferred and not possible, as many of the
other devices as possible are under switches of the first type's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.set_worth import WorthSet, best_set_by, packed_set_by, span_table
from kube.device_types import GPU

if TYPE_CHECKING:
    from allocations.engine.budget import Budget
    from allocations.engine.device_ranking import DeviceRanking
    from allocations.engine.needs import Need
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import Joint

SWITCHES_MOST: Final = 12
"""Switches of a node that are combined; further ones are left out."""
_STRICT: Final = 1 << 20
"""What a set under the same switches is worth, less their number; above any number of devices merely beside."""

Ranked = Sequence[int]
"""Device rows, the first choice first."""


class PcieAffinityNeeds:
    """The needs of a request to serve under the same switches; the first of them leads."""

    def __init__(self, snapshot: Snapshot, joint: Joint, needs: Sequence[Need], budget: Budget) -> None:
        self.snapshot = snapshot
        self.needs = [need for need in needs if need.ask.type in joint.types]
        self.budget = budget
        self.required = joint.required

    @property
    def text(self) -> str:
        """The types, for reasons."""
        return " and ".join(need.ask.type for need in self.needs)

    @cached_property
    def fewest(self) -> NDArray[np.int64]:
        """[n] the fewest switches under which all can be served now, 0 where that is impossible."""
        return self._fewest_at_numa([need.fits for need in self.needs])

    @cached_property
    def ever(self) -> NDArray[np.int64]:
        """[n] the same if nothing were used."""
        return self._fewest_at_numa([need.ever for need in self.needs])

    def worth(self, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """[a] what the best choice on each node is worth: fewer switches first, then more devices beside them."""
        fewest = self.fewest[nodes]
        worth = _STRICT - fewest
        apart = np.flatnonzero(fewest == 0)
        if len(apart):
            worth[apart] = 0 if self.required else self._beside(nodes[apart])
        return worth

    def _fewest_at_numa(self, fits: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
        """[n] the fewest switches, with the first type's devices at one NUMA node where they have to be."""
        least: NDArray[np.int64] | None = None
        for own in self.needs[0].apart_by_numa(fits[0]):
            found = self._fewest([own, *fits[1:]])
            least = found if least is None else np.where((found > 0) & ((least == 0) | (found < least)), found, least)
        return np.zeros(len(self.snapshot.node_names), dtype=np.int64) if least is None else least

    def _fewest(self, fits: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
        found = np.zeros(len(self.snapshot.node_names), dtype=np.int64)
        tables = [self._by_switch(need, able) for need, able in zip(self.needs, fits, strict=True)]
        counts = [need.ask.count for need in self.needs]
        enough = [table.sum(axis=1) >= count for table, count in zip(tables, counts, strict=True)]
        rows = np.flatnonzero(np.logical_and.reduce(enough))
        if not len(rows):
            return found
        tables = [table[rows] for table in tables]
        common = np.logical_and.reduce([table > 0 for table in tables])
        columns = np.flatnonzero(common.any(axis=0)).tolist()
        size_of = np.zeros(len(rows), dtype=np.int64)
        widest = min(*counts, len(columns))  # with more switches, one would have no device of a type
        for size in range(1, widest + 1):
            for chosen in combinations(columns, size):
                able = (size_of == 0) & common[:, chosen].all(axis=1)
                for table, count in zip(tables, counts, strict=True):
                    able &= table[:, chosen].sum(axis=1) >= count
                size_of[able] = size
            if size_of.all():
                break
        found[rows] = size_of
        return found

    def _beside(self, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """[a] the most devices of the other types that can be under the first's switches."""
        lead, *others = self.needs
        most = np.zeros(len(nodes), dtype=np.int64)
        tables = [self._by_switch(need, need.fits)[nodes] for need in others]
        for own in lead.apart_by_numa(lead.fits):
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
        nodes = len(self.snapshot.node_names)
        rows = need.view.rows[able]
        switch = self.snapshot.device_pcie[rows]
        counted = (switch >= 0) & (switch < SWITCHES_MOST)
        place = self.snapshot.device_node[rows[counted]].astype(np.int64) * SWITCHES_MOST + switch[counted]
        return np.bincount(place, minlength=nodes * SWITCHES_MOST).reshape(nodes, SWITCHES_MOST)

    def choose(self, ranking: DeviceRanking) -> dict[str, list[int]]:
        """Type → device rows on the node of the ranking, which can serve."""
        lead, *others = self.needs
        listed = {need.ask.type: ranking.ranked(need) for need in others}
        sets = [
            self._lead(rows, ranking, [(listed[need.ask.type], need.ask.count) for need in others])
            for rows in lead.numas(ranking.ranked(lead))
            if len(rows) >= lead.ask.count
        ]
        best = min(sets, key=lambda found: (-found.worth, found.rank, found.positions))
        rows = list(best.positions)
        chosen = {lead.ask.type: rows}
        switches = {int(self.snapshot.device_pcie[row]) for row in rows}
        for need in others:
            count = need.ask.count
            if best.worth >= _STRICT - SWITCHES_MOST:
                chosen[need.ask.type] = self._one_each(listed[need.ask.type], switches, count)
            else:
                chosen[need.ask.type] = ranking.others(need, beside=rows, same_switch_first=True)[:count]
        return chosen

    def _lead(self, rows: Ranked, ranking: DeviceRanking, others: Sequence[tuple[Ranked, int]]) -> WorthSet:
        """The best set of the first type, with rows as its positions.

        `rows`: at least as many as are requested; `others`: rows and number of each other type.
        """
        lead, count = self.needs[0], self.needs[0].ask.count
        pcie = self.snapshot.device_pcie
        switches = sorted({int(pcie[row]) for row in rows if 0 <= pcie[row] < SWITCHES_MOST})
        place = {switch: bit for bit, switch in enumerate(switches)}
        unknown = len(switches)
        marks = [1 << place.get(int(pcie[row]), unknown) for row in rows]
        there = [
            np.array([sum(1 for row in listed if pcie[row] == switch) for switch in switches], dtype=np.int64)
            for listed, _ in others
        ]
        worth = _worth(unknown, there, [number for _, number in others])
        if not (lead.ask.whole and lead.ask.type == GPU):
            found = packed_set_by([ranking.fullness(row) for row in rows], marks, count, worth=worth)
            return found._replace(positions=tuple(rows[one] for one in found.positions))
        start = int(self.snapshot.node_start[ranking.node])
        found = best_set_by(
            self.snapshot.node_topology[ranking.node],
            lead.free_mask(ranking.node),
            count,
            marks={row - start: mark for row, mark in zip(rows, marks, strict=True)},
            worth=worth,
            budget=self.budget,
        )
        return found._replace(positions=tuple(start + one for one in found.positions))

    def _one_each(self, rows: Ranked, switches: set[int], count: int) -> list[int]:
        """The first choice under each switch, then the first choices of what is left there."""
        under = [row for row in rows if int(self.snapshot.device_pcie[row]) in switches]
        taken = [next(row for row in under if self.snapshot.device_pcie[row] == switch) for switch in sorted(switches)]
        return [*taken, *[row for row in under if row not in taken][: count - len(taken)]]


def _worth(switches: int, there: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> NDArray[np.int64]:
    """[2^(s+1)] what sets of the first type are worth, by the switches that they are under; last bit: an unknown one.

    `there`: [s] devices of each other type under each switch; `counts`: how many of it are asked for.
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
