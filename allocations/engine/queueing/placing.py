"""Places the pods of one workload, all or none, on one snapshot.

Pods of a gang stand on as few nodes as possible, within its topology on as few values of the label as possible. Equal
pods are placed exactly; unequal ones hardest first, by a search bounded by `TRIES`. Each pod's devices are the engine's
own choice on the node. Invariants: what is answered fits together; the same snapshot gives the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from allocations.engine.decision import Decision
from allocations.engine.needs import Need
from allocations.engine.patch import take
from allocations.engine.plan import feasible, plan
from allocations.engine.queueing.workloads import Member, Topology, Workload
from kube.device_types import GPU

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

TRIES: Final = 400
"""Plans of a search for unequal pods."""
NEW_NODES: Final = 3
"""Nodes not used yet that such a search tries for a pod."""

Labels = Sequence[Mapping[str, str]]
"""Labels by node row."""


class Seat(NamedTuple):
    """A pod and the devices it gets."""

    member: Member
    decision: Decision


class Placed(NamedTuple):
    """Seats for all, and the snapshot with them taken."""

    seats: tuple[Seat, ...]
    snapshot: Snapshot


class NoRoom(NamedTuple):
    """Why not. `decision`: of a lone pod, for the reasons of each node."""

    reason: str
    decision: Decision | None = None


class Placer:
    """Places on snapshots of one fleet. `labels` of its nodes."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def place(self, snapshot: Snapshot, workload: Workload, *, blocked: Collection[int]) -> Placed | NoRoom:
        """Seats for every member, or why there are none. `blocked`: device ids that it may not have."""
        members = workload.members
        if len(members) == 1 and workload.topology is None and not workload.beside:
            decision = _plan(snapshot, members[0], members[0].rows, blocked)
            if decision.node is None:
                return NoRoom(decision.summary, decision)
            return Placed((Seat(members[0], decision),), _taken(snapshot, decision))
        if workload.topology is None:
            found = _on_rows(snapshot, members, None, blocked)
            return found if isinstance(found, Placed) else NoRoom(_short(workload, members, found))
        return self._by_topology(snapshot, workload, workload.topology, blocked)

    def _by_topology(
        self, snapshot: Snapshot, workload: Workload, topology: Topology, blocked: Collection[int]
    ) -> Placed | NoRoom:
        values = self._values(topology)
        if workload.beside:
            beside = {self._value(row, topology) for row in workload.beside}
            if topology.required:
                values = {value: rows for value, rows in values.items() if value in beside}
            else:
                together = sorted(row for value in beside for row in values.get(value, ()))
                found = _on_rows(snapshot, workload.members, together, blocked)
                if isinstance(found, Placed):
                    return found
        best: tuple[tuple[int, int], Placed] | None = None
        counts: dict[str, int] = {}
        first = self._first_choice(snapshot, workload.members[0], blocked)
        for value, rows in values.items():
            found = _on_rows(snapshot, workload.members, rows, blocked)
            if isinstance(found, Placed):
                nodes = len({seat.decision.node for seat in found.seats})
                rank = (nodes, min(first.get(str(seat.decision.node), len(first)) for seat in found.seats))
                if best is None or rank < best[0]:
                    best = rank, found
            else:
                counts[value] = found
        if best is not None:
            return best[1]
        if topology.required:
            return NoRoom(_no_value(workload, topology, counts, snapshot))
        return self._on_few_values(snapshot, workload, values, counts, blocked)

    def _on_few_values(
        self,
        snapshot: Snapshot,
        workload: Workload,
        values: Mapping[str, Sequence[int]],
        counts: Mapping[str, int],
        blocked: Collection[int],
    ) -> Placed | NoRoom:
        """On the values with the most room, as few as there have to be."""
        rows: list[int] = []
        most = 0
        for value in sorted(counts, key=lambda value: (-counts[value], value)):
            if not counts[value]:
                break
            rows = sorted([*rows, *values[value]])
            found = _on_rows(snapshot, workload.members, rows, blocked)
            if isinstance(found, Placed):
                return found
            most = max(most, found)
        return NoRoom(_short(workload, workload.members, most))

    def _values(self, topology: Topology) -> dict[str, list[int]]:
        """Value of the label → node rows; nodes without it are a value each, or none where it is required."""
        values: dict[str, list[int]] = {}
        for row in range(len(self._labels)):
            value = self._value(row, topology)
            if value or not topology.required:
                values.setdefault(value or f"\0{row}", []).append(row)
        return values

    def _value(self, row: int, topology: Topology) -> str:
        return self._labels[row].get(topology.label, "") or ("" if topology.required else f"\0{row}")

    @staticmethod
    def _first_choice(snapshot: Snapshot, member: Member, blocked: Collection[int]) -> dict[str, int]:
        """Node → its place in the engine's order for the first pod."""
        scored = sorted(feasible(_plan(snapshot, member, member.rows, blocked), snapshot), key=lambda one: -one[1])
        return {name: place for place, (name, _) in enumerate(scored)}


