"""Which devices of the chosen node: the best set of whole GPUs, the right device for each share.

Called by `engine.plan` for the one node it chose, and by explain for any node. Kept true: devices
are distinct, each fits, whole GPUs are the best set (DESIGN §2), ties end at the lower minor.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from allocations.engine.decision import Grant
from allocations.engine.needs import amounts, free_positions
from allocations.engine.picture import NO_MEMORY
from allocations.engine.reasons import memory_text
from allocations.engine.sets import best_set
from claims.dialects.request import Policy
from claims.dialects.steps import Taken, most_at_once
from kube.device_types import GPU, ledger_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from allocations.engine.budget import Budget
    from allocations.engine.joint import Together
    from allocations.engine.needs import Need
    from allocations.engine.picture import Picture
    from allocations.engine.several import Several
    from claims.dialects.request import DeviceRequest


def choose_devices(
    picture: Picture,
    request: DeviceRequest,
    needs: Sequence[Need],
    node: int,
    *,
    budget: Budget,
    together: Together | None = None,
    several: Several | None = None,
) -> Chosen:
    """The devices of a node that can serve, in the order of the asks, then of their minors.

    `budget`: what the decision's searches spend. `together`: the needs that come from under the same switches where the node has them so. `several`: the needs, where several are for one type.
    """
    if several is not None:
        return _summed(picture, needs, several.choose(node))
    grants: list[Grant] = []
    near = _Near(frozenset(), frozenset())
    joint = _joint(picture, request, node, together) if together else {}
    for need in needs:
        if need.ask.type in joint:
            rows = joint[need.ask.type]
        elif need.ask.type != GPU:
            rows = _others(picture, request, need, node, near)[: need.ask.count]
        elif need.ask.whole:
            rows = _whole_gpus(picture, request, need, node, budget)
        else:
            rows = _gpu_shares(picture, request, need, node)
        if need.ask.type == GPU:
            near = _Near.to(picture, rows)
        grants.extend(_grant(picture, need, row) for row in sorted(rows))
    return Chosen(tuple(grants))


def _summed(picture: Picture, needs: Sequence[Need], rows: Sequence[Sequence[int]]) -> Chosen:
    """One grant a device, of the most that the asks take of it at once."""
    by_row: dict[int, list[tuple[Need, Grant]]] = {}
    for need, own in zip(needs, rows, strict=True):
        for row in own:
            by_row.setdefault(row, []).append((need, _grant(picture, need, row)))
    grants = tuple(_at_once(by_row[row]) for row in sorted(by_row))
    minors = tuple(tuple(int(picture.device_minor[row]) for row in own) for own in rows)
    return Chosen(grants, minors)


def _at_once(parts: Sequence[tuple[Need, Grant]]) -> Grant:
    """What the asks take of one device; one that has it whole at any time has it whole."""
    for _, grant in parts:
        if grant.whole or len(parts) == 1:
            return grant
    grant = parts[0][1]
    core, memory = most_at_once(
        Taken(need.ask.steps, part.core_percent, part.memory_bytes or 0) for need, part in parts
    )
    return msgspec.structs.replace(
        grant, core_percent=core, memory_bytes=None if grant.memory_bytes is None else memory
    )


class Chosen(NamedTuple):
    """Devices of one node. `minors`: those of each ask, where several asks are for one type."""

    grants: tuple[Grant, ...]
    minors: tuple[tuple[int, ...], ...] = ()

    def for_the_ledger(self) -> Chosen:
        """The same, MIG instances as the GPUs that they are in the ledger."""
        grants = (msgspec.structs.replace(grant, type=ledger_type(grant.type)) for grant in self.grants)
        return Chosen(tuple(grants), self.minors)


def summary_of(picture: Picture, name: str, node: int, grants: Sequence[Grant]) -> str:
    """`n1: gpu 0,1 (one island, score 1850); rdma 0`."""
    parts = []
    for kind, group in groupby(grants, key=lambda grant: grant.type):
        of_type = list(group)
        minors = ",".join(str(grant.minor) for grant in of_type)
        told = []
        if len({(grant.core_percent, grant.memory_bytes) for grant in of_type}) > 1 and not of_type[0].whole:
            told = ["shares of several sizes"]
        elif not of_type[0].whole:
            told = [f"{of_type[0].core_percent} core"] if of_type[0].core_percent else []
            told += [f"{memory_text(of_type[0].memory_bytes)} memory"] if of_type[0].memory_bytes else []
        elif kind == GPU and len(of_type) > 1:
            topology = picture.node_topology[node]
            first = int(picture.node_start[node])
            rows = picture.index.rows_of([grant.device_id for grant in of_type]).tolist()
            places = [row - first for row in rows]
            islands = {topology.islands[place] for place in places}
            told = ["one island" if len(islands) == 1 else f"{len(islands)} islands", f"score {topology.score(places)}"]
        parts.append(f"{kind} {minors}" + (f" ({', '.join(told)})" if told else ""))
    return f"{name}: " + "; ".join(parts)


def _whole_gpus(picture: Picture, request: DeviceRequest, need: Need, node: int, budget: Budget) -> list[int]:
    view = need.view
    if view is None:
        return []
    own = view.of_node(node)
    rows = view.rows[own]
    free = free_positions(picture, need, node)
    eligible = None if need.permitted is None else _bits(need.permitted[own].nonzero()[0].tolist())
    topology = picture.node_topology[node]
    groups = [eligible]
    if need.at_one_numa:
        start = int(rows[0])
        groups = [_bits([row - start for row in group]) for group in need.numas(_fitting(need, node))]
    found = None
    for within_island in (True, False) if request.policy is Policy.CONTIGUOUS else (False,):
        sets = [
            best_set(topology, free, need.ask.count, within_island=within_island, eligible=one, budget=budget)
            for one in groups
        ]
        found = max(filter(None, sets), key=lambda one: one.score, default=None)
        if found is not None:
            break
    if found is None:
        raise AssertionError("the node was found able to serve")
    return [int(rows[place]) for place in found.positions]


def _gpu_shares(picture: Picture, request: DeviceRequest, need: Need, node: int) -> list[int]:
    """The fullest devices that fit, or the emptiest; `contiguous`: those of one island where one has enough."""
    count = need.ask.count
    ranked = sorted((_fullness(picture, request, row), picture.device_minor[row], row) for row in _fitting(need, node))
    if need.at_one_numa:
        apart = need.numas([row for _, _, row in ranked])
        return min(
            (group[:count] for group in apart if len(group) >= count),
            key=lambda group: [_fullness(picture, request, row) for row in group],
        )
    if request.policy is Policy.CONTIGUOUS and count > 1:
        islands: dict[int, list[tuple[tuple[float, float], int, int]]] = {}
        for one in ranked:
            islands.setdefault(int(picture.device_island[one[2]]), []).append(one)
        held = [island[:count] for island in islands.values() if len(island) >= count]
        ranked = min(held, key=lambda group: list(zip(*group, strict=True)), default=ranked)
    return [row for _, _, row in ranked[:count]]


def _joint(picture: Picture, request: DeviceRequest, node: int, together: Together) -> Mapping[str, list[int]]:
    """Type → rows of the needs that come from under the same switches, as far as they can."""

    def beside(need: Need, rows: Sequence[int]) -> list[int]:
        return _others(picture, request, need, node, _Near.to(picture, rows), joined=True)

    return together.choose(
        node,
        ranked=lambda need: _ranked(picture, request, need, node),
        fullness=lambda row: _fullness(picture, request, row),
        beside=beside,
    )


def _ranked(picture: Picture, request: DeviceRequest, need: Need, node: int) -> list[int]:
    """The rows that can serve, the first choice first: whole devices by minor, shares by fullness."""
    rows = _fitting(need, node)
    if need.ask.whole:
        return rows
    return sorted(rows, key=lambda row: (_fullness(picture, request, row), int(picture.device_minor[row])))


class _Near(NamedTuple):
    """The PCIe switches and NUMA nodes of the chosen GPUs, as far as they are known."""

    switches: frozenset[int]
    numas: frozenset[int]

    @staticmethod
    def to(picture: Picture, rows: Sequence[int]) -> _Near:
        """Those of these devices."""
        switches, numas = (
            {int(column[row]) for row in rows} - {-1} for column in (picture.device_pcie, picture.device_numa)
        )
        return _Near(frozenset(switches), frozenset(numas))

    def distance(self, picture: Picture, row: int) -> int:
        """0 under the same switch, 1 at the same NUMA node, 2 elsewhere."""
        if int(picture.device_pcie[row]) in self.switches:
            return 0
        return 1 if int(picture.device_numa[row]) in self.numas else 2


def _others(
    picture: Picture, request: DeviceRequest, need: Need, node: int, near: _Near, *, joined: bool = False
) -> list[int]:
    """All devices of another type that can serve: whole ones by their distance to the chosen GPUs, shares by fullness first.

    `joined`: those under the same switches as the GPUs before all others.
    """
    ranked = [
        (
            joined and near.distance(picture, row) > 0,
            (0.0, 0.0) if need.ask.whole else _fullness(picture, request, row),
            near.distance(picture, row),
            int(picture.device_minor[row]),
            row,
        )
        for row in _fitting(need, node)
    ]
    return [one[-1] for one in sorted(ranked)]


def _fitting(need: Need, node: int) -> list[int]:
    view = need.view
    if view is None:
        return []
    start = int(view.rows[view.of_node(node).start])
    return [start + place for place in need.positions(node)]


def _fullness(picture: Picture, request: DeviceRequest, row: int) -> tuple[float, float]:
    """What to sort by: the fullest first (by memory, then core), or the emptiest."""
    sign = 1.0 if request.to_emptiest else -1.0
    memory = int(picture.memory_used[row]) / max(int(picture.memory_total[row]), 1)
    return sign * memory, sign * int(picture.core_used[row])


def _grant(picture: Picture, need: Need, row: int) -> Grant:
    total = int(picture.memory_total[row])
    taken = amounts(need.ask, total)
    if taken is None:
        raise AssertionError("the device was found able to serve")
    return Grant(
        device_id=int(picture.device_id[row]),
        uuid=picture.device_uuid[row],
        type=need.ask.type,
        minor=int(picture.device_minor[row]),
        core_percent=taken[0],
        memory_bytes=None if total == NO_MEMORY else taken[1],
        whole=need.ask.whole,
    )


def _bits(places: list[int]) -> int:
    return sum(1 << place for place in places)
