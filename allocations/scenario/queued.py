"""Decides the waiting pods by queues: all are there from the start, and workloads take turns.

The decision is `allocations.engine.queueing`'s. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allocations.engine.queueing.members import WaitingPod, group_into_workloads
from allocations.engine.queueing.rounds import DecisionInput, QueueDecision, decide
from allocations.engine.queueing.workloads import Running, Workload, holds_whole
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.result import EvictionResult, QuotaResult
from allocations.scenario.rules import traits_of
from allocations.scenario.waiting_pods import (
    Answered,
    WaitingPods,
    gang_of,
    gangs_by_name,
)
from claims.queue_manifests import borrows_idle, is_preemptible, queue_named_by
from claims.queue_tree import DEFAULT, Amount, Name, QueueTree

if TYPE_CHECKING:
    from allocations.engine.amounts import Held
    from allocations.engine.snapshot import Snapshot
    from kube.objects import Pod


def by_queues(
    scenario: Scenario, tree: QueueTree, pods: WaitingPods, snapshot: Snapshot, holders: Mapping[str, tuple[Held, ...]]
) -> Answered:
    """The decisions, evictions and queues. `holders`: what running pods hold, by `namespace/name`."""
    running = _running(scenario, tree, pods, snapshot, holders)
    workloads = _workloads(scenario, tree, pods, running)
    labels = {node.name: traits_of(node).labels for node in scenario.nodes}
    asked = DecisionInput(
        tree=tree,
        snapshot=snapshot,
        running=tuple(running),
        waiting=tuple(workloads),
        gangs=gangs_by_name(scenario),
        labels=[labels[name] for name in snapshot.node_names],
    )
    decided = decide(asked)
    _note(pods, workloads, decided)
    return Answered(
        pods.in_file_order(),
        decided.snapshot,
        evictions=tuple(EvictionResult(one.pod, one.taker, one.by.value) for one in decided.evictions),
        queues={queue.name: _quotas(tree, queue.name, decided) for queue in tree.queues.values()},
        asked=asked,
    )


def _running(
    scenario: Scenario,
    tree: QueueTree,
    pods: WaitingPods,
    snapshot: Snapshot,
    holders: Mapping[str, tuple[Held, ...]],
) -> list[Running]:
    """The pods that hold devices."""
    found = []
    queues = _gang_queues(scenario, tree, pods)
    for pod in scenario.pods:
        label = metadata_label(pod.metadata)
        row = snapshot.node_index.get(pod.spec.node_name or "")
        if pod.finished or row is None or not holders.get(label):
            continue
        gang = gang_of(scenario, pod)
        queue = queues[gang] if gang else _queue_of(tree, pod)
        found.append(
            Running(
                name=label,
                queue=queue if queue in tree.queues else DEFAULT,
                held=holders[label],
                row=row,
                priority=pod.priority,
                age=pods.age(pod),
                preemptible=is_preemptible(pod),
                gang=gang,
                leaving=bool(pod.metadata.deletion_timestamp),
                whole=holds_whole(snapshot, holders[label]),
            )
        )
    return found


def _workloads(scenario: Scenario, tree: QueueTree, pods: WaitingPods, running: list[Running]) -> list[Workload]:
    """The workloads of the waiting pods. Pods that belong to none have their reason noted."""
    waiting = [
        WaitingPod(
            member,
            _queue_of(tree, pod),
            pod.priority,
            preemptible=is_preemptible(pod),
            gang=gang_of(scenario, pod),
            borrows_idle=borrows_idle(pod),
        )
        for pod, member in pods.members()
    ]
    queues = _gang_queues(scenario, tree, pods)
    grouped = group_into_workloads(tree, waiting, running, gangs_by_name(scenario), gang_queues=queues)
    for name, problem in grouped.problems.items():
        pods.waits(name, problem)
    return grouped.workloads


def _gang_queues(scenario: Scenario, tree: QueueTree, pods: WaitingPods) -> dict[str, str]:
    """The queue of each gang: that of its oldest pod."""
    queues: dict[str, str] = {}
    for pod in sorted((pod for pod in scenario.pods if not pod.finished), key=pods.age):
        if gang := gang_of(scenario, pod):
            queues.setdefault(gang, _queue_of(tree, pod))
    return queues


def _queue_of(tree: QueueTree, pod: Pod) -> str:
    return queue_named_by(pod) or tree.of_namespace.get(pod.metadata.namespace, DEFAULT)


def _note(pods: WaitingPods, workloads: list[Workload], decided: QueueDecision) -> None:
    """Note the decision on every pod."""
    for admission in decided.admissions:
        pods.decided(admission.pod, admission.decision, admission.waits_for)
    for workload in workloads:
        why = decided.waiting.get(workload.name)
        if why is None:
            continue
        if why.devices:
            pods.lacks_devices(workload)
        for member in workload.members:
            if why.decision is not None:
                pods.decided(member.name, why.decision)
            else:
                pods.waits(member.name, why.reason)


def _quotas(tree: QueueTree, queue: str, decided: QueueDecision) -> tuple[QuotaResult, ...]:
    return tuple(
        QuotaResult(
            quota.models,
            _number(quota.deserved),
            None if quota.limit is None else _number(quota.limit),
            _number(decided.shares[Name(queue, quota.group)]),
            _number(decided.allocated.get(Name(queue, quota.group), 0)),
        )
        for quota in tree.queues[queue].quotas
    )


def _number(amount: Amount) -> float:
    """A whole number where it is one."""
    return amount.numerator if amount.denominator == 1 else round(float(amount), 6)