def _on_rows(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]
) -> Placed | int:
    """Seats on these nodes, all where None, as few as possible; else how many pods have room."""
    if all(_alike(member, members[0]) for member in members):
        return _equal_on_rows(snapshot, members, _both(members[0].rows, rows), blocked)
    return _unequal_on_rows(snapshot, members, rows, blocked)


def _equal_on_rows(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]
) -> Placed | int:
    """Nodes by how many pods each holds, the largest first; the last one as full as possible."""
    decision = plan(snapshot, members[0].request, candidates=rows, blocked=blocked, verdicts_up_to=0)
    if decision.node is None:
        return 0
    scored = sorted(feasible(decision, snapshot), key=lambda one: -one[1])
    order = {snapshot.node_index[name]: place for place, (name, _) in enumerate(scored)}
    holds = _capacities(snapshot, members, list(order), blocked)
    if sum(holds.values()) < len(members):
        return sum(holds.values())
    left, chosen = len(members), []
    remaining = sorted(holds, key=lambda row: (-holds[row], order[row]))
    while left > 0:
        enough = [row for row in remaining if holds[row] >= left]
        row = min(enough, key=lambda row: (holds[row], order[row])) if enough else remaining[0]
        remaining.remove(row)
        chosen.append(row)
        left -= holds[row]
    seats: list[Seat] = []
    waiting = list(members)
    for row in chosen:
        for member in waiting[: holds[row]]:
            decision = plan(snapshot, member.request, candidates=[row], blocked=blocked, verdicts_up_to=0)
            seats.append(Seat(member, decision))
            snapshot = _taken(snapshot, decision)
        waiting = waiting[holds[row] :]
    return Placed(tuple(seats), snapshot)


