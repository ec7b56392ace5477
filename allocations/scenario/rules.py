"""Nodes of a scenario that kube-scheduler would not ask about: by cordon, taints, nodeSelector and required node affinity.

Made once a run by `allocations.scenario.run`. Pure. Kept true: a node has the labels that it states, and those that it would have in a cluster
(hostname, mode, model); the same rules of several pods, as a template's are, are held against each node once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from kube.device_types import GPU
from kube.keys import MODE_LABEL, MODEL_LABEL
from kube.node_rules import NodeTraits, is_restricted, refusal_of, required_of
from kube.objects import PodSpec
from nodes.inventory import EXCLUSIVE, model_label

if TYPE_CHECKING:
    from nodes.inventory import NodeShape

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
_NOBODY: Final[Mapping[str, str]] = {}


class NodeRules:
    """Which nodes refuse a pod by its rules, and why."""

    def __init__(self, nodes: Iterable[NodeShape]) -> None:
        self._nodes = [traits_of(node) for node in nodes]
        self._closed = any(node.unschedulable or node.taints for node in self._nodes)
        self._told: dict[bytes, Mapping[str, str]] = {}

    def refused(self, spec: PodSpec) -> Mapping[str, str]:
        """Node → why not; a node where the pod may go is not in it."""
        if not self._closed and not is_restricted(spec):
            return _NOBODY
        key = rules_key(spec)
        told = self._told.get(key)
        if told is None:
            told = {node.name: why for node in self._nodes if (why := refusal_of(spec, node))}
            self._told[key] = told
        return told


def traits_of(node: NodeShape) -> NodeTraits:
    """The node as its rules see it. What it states goes before what follows from the rest."""
    labels = {HOSTNAME_LABEL: node.name}
    if node.mode != EXCLUSIVE:
        labels[MODE_LABEL] = node.mode
    model = model_label({device.model for device in node.devices if device.type == GPU})
    if model is not None:
        labels[MODEL_LABEL] = model
    return NodeTraits(node.name, labels | node.labels, node.taints, node.unschedulable)


def rules_key(spec: PodSpec) -> bytes:
    """The same for pods whose rules are the same."""
    return msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))


def rules_cost(spec: PodSpec, *, taints: int) -> int:
    """At most how many comparisons the rules are for one node of so many taints."""
    required = required_of(spec)
    terms = (required.node_selector_terms if required else None) or ()
    listed = [one for term in terms for one in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    tolerated = len(spec.tolerations or ()) * taints
    return len(spec.node_selector or ()) + tolerated + sum(1 + len(one.values or ()) for one in listed)
