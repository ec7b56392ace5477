"""Which devices of the chosen node: the best set of whole GPUs, the right device for each share.

Called by `engine.plan` for the one node that it chose. Invariants: devices are distinct, each fits, whole GPUs are the
best set, ties end at the lower minor.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from allocations.engine.decision import Grant
from allocations.engine.device_ranking import DeviceRanking
from allocations.engine.needs import amounts
from allocations.engine.reasons import memory_text
from allocations.engine.sets import best_first, best_set
from allocations.engine.snapshot import NO_MEMORY
from allocations.engine.subsets import mask_of
from claims.dialects.request import Policy
from claims.dialects.steps import ContainerUse, most_at_once
from kube.device_types import GPU, ledger_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.budget import Budget
    from allocations.engine.multi_container import MultiContainerNeeds
    from allocations.engine.needs import Need
    from allocations.engine.pcie_affinity import PcieAffinityNeeds
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest


class Chosen(NamedTuple):
    """Devices of one node. `minors`: those of each ask, where several asks are for one type."""

    grants: tuple[Grant, ...]
    minors: tuple[tuple[int, ...], ...] = ()

    def for_the_ledger(self) -> Chosen:
        """The same, MIG instances as the GPUs that they are in the ledger."""
        grants = (msgspec.structs.replace(grant, type=ledger_type(grant.type)) for grant in self.grants)
        return Chosen(tuple(grants), self.minors)


def choose_devices(
    snapshot: Snapshot,
    request: DeviceRequest,
    needs: Sequence[Need],
    node: int,
    *,
    budget: Budget,
    affinity: PcieAffinityNeeds | None,
    containers: MultiContainerNeeds | None,
) -> Chosen:
    """The devices of a node that can serve, in the order of the asks, then of their minors.

    `budget`: the steps left to the decision's searches. `affinity`: the needs to serve under the same PCIe switches, if
    any. `containers`: all needs, where several are for one type.
    """
    if containers is not None:
        return _of_containers(snapshot, needs, containers.choose(node))
    ranking = DeviceRanking(snapshot, request, node)
    grants: list[Grant] = []
    gpus: list[int] = []
    joint = affinity.choose(ranking) if affinity is not None else {}
    for need in needs:
        if need.ask.type in joint:
            rows = joint[need.ask.type]
        elif need.ask.type != GPU:
            rows = ranking.others(need, beside=gpus)[: need.ask.count]
        elif need.ask.whole:
            rows = _whole_gpus(need, node, budget, contiguous=request.policy is Policy.CONTIGUOUS)
        else:
            rows = ranking.gpu_shares(need)
        if need.ask.type == GPU:
            gpus = rows
        grants.extend(_grant(snapshot, need, row) for row in sorted(rows))
    return Chosen(tuple(grants))


def summary_of(snapshot: Snapshot, name: str, node: int, grants: Sequence[Grant]) -> str:
    """`n1: gpu 0,1 (one island, score 1850); rdma 0`."""
    parts = []
    for kind, group in groupby(grants, key=lambda grant: grant.type):
        of_type = list(group)
        minors = ",".join(str(grant.minor) for grant in of_type)
        details = []
        if len({(grant.core_percent, grant.memory_bytes) for grant in of_type}) > 1 and not of_type[0].whole:
            details = ["shares of several sizes"]
        elif not of_type[0].whole:
            details = [f"{of_type[0].core_percent} core"] if of_type[0].core_percent else []
            details += [f"{memory_text(of_type[0].memory_bytes)} memory"] if of_type[0].memory_bytes else []
        elif kind == GPU and len(of_type) > 1:
            topology = snapshot.node_topology[node]
            first = int(snapshot.node_start[node])
            rows = snapshot.index.rows_of([grant.device_id for grant in of_type]).tolist()
            places = [row - first for row in rows]
            islands = {topology.islands[place] for place in places}
            details = [
                "one island" if len(islands) == 1 else f"{len(islands)} islands",
                f"score {topology.score(places)}",
            ]
        parts.append(f"{kind} {minors}" + (f" ({', '.join(details)})" if details else ""))
    return f"{name}: " + "; ".join(parts)


def _of_containers(snapshot: Snapshot, needs: Sequence[Need], rows: Sequence[Sequence[int]]) -> Chosen:
    """One grant a device, of the most that the asks take of it at once. `rows`: of each need."""
    by_row: dict[int, list[tuple[Need, Grant]]] = {}
    for need, own in zip(needs, rows, strict=True):
        for row in own:
            by_row.setdefault(row, []).append((need, _grant(snapshot, need, row)))
    grants = tuple(_at_once(by_row[row]) for row in sorted(by_row))
    minors = tuple(tuple(int(snapshot.device_minor[row]) for row in own) for own in rows)
    return Chosen(grants, minors)


def _at_once(parts: Sequence[tuple[Need, Grant]]) -> Grant:
    """What the asks take of one device; a device that one of them takes whole is given whole."""
    for _, grant in parts:
        if grant.whole or len(parts) == 1:
            return grant
    grant = parts[0][1]
    core, memory = most_at_once(
        ContainerUse(need.ask.steps, part.core_percent, part.memory_bytes or 0) for need, part in parts
    )
    return msgspec.structs.replace(
        grant, core_percent=core, memory_bytes=None if grant.memory_bytes is None else memory
    )


def _whole_gpus(need: Need, node: int, budget: Budget, *, contiguous: bool) -> list[int]:
    """The best set; `contiguous`: of those that one island holds, where there are any."""
    here = need.view.of_node(node)
    rows = need.view.rows[here]
    eligible: list[int | None] = [
        None if need.permitted is None else mask_of(need.permitted[here].nonzero()[0].tolist())
    ]
    if need.at_one_numa:
        start = int(rows[0])
        eligible = [mask_of(row - start for row in group) for group in need.numas(need.rows(node))]
    topology, free = need.snapshot.node_topology[node], need.free_mask(node)
    for within_island in (True, False) if contiguous else (False,):
        sets = [
            best_set(topology, free, need.ask.count, within_island=within_island, eligible=one, budget=budget)
            for one in eligible
        ]
        if found := best_first(topology, free, sets):
            return [int(rows[place]) for place in found[0].positions]
    raise AssertionError("the node was found able to serve")


def _grant(snapshot: Snapshot, need: Need, row: int) -> Grant:
    total = int(snapshot.memory_total[row])
    taken = amounts(need.ask, total)
    if taken is None:
        raise AssertionError("the device was found able to serve")
    return Grant(
        device_id=int(snapshot.device_id[row]),
        uuid=snapshot.device_uuid[row],
        type=need.ask.type,
        minor=int(snapshot.device_minor[row]),
        core_percent=taken[0],
        memory_bytes=None if total == NO_MEMORY else taken[1],
        whole=need.ask.whole,
    )