def _capacities(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int], blocked: Collection[int]
) -> dict[int, int]:
    """How many of the equal pods each of these nodes holds, at most all of them."""
    request, most = members[0].request, len(members)
    if not _is_plain(request):
        return {row: _capacity(snapshot, request, row, most, blocked) for row in rows}
    ask = request.asks[0]
    need = Need(snapshot, ask)
    fits = need.fits
    if blocked:
        free = np.ones(len(snapshot.device_uuid), dtype=np.bool_)
        free[[row for row in snapshot.index.rows_of(list(blocked)).tolist() if row >= 0]] = False
        fits = fits & need.view.column(free)
    per_node = need.per_node(fits)
    return {row: min(int(per_node[row]) // ask.count, most) for row in rows}


def _capacity(snapshot: Snapshot, request: DeviceRequest, row: int, most: int, blocked: Collection[int]) -> int:
    """The same by placing one after the other."""
    for held in range(most):
        decision = plan(snapshot, request, candidates=[row], blocked=blocked, verdicts_up_to=0)
        if decision.node is None:
            return held
        snapshot = _taken(snapshot, decision)
    return most


def _is_plain(request: DeviceRequest) -> bool:
    """Whether any free whole devices of a node do."""
    if len(request.asks) != 1 or request.policy_strict or request.joint is not None:
        return False
    ask = request.asks[0]
    return ask.whole and not (ask.limits is not None and ask.limits.one_numa)


class _Search:
    """Unequal pods on at most so many nodes."""

    def __init__(self, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]) -> None:
        self.members = members
        self.rows = rows
        self.blocked = blocked
        self.tries = TRIES
        self.most = 0

    def seats(self, snapshot: Snapshot, place: int, used: tuple[int, ...], nodes: int) -> Placed | None:
        """Seats for the pods from `place` on, on the nodes used and at most `nodes` in all."""
        self.most = max(self.most, place)
        if place == len(self.members):
            return Placed((), snapshot)
        member = self.members[place]
        for row in self._options(snapshot, member, used, nodes):
            if self.tries <= 0:
                return None
            self.tries -= 1
            decision = plan(snapshot, member.request, candidates=[row], blocked=self.blocked, verdicts_up_to=0)
            if decision.node is None:
                continue
            after = used if row in used else (*used, row)
            rest = self.seats(_taken(snapshot, decision), place + 1, after, nodes)
            if rest is not None:
                return Placed((Seat(member, decision), *rest.seats), rest.snapshot)
        return None

    def _options(self, snapshot: Snapshot, member: Member, used: tuple[int, ...], nodes: int) -> Iterable[int]:
        allowed = _both(member.rows, self.rows)
        yield from (row for row in used if allowed is None or row in allowed)
        if len(used) < nodes and self.tries > 0:
            self.tries -= 1
            decision = plan(snapshot, member.request, candidates=allowed, blocked=self.blocked, verdicts_up_to=0)
            scored = sorted(feasible(decision, snapshot), key=lambda one: -one[1]) if decision.node else []
            new = [row for name, _ in scored if (row := snapshot.node_index[name]) not in used]
            yield from new[:NEW_NODES]


def _unequal_on_rows(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]
) -> Placed | int:
    hardest = sorted(members, key=lambda member: (_hardness(member.request), member.age))
    most = 0
    for nodes in range(1, len(members) + 1):
        search = _Search(hardest, rows, blocked)
        found = search.seats(snapshot, 0, (), nodes)
        if found is not None:
            return found
        most = max(most, search.most)
    return most


def _hardness(request: DeviceRequest) -> tuple[Fraction, int]:
    """Orders requests, the hardest first: by whole GPUs, then by devices."""
    gpus = [ask for ask in request.asks if ask.type == GPU]
    amount = sum(
        (ask.count * (Fraction(1) if ask.whole else Fraction(ask.core_percent or ask.memory_ratio or 1, 100)))
        for ask in gpus
    )
    return -Fraction(amount), -sum(ask.count for ask in request.asks)


def _alike(one: Member, other: Member) -> bool:
    return one.request == other.request and one.rows == other.rows


def _both(one: Sequence[int] | None, other: Sequence[int] | None) -> Sequence[int] | None:
    """Rows that are in both; None stands for all."""
    if one is None or other is None:
        return other if one is None else one
    chosen = set(other)
    return [row for row in one if row in chosen]


def _plan(snapshot: Snapshot, member: Member, rows: Sequence[int] | None, blocked: Collection[int]) -> Decision:
    return plan(snapshot, member.request, candidates=rows, blocked=blocked)


def _taken(snapshot: Snapshot, decision: Decision) -> Snapshot:
    return take(snapshot, [(one.device_id, one.core_percent, one.memory_bytes or 0) for one in decision.grants])


def _short(workload: Workload, members: Sequence[Member], most: int) -> str:
    return f"room for {most} of {len(members)} pods of {workload.name.rpartition('/')[2]}"


def _no_value(workload: Workload, topology: Topology, counts: Mapping[str, int], snapshot: Snapshot) -> str:
    """`no 2 nodes of one rack with 8 free H100; best: rack a01 with 1`."""
    label = topology.label.rpartition("/")[2]
    count = len(workload.members)
    request = workload.members[0].request
    alike = all(_alike(member, workload.members[0]) for member in workload.members)
    if alike and _is_plain(request) and _one_a_node(snapshot, request):
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
