"""Karpenter's objects, as far as gpuplane reads them (`karpenter.sh/v1`). gpuplane writes none of them.

Called by `autoscaling`. Sources: the definitions in sigs.k8s.io/karpenter v1.14.1, and the texts of its events.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from kube.objects import Condition, Named, NodeSelectorRequirement, Taint
from kube.quantities import RawQuantity

NOMINATED: Final = "Nominated"
"""Reason of Karpenter's event on a pod that it makes a node for."""
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
CAPACITY_TYPE_LABEL: Final = "karpenter.sh/capacity-type"
WELL_KNOWN: Final = frozenset(
    {
        INSTANCE_TYPE_LABEL,
        CAPACITY_TYPE_LABEL,
        "karpenter.sh/nodepool",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "kubernetes.io/arch",
        "kubernetes.io/os",
    }
)
"""Labels that Karpenter knows without a NodePool naming them."""
_NODE_CLAIM: Final = re.compile(r"nodeclaim/([a-z0-9.-]+)")


class TemplateSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """spec.template.spec of a NodePool."""

    requirements: list[NodeSelectorRequirement] | None = None
    taints: list[Taint] | None = None
    startup_taints: list[Taint] | None = None


class TemplateMeta(msgspec.Struct, omit_defaults=True):
    """spec.template.metadata."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(msgspec.Struct, omit_defaults=True):
    """spec.template."""

    metadata: TemplateMeta = msgspec.field(default_factory=TemplateMeta)
    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class NodePoolSpec(msgspec.Struct, omit_defaults=True):
    """spec of a NodePool."""

    template: Template = msgspec.field(default_factory=Template)
    limits: dict[str, RawQuantity] | None = None
    weight: int | None = None
    replicas: int | None = None
    """Of a static pool: so many nodes, whatever pods there are."""


class NodePoolStatus(msgspec.Struct, omit_defaults=True):
    """status of a NodePool."""

    resources: dict[str, RawQuantity] | None = None
    conditions: list[Condition] | None = None


class NodePool(Named):
    """A NodePool."""

    spec: NodePoolSpec = msgspec.field(default_factory=NodePoolSpec)
    status: NodePoolStatus = msgspec.field(default_factory=NodePoolStatus)

    @property
    def closed(self) -> str:
        """Why Karpenter makes no node of it for a pod; empty where it does."""
        if self.spec.replicas is not None:
            return "it is static (spec.replicas): Karpenter makes none of its nodes for pods"
        ready = next((one for one in self.status.conditions or () if one.type == "Ready"), None)
        if ready is None or ready.status == "True":
            return ""
        return f"it is not Ready: {ready.reason or ''}: {ready.message or ''}".strip(": ")


class NodeClaimStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """status of a NodeClaim."""

    node_name: str = ""
    conditions: list[Condition] | None = None


class NodeClaim(Named):
    """A NodeClaim."""

    status: NodeClaimStatus = msgspec.field(default_factory=NodeClaimStatus)

    @property
    def pool(self) -> str:
        """Name of its NodePool."""
        return self.labels.get("karpenter.sh/nodepool", "")

    def since(self, kind: str) -> str | None:
        """When the condition became true; None where it is not."""
        found = next((one for one in self.status.conditions or () if one.type == kind and one.status == "True"), None)
        return None if found is None else found.last_transition_time

    @property
    def problem(self) -> str:
        """What a condition says goes wrong with launching or registering it."""
        for one in self.status.conditions or ():
            if one.type in ("Launched", "Registered", "Initialized") and one.status == "False":
                return f"{one.type}: {one.reason or ''}: {one.message or ''}".strip(": ")
        return ""


def nominated_node_claim(message: str) -> str:
    """The NodeClaim of an event `Nominated` (`Pod should schedule on: nodeclaim/<name>`); empty for a node there."""
    found = _NODE_CLAIM.search(message)
    return "" if found is None else found[1].rstrip(".")
