"""Nodes of a scenario that kube-scheduler would filter out: by cordon, taints, nodeSelector and required affinity.

Called by `allocations.scenario.run` and `allocations.scenario.parse`. Pure. Invariants: a node has the labels that it
states, and those that it would have in a cluster (hostname, mode, model); equal rules of several pods are evaluated
once a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kube.device_types import GPU
from kube.keys import HOSTNAME_LABEL, MODE_LABEL, MODEL_LABEL
from kube.node_rules import NodeTraits, is_restricted, refusal_of, required_of
from kube.objects import PodSpec
from nodes.inventory import EXCLUSIVE, model_label

if TYPE_CHECKING:
    from nodes.inventory import NodeShape


class NodeRules:
    """Which nodes refuse a pod by its rules, and why."""

    def __init__(self, nodes: Iterable[NodeShape]) -> None:
        self._nodes = [traits_of(node) for node in nodes]
        self._closed = any(node.unschedulable or node.taints for node in self._nodes)
        self._known: dict[bytes, Mapping[str, str]] = {}

    def refused(self, spec: PodSpec) -> Mapping[str, str]:
        """Node → why not; a node where the pod may go is not in it."""
        if not self._closed and not is_restricted(spec):
            return {}
        key = rules_key(spec)
        if key not in self._known:
            self._known[key] = {node.name: why for node in self._nodes if (why := refusal_of(spec, node))}
        return self._known[key]


def traits_of(node: NodeShape, *, named: bool = True) -> NodeTraits:
    """The node as rules see it. Labels that it states override those that it would have. `named`: it has its name."""
    labels = {HOSTNAME_LABEL: node.name} if named else {}
    if node.mode != EXCLUSIVE:
        labels[MODE_LABEL] = node.mode
    model = model_label({device.model for device in node.devices if device.type == GPU and not device.parent})
    if model is not None:
        labels[MODEL_LABEL] = model
    return NodeTraits(node.name if named else "", labels | node.labels, node.taints, node.unschedulable)


def rules_key(spec: PodSpec) -> bytes:
    """Equal for pods of equal rules."""
    return msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))


def rules_cost(spec: PodSpec, *, taints: int) -> int:
    """The most comparisons that the rules take on one node of so many taints."""
    required = required_of(spec)
    terms = (required.node_selector_terms if required else None) or ()
    listed = [one for term in terms for one in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    tolerated = len(spec.tolerations or ()) * taints
    return len(spec.node_selector or ()) + tolerated + sum(1 + len(one.values or ()) for one in listed)
