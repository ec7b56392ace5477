"""The plan of growth where queues admit workloads: no node is made for what a quota would refuse there.

Called by `allocations.scenario.growth` and `autoscaling`. The queues decide again on the fleet with the planned nodes;
whoever a quota refuses then is taken out of the plan. Invariant: every workload that is planned for either goes, by
the queues' own decision, or lacks nothing but devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from allocations.engine.build import NodeRow
from allocations.engine.growth.plan import grow
from allocations.engine.growth.records import Growth, GrowthInput
from allocations.engine.patch import replace_nodes
from allocations.engine.queueing.rounds import DecisionInput, decide
from allocations.engine.queueing.workloads import Member, Workload

ROUNDS: Final = 6
_LAST: Final = "\U0010ffff"
"""Begins the names of planned nodes, so that rows of the fleet stay what they are."""


def grow_within_quotas(inputs: GrowthInput, queues: DecisionInput) -> Growth:
    """The plan for workloads that the queues would admit. `queues`: what they decided about, on the fleet."""
    refused: dict[str, str] = {}
    growth = grow(inputs)
    for _ in range(ROUNDS):
        if not growth.new and not growth.pool_of:
            break
        over = _over_quota(inputs, queues, growth)
        if not over:
            break
        for demand in inputs.demands:
            if demand.name in over:
                refused.update((need.member.name, over[demand.name]) for need in demand.needs)
        left = tuple(one for one in inputs.demands if one.name not in over)
        inputs = msgspec.structs.replace(inputs, demands=left)
        growth = grow(inputs)
    return msgspec.structs.replace(growth, reasons={**growth.reasons, **refused})


def _over_quota(inputs: GrowthInput, queues: DecisionInput, growth: Growth) -> dict[str, str]:
    """Workload → why a quota refuses it, on the fleet with the planned nodes."""
    base = queues.snapshot
    first = int(base.device_id.max(initial=0)) + 1
    rows: list[NodeRow] = []
    for number, node in enumerate(growth.nodes):
        shape = inputs.pools[node.pool].node
        devices = []
        for device in shape.devices:
            devices.append(msgspec.structs.replace(device, device_id=first, uuid=f"{_LAST}{first}"))
            first += 1
        rows.append(msgspec.structs.replace(shape, name=f"{_LAST}{number:06}", devices=tuple(devices)))
    pools = [node.pool for node in growth.nodes]
    wider = msgspec.structs.replace(
        queues,
        snapshot=replace_nodes(base, rows),
        labels=[*queues.labels, *(inputs.pools[pool].labels for pool in pools)],
        waiting=_with_rows(inputs, queues.waiting, len(base.node_names), pools),
    )
    answer = decide(wider)
    wanted = {one.name for one in inputs.demands}
    return {name: why.reason for name, why in answer.waiting.items() if name in wanted and not why.devices}


def _with_rows(
    inputs: GrowthInput, waiting: Sequence[Workload], nodes: int, pools: Sequence[int]
) -> tuple[Workload, ...]:
    """The workloads, their pods on the planned nodes that their rules allow."""
    refused = {need.member.name: need.refused for one in inputs.demands for need in one.needs}

    def member(one: Member) -> Member:
        excluded = refused.get(one.name)
        if one.rows is None and not excluded:
            return one
        there = range(nodes) if one.rows is None else one.rows
        new = (nodes + at for at, pool in enumerate(pools) if pool not in (excluded or {}))
        return msgspec.structs.replace(one, rows=(*there, *new))

    return tuple(
        msgspec.structs.replace(one, members=tuple(map(member, one.members))) if one.name else one for one in waiting
    )
