"""The new nodes of pools that pods of a scenario wait for. Called by `allocations.scenario.run`. Pure.

Invariants: without pools nothing changes; what is decided on the fleet stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from allocations.engine.growth import Demand, Growth, GrowthInput, Need, Pool, grow
from allocations.engine.growth.quotas import grow_within_quotas
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.result import PodDecision, ScalingResult
from allocations.scenario.snapshots import node_row
from allocations.scenario.waiting_pods import Answered, WaitingPods, gang_of
from claims.dialects.amounts import pod_amounts
from claims.dialects.refused import Refused
from claims.dialects.request import Dialect
from claims.queue_manifests import queue_named_by
from claims.queue_tree import DEFAULT, Queue, Quota
from kube.device_types import Dimension
from kube.keys import NATIVE_GPU, PODS_RESOURCE
from kube.node_rules import refusal_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from allocations.engine.queueing.workloads import Workload
    from allocations.scenario.pools import PoolShape
    from kube.objects import Pod

UNTOUCHED = Queue(DEFAULT, quotas=(Quota(),))

Decisions = tuple[PodDecision, ...]


def with_growth(
    scenario: Scenario, pods: WaitingPods, answered: Answered
) -> tuple[Decisions, tuple[ScalingResult, ...] | msgspec.UnsetType]:
    """(the decisions with the pools that will serve them, the nodes to be made)."""
    pools = scenario.pools
    if pools is None:
        return answered.decisions, msgspec.UNSET
    demands = _Wants(scenario, pods, answered).all(pods.short)
    labels = {node.name: node.labels for node in scenario.nodes}
    inputs = GrowthInput(
        snapshot=answered.snapshot,
        labels=[labels[name] for name in answered.snapshot.node_names],
        pools=tuple(Pool(pool.name, node_row(pool.node), pool.weight, pool.most, pool.traits.labels) for pool in pools),
        demands=demands,
    )
    growth = grow(inputs) if answered.asked is None else grow_within_quotas(inputs, answered.asked)
    decisions = tuple(_with_pool(one, growth, pools) for one in answered.decisions)
    scaling = tuple(ScalingResult(pools[node.pool].name, node.gpus, node.pods) for node in growth.new)
    return decisions, scaling


def _with_pool(decision: PodDecision, growth: Growth, pools: tuple[PoolShape, ...]) -> PodDecision:
    """The decision with its pool, and why it waits for none."""
    pod = decision.pod
    pool = pools[growth.pool_of[pod]].name if pod in growth.pool_of else None
    why = f"waits for a new node of pool {pool}" if pool is not None else growth.reasons.get(pod, "")
    summary = f"{decision.summary}; {why}" if why else decision.summary
    return msgspec.structs.replace(decision, scaling=pool, summary=summary)


class _Wants:
    """Workloads as the plan of growth takes them."""

    def __init__(self, scenario: Scenario, pods: WaitingPods, answered: Answered) -> None:
        self.scenario = scenario
        self.rules = pods.rules
        self.traits = [pool.traits for pool in scenario.pools or ()]
        self.pods = {metadata_label(pod.metadata): pod for pod in scenario.pods if not pod.finished}
        self.queued = answered.asked is not None
        self.free = self._free_by_karpenter()

    def all(self, workloads: list[Workload]) -> tuple[Demand, ...]:
        """Each of them."""
        return tuple(
            Demand(
                one.name,
                tuple(self._need(member.name, one) for member in one.members),
                topology=one.topology,
                beside=one.beside,
                above=one.above,
            )
            for one in workloads
        )

    def _need(self, name: str, workload: Workload) -> Need:
        pod = self.pods[name]
        member = next(member for member in workload.members if member.name == name)
        refused = {at: why for at, traits in enumerate(self.traits) if (why := refusal_of(pod.spec, traits))}
        native = member.request.dialect == Dialect.NATIVE and not _asked(pod, PODS_RESOURCE)
        return Need(member, refused, by_itself=native and not self._is_gated(pod) and not self._seems_to_fit(pod))

    def _is_gated(self, pod: Pod) -> bool:
        """Whether queues hold the pod back, so that neither kube-scheduler nor Karpenter looks at it."""
        if gang_of(self.scenario, pod):
            return True
        tree = self.scenario.queues
        if not self.queued or tree is None:
            return False
        named = queue_named_by(pod) or tree.of_namespace.get(pod.metadata.namespace, DEFAULT)
        return named != DEFAULT or tree.queues[DEFAULT] != UNTOUCHED

    def _free_by_karpenter(self) -> Mapping[str, int]:
        """Node → `nvidia.com/gpu` that is left there by what running pods request."""
        free = {node.name: len(node.gpus) for node in self.scenario.nodes}
        for pod in self.pods.values():
            if pod.spec.node_name in free:
                free[pod.spec.node_name] -= _asked(pod, NATIVE_GPU)
        return free

    def _seems_to_fit(self, pod: Pod) -> bool:
        """Whether a node seems to have room by requests, so that Karpenter waits for it and makes none."""
        asked = _asked(pod, NATIVE_GPU)
        refused = self.rules.refused(pod.spec)
        return any(free >= asked and name not in refused for name, free in self.free.items())


def _asked(pod: Pod, resource: str) -> int:
    """The amount of a resource that the pod requests."""
    try:
        return pod_amounts(pod, {resource: Dimension.UNITS}).get(resource, 0)
    except Refused:
        return 0
