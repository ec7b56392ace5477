"""Placements for equal pods on given nodes, exactly on the fewest.

Called by `placing`, `unequal_pods` and `useful_devices`. Each pod's devices are the engine's own choice on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.decision import Decision
from allocations.engine.needs import Need, amounts
from allocations.engine.patch import take
from allocations.engine.plan import feasible, plan
from allocations.engine.queueing.workloads import Member
from claims.dialects.request import CORE_WHOLE

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest


class PodPlacement(NamedTuple):
    """A pod and the devices it gets."""

    member: Member
    decision: Decision


class Placements(NamedTuple):
    """Placements for all, and the snapshot with them taken."""

    pods: tuple[PodPlacement, ...]
    snapshot: Snapshot


def rows_used(snapshot: Snapshot, placed: Placements) -> set[int]:
    """The node rows of the placements."""
    return {snapshot.node_index[str(one.decision.node)] for one in placed.pods}


def equal_on_rows(
    snapshot: Snapshot,
    members: Sequence[Member],
    rows: Sequence[int] | None,
    beside: Collection[int],
    blocked: Collection[int],
) -> Placements | int:
    """First the nodes where members run; then nodes by how many pods each holds, the largest first, and the last one
    as full as possible.
    """
    holds, order = room_on(snapshot, members, rows, blocked)
    if sum(holds.values()) < len(members):
        return sum(holds.values())
    left, chosen = len(members), []
    remaining = sorted(holds, key=lambda row: (-holds[row], order[row]))
    for row in sorted(set(beside) & set(holds), key=order.__getitem__):
        if left > 0:
            remaining.remove(row)
            chosen.append(row)
            left -= holds[row]
    while left > 0:
        enough = [row for row in remaining if holds[row] >= left]
        row = min(enough, key=lambda row: (holds[row], order[row])) if enough else remaining[0]
        remaining.remove(row)
        chosen.append(row)
        left -= holds[row]
    placements: list[PodPlacement] = []
    waiting = list(members)
    for row in chosen:
        for member in waiting[: holds[row]]:
            decision = plan(snapshot, member.request, candidates=[row], blocked=blocked, verdicts_up_to=0)
            placements.append(PodPlacement(member, decision))
            snapshot = taken(snapshot, decision)
        waiting = waiting[holds[row] :]
    return Placements(tuple(placements), snapshot)


def room_on(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int] | None, blocked: Collection[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """(how many of these equal pods each node holds, the engine's order of the nodes), by node row."""
    decision = plan(snapshot, members[0].request, candidates=rows, blocked=blocked, verdicts_up_to=0)
    if decision.node is None:
        return {}, {}
    scored = sorted(feasible(decision, snapshot), key=lambda one: -one[1])
    order = {snapshot.node_index[name]: place for place, (name, _) in enumerate(scored)}
    return _capacities(snapshot, members, list(order), blocked), order


def _capacities(
    snapshot: Snapshot, members: Sequence[Member], rows: Sequence[int], blocked: Collection[int]
) -> dict[int, int]:
    """How many of the equal pods each of these nodes holds, at most all of them."""
    request, most = members[0].request, len(members)
    if _is_one_share(request):
        held = np.minimum(_shares_per_node(snapshot, request, blocked)[list(rows)], most)
        return dict(zip(rows, held.tolist(), strict=True))
    if not is_plain(request):
        return {row: _capacity(snapshot, request, row, most, blocked) for row in rows}
    ask = request.asks[0]
    need = Need(snapshot, ask)
    per_node = need.per_node(_fits(snapshot, need, blocked))
    return {row: min(int(per_node[row]) // ask.count, most) for row in rows}


def _fits(snapshot: Snapshot, need: Need, blocked: Collection[int]) -> NDArray[np.bool_]:
    """[v] can serve now, blocked devices left out."""
    if not blocked:
        return need.fits
    free = np.ones(len(snapshot.device_uuid), dtype=np.bool_)
    free[[row for row in snapshot.index.rows_of(list(blocked)).tolist() if row >= 0]] = False
    return need.fits & need.view.column(free)


def _is_one_share(request: DeviceRequest) -> bool:
    """Whether it asks for one share, which any device with room gives."""
    return len(request.asks) == 1 and request.joint is None and not request.asks[0].whole and request.asks[0].count == 1


def _shares_per_node(snapshot: Snapshot, request: DeviceRequest, blocked: Collection[int]) -> NDArray[np.int64]:
    """[n] how many such shares the devices of each node have room for."""
    ask = request.asks[0]
    need = Need(snapshot, ask)
    rows = need.view.rows[_fits(snapshot, need, blocked)]
    held = np.zeros(len(snapshot.node_names), np.int64)
    for total in np.unique(snapshot.memory_total[rows]).tolist():
        same = rows[snapshot.memory_total[rows] == total]
        core, memory = amounts(ask, total) or (0, 0)
        parts = []
        if core:
            parts.append((CORE_WHOLE - snapshot.core_used[same].astype(np.int64)) // core)
        if memory:
            parts.append((total - snapshot.memory_used[same]) // memory)
        if parts:
            np.add.at(held, snapshot.device_node[same], np.minimum.reduce(parts))
    return held


def _capacity(snapshot: Snapshot, request: DeviceRequest, row: int, most: int, blocked: Collection[int]) -> int:
    """The same by placing one after the other."""
    for held in range(most):
        decision = plan(snapshot, request, candidates=[row], blocked=blocked, verdicts_up_to=0)
        if decision.node is None:
            return held
        snapshot = taken(snapshot, decision)
    return most


def is_plain(request: DeviceRequest) -> bool:
    """Whether any free whole devices of a node do."""
    if len(request.asks) != 1 or request.policy_strict or request.joint is not None:
        return False
    ask = request.asks[0]
    return ask.whole and not (ask.limits is not None and ask.limits.one_numa)


def all_alike(members: Sequence[Member]) -> bool:
    """Whether the pods are equal."""
    return all(alike(member, members[0]) for member in members)


def alike(one: Member, other: Member) -> bool:
    """Whether two pods ask for the same and may run on the same nodes."""
    return one.request == other.request and one.rows == other.rows


def both(one: Sequence[int] | None, other: Sequence[int] | None) -> Sequence[int] | None:
    """Rows that are in both; None stands for all."""
    if one is None or other is None:
        return other if one is None else one
    chosen = set(other)
    return [row for row in one if row in chosen]


def taken(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot with what was decided taken."""
    return take(snapshot, [(one.device_id, one.core_percent, one.memory_bytes or 0) for one in decision.grants])
