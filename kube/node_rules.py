"""Whether a pod may go to a node as far as cordon, taints, nodeSelector and required node affinity are concerned.

Pure. Invariants: the answer is kube-scheduler's, in the order of its plugins (NodeUnschedulable, TaintToleration,
NodeAffinity); reasons name no node, so that equal ones are counted together. Sources:
`k8s.io/component-helpers/scheduling/corev1` (nodeaffinity, tolerations) and `k8s.io/apimachinery/pkg/labels`
(requirements), release 1.36 with its default feature gates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kube.names import is_label_value
from kube.objects import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
TAINT_EFFECTS: Final = (NO_SCHEDULE, NO_EXECUTE, PREFER_NO_SCHEDULE)

CORDONED: Final = "node is cordoned"
SELECTOR: Final = "node has not the labels of the pod's nodeSelector"
AFFINITY: Final = "node does not match the pod's required node affinity"

_UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
_NAME_FIELD: Final = "metadata.name"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INTEGER_LEAST, _INTEGER_MOST = -(2**63), 2**63 - 1


class NodeTraits(msgspec.Struct, frozen=True):
    """The fields of a node that the rules read."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Taint] = ()
    unschedulable: bool = False


def refusal_of(spec: PodSpec, node: NodeTraits) -> str:
    """Why the pod may not go to the node; empty if it may."""
    tolerations = spec.tolerations or ()
    if node.unschedulable and not _tolerated(_UNSCHEDULABLE, tolerations):
        return CORDONED
    for taint in node.taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not _tolerated(taint, tolerations):
            return f"node has taint {taint_text(taint)}, which the pod does not tolerate"
    if any(node.labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return SELECTOR
    required = required_of(spec)
    return "" if required is None or _matches(required, node) else AFFINITY


def required_of(spec: PodSpec) -> NodeSelector | None:
    """The required node affinity."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required if affinity else None


def is_restricted(spec: PodSpec) -> bool:
    """Whether the pod has a nodeSelector or a required node affinity."""
    return bool(spec.node_selector) or required_of(spec) is not None


def taint_text(taint: Taint) -> str:
    """`key=value:effect`, as kubectl takes it."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect or key matches all, an empty operator means Equal; Gt and Lt are alpha and off."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == (taint.value or "")
    return toleration.operator == "Exists"


def _matches(selector: NodeSelector, node: NodeTraits) -> bool:
    """One matching term is enough; an empty term matches no node."""
    return any(_term_matches(term, node) for term in selector.node_selector_terms or ())


def _term_matches(term: NodeSelectorTerm, node: NodeTraits) -> bool:
    labels, fields = term.match_expressions or (), term.match_fields or ()
    if not labels and not fields:
        return False
    return all(label_matches(one, node.labels) for one in labels) and all(
        _field_matches(one, node.name) for one in fields
    )


def label_matches(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet the requirement. An invalid one matches nothing."""
    values, have = one.values or [], labels.get(one.key)
    if any(value and not is_label_value(value) for value in values):
        return False
    match one.operator:
        case "In":
            return have is not None and have in values
        case "NotIn":
            return bool(values) and have not in values
        case "Exists":
            return not values and have is not None
        case "DoesNotExist":
            return not values and have is None
        case "Gt" | "Lt":
            return _compares(one.operator, have, values)
    return False


def _compares(operator: str, have: str | None, values: Sequence[str]) -> bool:
    label, bound = _integer(have), _integer(values[0]) if len(values) == 1 else None
    if label is None or bound is None:
        return False
    return label > bound if operator == "Gt" else label < bound


def _integer(text: str | None) -> int | None:
    """A 64-bit decimal integer, as Go parses it."""
    if text is None or len(text) > 64 or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if _INTEGER_LEAST <= number <= _INTEGER_MOST else None


def _field_matches(one: NodeSelectorRequirement, name: str) -> bool:
    """A node has one field, its name; others are empty. Exactly one value is compared."""
    if one.operator not in ("In", "NotIn") or one.values is None or len(one.values) != 1:
        return False
    same = one.values[0] == (name if one.key == _NAME_FIELD else "")
    return same is (one.operator == "In")
