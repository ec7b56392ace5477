"""Follows the cluster's Node objects: labels, mode, readiness, end (LEASE-5).

Called by the node watch and by reconciling. Invariants: only nodes with an inventory are followed, a Node object alone
registers nothing; only differences are written; a node whose agent is silent is not ready, though it is for the
cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

from access.actors import SYSTEM
from audit.choices import EventKind
from audit.queue_wake import wake_queues
from audit.services import record
from kube import nodes as kube_nodes
from kube.keys import MODE_LABEL
from nodes.advertise import advertise_soon
from nodes.choices import Mode, NodeState
from nodes.live.agent_liveness import state_for
from nodes.models import Device, Node
from nodes.revisions import next_revision
from nodes.services import node_state_set
from storage.transactions import atomic_retry

NOT_READY = "node is not ready"
GONE = "node is gone"
CLUSTERS = {(NodeState.NOT_READY, NOT_READY), (NodeState.GONE, GONE)}
"""States that the cluster sets and ends."""


def follow_all(*, machines: Iterable[kube_nodes.Node], unreadable: Collection[str] = (), now: datetime) -> list[str]:
    """Compare with every Node object; a sentence for each change. Nodes of `unreadable` objects stay as they are."""
    known = {node.name: node for node in Node.objects.order_by("name")}
    found = {machine.name: machine for machine in machines}
    changed = []
    for name, node in known.items():
        machine = found.get(name)
        if machine is not None:
            changed += _follow(node, machine, now)
        elif name not in unreadable:
            changed += _gone(node, now)
    return changed


def follow_one(*, machine: kube_nodes.Node, now: datetime) -> list[str]:
    """Apply one Node object that was added or changed; a sentence for each change."""
    node = Node.objects.filter(name=machine.name).first()
    return [] if node is None else _follow(node, machine, now)


def follow_end(*, name: str, uid: str, now: datetime) -> list[str]:
    """Apply the deletion of the Node object of that name and UID."""
    node = Node.objects.filter(name=name, cluster_uid=uid).first()
    return [] if node is None else _gone(node, now)


def _gone(node: Node, now: datetime) -> list[str]:
    """Mark the node gone, unless it was never in the cluster."""
    if not node.cluster_uid or node.state == NodeState.GONE:
        return []
    node_state_set(node=node, state=NodeState.GONE, problem=GONE, actor=SYSTEM, now=now)
    return [f"node {node.name} is gone"]


def _follow(node: Node, machine: kube_nodes.Node, now: datetime) -> list[str]:
    changed = []
    if _described(node) != _description(machine) and node_describe(node=node, machine=machine, now=now):
        changed.append(f"node {node.name} has other labels or another mode")
    want = _state(node, machine, now)
    if want != (node.state, node.problem):
        node_state_set(node=node, state=want[0], problem=want[1], actor=SYSTEM, now=now)
        changed.append(f"node {node.name} is {want[0].value}")
    return changed


def _state(node: Node, machine: kube_nodes.Node, now: datetime) -> tuple[NodeState, str]:
    if not machine.ready:
        return NodeState.NOT_READY, NOT_READY
    present = (NodeState(node.state), node.problem)
    if present not in CLUSTERS and present[0] != NodeState.GONE:
        return present  # ready, or another state that the cluster does not end
    if node.agent_seen_at is None:
        return NodeState.READY, ""
    return state_for(silence=now - node.agent_seen_at)


def mode_of(labels: dict[str, str]) -> Mode:
    """The mode in a node's labels; exclusive without a valid one."""
    stated = labels.get(MODE_LABEL, Mode.EXCLUSIVE.value)
    return Mode(stated) if stated in Mode.values else Mode.EXCLUSIVE


class _Description(NamedTuple):
    """What is mirrored of a Node object."""

    uid: str
    labels: dict[str, str]
    mode: str
    taints: list[dict[str, str]]
    unschedulable: bool


def _description(machine: kube_nodes.Node) -> _Description:
    labels, spec = machine.labels, machine.spec
    taints = msgspec.to_builtins(spec.taints or [])
    return _Description(machine.uid, labels, mode_of(labels).value, taints, spec.unschedulable)


def _described(node: Node) -> _Description:
    return _Description(node.cluster_uid, node.labels, node.mode, node.taints or [], node.unschedulable)


@atomic_retry
def node_describe(*, node: Node, machine: kube_nodes.Node, now: datetime) -> bool:
    """Write labels, taints, mode and UID of the Node object; whether labels or mode changed."""
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    found, before = _description(machine), _described(locked)
    if before == found:
        return False
    uid, labels, mode, taints, unschedulable = found
    columns = {"cluster_uid": uid, "labels": labels, "mode": mode, "taints": taints, "unschedulable": unschedulable}
    Node.objects.filter(pk=node.pk).update(**columns, changed_at=now)
    for name, value in (*columns.items(), ("changed_at", now)):
        setattr(node, name, value)
    wake_queues()
    if (before.uid, before.mode) != (uid, mode):
        # neither a new Node object nor one that was in mode device-plugin advertises our devices
        advertise_soon(node=node.name)
    if before.mode != mode:
        ids = (
            Device.objects.select_for_update(no_key=True).filter(node=node).order_by("id").values_list("id", flat=True)
        )
        Device.objects.filter(id__in=list(ids)).update(revision=next_revision())
    if (before.labels, before.mode) == (labels, mode):
        return False
    record(
        kind=EventKind.NODE_INVENTORY,
        message=f"{node.name} is in mode {mode}" if before.mode != mode else f"labels of {node.name} changed",
        actor="cluster",
        now=now,
        name=node.name,
        node=node.name,
        data={"labels": labels, "mode": mode},
    )
    return True
