"""Places the pods of one workload, all or none, on one snapshot.

Pods of a gang are placed on as few nodes as possible, within its topology on as few values of the label as possible;
nodes and values where members run already count as none. Equal pods are placed exactly (`equal_pods`), others by a
bounded search (`unequal_pods`). Invariants: the devices of all pods fit at the same time; the same snapshot gives the
same result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from allocations.engine.decision import Decision
from allocations.engine.needs import Need
from allocations.engine.plan import EXPLAINED_UP_TO, feasible, plan
from allocations.engine.queueing.equal_pods import (
    Placements,
    PodPlacement,
    all_alike,
    both,
    equal_on_rows,
    is_plain,
    room_on,
    rows_used,
    taken,
)
from allocations.engine.queueing.unequal_pods import unequal_on_rows
from allocations.engine.queueing.workloads import Member, Topology, Workload
from kube.device_types import GPU

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

SETS: Final = 500
"""Sets of values of a preferred label that are compared."""

Labels = Sequence[Mapping[str, str]]
"""Labels by node row."""


class NoRoom(NamedTuple):
    """Why not. `decision`: of a lone pod, for the reasons of each node."""

    reason: str
    decision: Decision | None = None


class Placer:
    """Places on snapshots of one fleet. `labels` of its nodes."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def place(self, snapshot: Snapshot, workload: Workload, *, blocked: Collection[int]) -> Placements | NoRoom:
        """Placements for every member, or why there are none. `blocked`: device ids that it may not have."""
        members = workload.members
        if len(members) == 1 and workload.topology is None:
            decision = self._of_one(snapshot, members[0], workload.beside, blocked)
            if decision.node is None:
                return NoRoom(decision.summary, decision)
            return Placements((PodPlacement(members[0], decision),), taken(snapshot, decision))
        if workload.topology is None:
            found = _on_rows(snapshot, workload, None, blocked)
            return found if isinstance(found, Placements) else NoRoom(_short(workload, members, found))
        return self._by_topology(snapshot, workload, workload.topology, blocked)

    @staticmethod
    def _of_one(snapshot: Snapshot, member: Member, beside: Collection[int], blocked: Collection[int]) -> Decision:
        """A pod by itself: on a node of its gang's others where one has room."""
        if beside:
            decision = _plan(snapshot, member, both(member.rows, sorted(set(beside))), blocked)
            if decision.node is not None:
                return decision
        return _plan(snapshot, member, member.rows, blocked)

    def rows_with_room(
        self, snapshot: Snapshot, workload: Workload, *, blocked: Collection[int]
    ) -> Sequence[int] | None:
        """Node rows where the whole workload has room, all where its topology requires nothing."""
        topology = workload.topology
        if topology is None or not topology.required:
            return None
        return sorted(
            row
            for rows in self._values(topology, workload.beside).values()
            if isinstance(_on_rows(snapshot, workload, rows, blocked), Placements)
            for row in rows
        )

    def _by_topology(
        self, snapshot: Snapshot, workload: Workload, topology: Topology, blocked: Collection[int]
    ) -> Placements | NoRoom:
        values = self._values(topology, workload.beside)
        own = [] if topology.required else sorted({self._value(row, topology) for row in workload.beside} & set(values))
        if own:  # members run there already: these values cost nothing more
            found = _on_rows(snapshot, workload, _rows_of(values, own), blocked)
            if isinstance(found, Placements):
                return found
        best: tuple[tuple[int, int], Placements] | None = None
        counts: dict[str, int] = {}
        first = self._first_choice(snapshot, workload.members[0], blocked)
        for value, rows in values.items():
            if value in own:
                continue
            found = _on_rows(snapshot, workload, sorted({*_rows_of(values, own), *rows}), blocked)
            if isinstance(found, Placements):
                earliest = min(first.get(str(one.decision.node), len(first)) for one in found.pods)
                rank = len(rows_used(snapshot, found)), earliest
                if best is None or rank < best[0]:
                    best = rank, found
            else:
                counts[value] = found
        if best is not None:
            return best[1]
        if topology.required:
            return NoRoom(_no_value(workload, topology, counts, snapshot))
        return _on_few_values(snapshot, workload, values, own, counts, blocked)

    def _values(self, topology: Topology, beside: Sequence[int]) -> dict[str, list[int]]:
        """Value of the label → node rows; nodes without it are a value each, or none where it is required. Where
        members run already (`beside`), it is theirs that is required.
        """
        values: dict[str, list[int]] = {}
        for row in range(len(self._labels)):
            value = self._value(row, topology)
            if value or not topology.required:
                values.setdefault(value or f"\0{row}", []).append(row)
        if topology.required and beside:
            theirs = {self._value(row, topology) for row in beside}
            values = {value: rows for value, rows in values.items() if value in theirs}
        return values

    def _value(self, row: int, topology: Topology) -> str:
        return self._labels[row].get(topology.label, "") or ("" if topology.required else f"\0{row}")

    @staticmethod
    def _first_choice(snapshot: Snapshot, member: Member, blocked: Collection[int]) -> dict[str, int]:
        """Node → its place in the engine's order for the first pod."""
        scored = sorted(feasible(_plan(snapshot, member, member.rows, blocked), snapshot), key=lambda one: -one[1])
        return {name: place for place, (name, _) in enumerate(scored)}


