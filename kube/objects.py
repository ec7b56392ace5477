"""The few fields of Kubernetes objects that gpuplane reads, as msgspec structs.

Called wherever a pod or node crosses the border: extender, webhooks, watches, scenarios.
Decoding a struct with only these fields is about ten times cheaper than the typed objects of the
official client (DESIGN §4). Unknown fields are skipped; a known field of the wrong type raises
`msgspec.ValidationError`, which each door turns into its own kind of refusal.
"""

from __future__ import annotations

import msgspec

RawQuantity = str | int | float


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class ResourceRequirements(msgspec.Struct, omit_defaults=True):
    """resources of a container; amounts stay as written."""

    requests: dict[str, RawQuantity] | None = None
    limits: dict[str, RawQuantity] | None = None


class EnvVar(msgspec.Struct, rename="camel", omit_defaults=True):
    """One env entry. `value_from` is kept raw: it is compared, never interpreted."""

    name: str = ""
    value: str | None = None
    value_from: dict[str, object] | None = None


class Container(msgspec.Struct, rename="camel", omit_defaults=True):
    """A container or init container (a sidecar is an init container that restarts always)."""

    name: str = ""
    resources: ResourceRequirements | None = None
    env: list[EnvVar] | None = None
    restart_policy: str | None = None


class Volume(msgspec.Struct, rename="camel", omit_defaults=True):
    """A volume; only claims matter, since they delay bind."""

    name: str = ""
    persistent_volume_claim: dict[str, object] | None = None
    ephemeral: dict[str, object] | None = None


class Taint(msgspec.Struct, omit_defaults=True):
    """A taint of a node, as written."""

    key: str = ""
    effect: str = ""
    value: str | None = None


class Toleration(msgspec.Struct, omit_defaults=True):
    """A toleration of a pod, as written."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(msgspec.Struct, omit_defaults=True):
    """One expression over a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(msgspec.Struct, rename="camel", omit_defaults=True):
    """Expressions that all have to hold."""

    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(msgspec.Struct, rename="camel", omit_defaults=True):
    """Terms of which one has to hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(msgspec.Struct, omit_defaults=True):
    """Which nodes a pod may go to; what it would rather have is not read."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(msgspec.Struct, rename="camel", omit_defaults=True):
    """The part of a pod's affinity that is about nodes."""

    node_affinity: NodeAffinity | None = None


class PodSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """spec of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    scheduler_name: str = ""
    volumes: list[Volume] | None = None
    resource_claims: list[dict[str, object]] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class PodCondition(msgspec.Struct, rename="camel", omit_defaults=True):
    """One condition of a pod's status."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodResourceClaimStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """The ResourceClaim that was made for a pod from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGate(msgspec.Struct, omit_defaults=True):
    """What has to be taken away before a scheduler looks at the pod."""

    name: str = ""


class PodStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """status of a pod."""

    phase: str = ""
    conditions: list[PodCondition] | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None


class Pod(msgspec.Struct, rename="camel", omit_defaults=True):
    """A pod as the extender, the webhooks, the watches and scenarios give it."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations, an empty dict where there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        """The labels, an empty dict where there are none."""
        return self.metadata.labels or {}

    @property
    def finished(self) -> bool:
        """Succeeded and Failed pods hold nothing."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def priority(self) -> int:
        """The number by which kube-scheduler compares pods; 0 where none is given."""
        return self.spec.priority or 0

    @property
    def holder(self) -> str:
        """The lease holder identity, `<namespace>/<name>/<uid>`."""
        return f"{self.metadata.namespace}/{self.metadata.name}/{self.metadata.uid}"