def _on_rows(
    snapshot: Snapshot, workload: Workload, rows: Sequence[int] | None, blocked: Collection[int]
) -> Placements | int:
    """Placements on these nodes, all where None, on as few as possible beside those where members run.

    How many pods have room, where not all have.
    """
    members = workload.members
    if all_alike(members):
        return equal_on_rows(snapshot, members, both(members[0].rows, rows), workload.beside, blocked)
    return unequal_on_rows(snapshot, members, rows, workload.beside, blocked)


def _on_few_values(
    snapshot: Snapshot,
    workload: Workload,
    values: Mapping[str, Sequence[int]],
    own: Sequence[str],
    counts: Mapping[str, int],
    blocked: Collection[int],
) -> Placements | NoRoom:
    """On as few values beside `own` as there have to be, but at least two. Equal pods: of these on the fewest nodes.

    `counts`: how many pods each value has room for, together with `own`.
    """
    ranked = sorted((value for value in counts if counts[value]), key=lambda value: (-counts[value], value))
    most = max(counts.values(), default=0)
    members = workload.members
    room = room_on(snapshot, members, members[0].rows, blocked)[0] if all_alike(members) else {}
    for number in range(2, min(len(ranked), len(members)) + 1):
        best = _rows_of(values, (*own, *ranked[:number]))
        if room:
            if sum(room.get(row, 0) for row in best) < len(members):
                continue
            sets = islice(combinations(ranked, number), SETS)
            best = min(
                (_rows_of(values, (*own, *some)) for some in sets),
                key=lambda rows: _nodes_for(len(members), rows, room, workload.beside),
            )
        found = _on_rows(snapshot, workload, best, blocked)
        if isinstance(found, Placements):
            return found
        most = max(most, found)
    if room:
        most = sum(room.values())
    return NoRoom(_short(workload, members, most))


def _nodes_for(pods: int, rows: Iterable[int], room: Mapping[int, int], beside: Collection[int]) -> float:
    """How many nodes of these rows so many equal pods take beside those where members run; infinite without room."""
    left = pods - sum(room.get(row, 0) for row in rows if row in beside)
    nodes = 0
    for held in sorted((room.get(row, 0) for row in rows if row not in beside), reverse=True):
        if left <= 0:
            break
        left -= held
        nodes += 1
    return nodes if left <= 0 else float("inf")


def _rows_of(values: Mapping[str, Sequence[int]], chosen: Iterable[str]) -> list[int]:
    """The node rows of these values of the label."""
    return sorted(row for value in chosen for row in values[value])


def _plan(snapshot: Snapshot, member: Member, rows: Sequence[int] | None, blocked: Collection[int]) -> Decision:
    return plan(snapshot, member.request, candidates=rows, blocked=blocked, verdicts_up_to=EXPLAINED_UP_TO)


def _short(workload: Workload, members: Sequence[Member], most: int) -> str:
    return f"room for {most} of {len(members)} pods of {workload.name.rpartition('/')[2]}"


def _no_value(workload: Workload, topology: Topology, counts: Mapping[str, int], snapshot: Snapshot) -> str:
    """`no 2 nodes of one rack with 8 free H100; best: rack a01 with 1`."""
    label = topology.label.rpartition("/")[2]
    count = len(workload.members)
    request = workload.members[0].request
    if all_alike(workload.members) and is_plain(request) and _one_a_node(snapshot, request):
        ask = request.asks[0]
        what = f"no {count} nodes of one {label} with {ask.count} free {'/'.join(ask.models) or _model(snapshot)}"
    else:
        what = f"no room for {count} pods on nodes of one {label}"
    if not counts:
        return f"{what}: no node has the label {topology.label}"
    best = min(counts, key=lambda value: (-counts[value], value))
    return f"{what}; best: {label} {best} with {counts[best]}"


def _one_a_node(snapshot: Snapshot, request: DeviceRequest) -> bool:
    """Whether no node could hold two such pods if nothing were used."""
    need = Need(snapshot, request.asks[0])
    per_node = need.per_node(need.ever)
    return bool(len(per_node)) and int(per_node.max()) < 2 * request.asks[0].count


def _model(snapshot: Snapshot) -> str:
    """The model of the fleet, `GPUs` where there are several."""
    gpus = np.equal(snapshot.device_type, snapshot.type_code.get(GPU, -1))
    codes = set(snapshot.device_model[gpus].tolist())
    return snapshot.models[codes.pop()] if len(codes) == 1 else "GPUs"
