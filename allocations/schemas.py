"""What allocations, leases and explanations look like over REST, for the OpenAPI document and for nothing else."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from allocations.choices import State
from claims.dialects.gpuclaim import TTL_SECONDS_MOST

HOLDER_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class GrantSchema(serializers.Serializer[Any]):
    """A device, or a share of it."""

    uuid = serializers.CharField()
    type = serializers.CharField()
    minor = serializers.IntegerField()
    core = serializers.IntegerField(help_text="percent")
    memory = serializers.IntegerField(allow_null=True, help_text="bytes, null where the type has none")
    whole = serializers.BooleanField()
    problem = serializers.CharField(
        allow_blank=True, help_text="what is wrong with the device while it is held, empty when nothing is"
    )


class AllocationSchema(serializers.Serializer[Any]):
    """Devices of one node given to one holder."""

    uid = serializers.UUIDField()
    state = serializers.ChoiceField(choices=State.values)
    namespace = serializers.CharField()
    pod = serializers.CharField(allow_blank=True)
    pod_uid = serializers.CharField(allow_blank=True)
    holder = serializers.CharField(help_text="holderIdentity of the leases")
    node = serializers.CharField()
    claim = serializers.CharField(allow_blank=True)
    dialect = serializers.CharField()
    devices = GrantSchema(many=True)
    summary = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    confined = serializers.BooleanField(help_text="false: the pod runs without the injected variables")
    created_by = serializers.CharField(allow_blank=True)
    ttl_seconds = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    hold_until = serializers.DateTimeField(allow_null=True)
    reserved_at = serializers.DateTimeField(allow_null=True)
    bound_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    releasing_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class AllocationWriteSchema(serializers.Serializer[Any]):
    """Devices for a client without a pod, as a claim asks for them."""

    namespace = serializers.RegexField(LABEL_PATTERN, max_length=63)
    claim = serializers.RegexField(SUBDOMAIN_PATTERN, max_length=253, help_text="name of the GpuClaim")
    holder = serializers.RegexField(
        HOLDER_PATTERN, max_length=128, required=False, help_text="a name of your own, part of the leases' holder"
    )


class RenewSchema(serializers.Serializer[Any]):
    """From now on; the claim's own ttlSeconds where it is left out."""

    ttlSeconds = serializers.IntegerField(  # noqa: N815 - as in the manifest
        min_value=1, max_value=TTL_SECONDS_MOST, required=False, allow_null=True
    )


class LeaseSchema(serializers.Serializer[Any]):
    """A lease; names of holders in namespaces that the caller does not see are null."""

    name = serializers.CharField()
    holder_identity = serializers.CharField(allow_null=True)
    node = serializers.CharField(allow_blank=True)
    device_uuid = serializers.CharField(allow_blank=True)
    sharers = serializers.ListField(child=serializers.CharField(allow_null=True))
    acquired_at = serializers.CharField(allow_null=True)


@extend_schema_field({"type": "object", "additionalProperties": True})
class AnyObjectField(serializers.Field[Any, Any, Any, Any]):
    """Any object."""


class ReasonSchema(serializers.Serializer[Any]):
    """A reason, and how many nodes gave it."""

    reason = serializers.CharField()
    nodes = serializers.IntegerField()


class DeviceReasonSchema(serializers.Serializer[Any]):
    """A reason, and of how many devices it is true."""

    reason = serializers.CharField()
    devices = serializers.IntegerField()


class DeviceWhySchema(serializers.Serializer[Any]):
    """One device of a node; the reason is empty where it could serve."""

    uuid = serializers.CharField()
    minor = serializers.IntegerField()
    type = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)


class NodeWhySchema(serializers.Serializer[Any]):
    """Why a node cannot serve, and each of its devices."""

    node = serializers.CharField()
    reason = serializers.CharField()
    resolvable = serializers.BooleanField(help_text="whether the end of other pods could help")
    devices = DeviceWhySchema(many=True)


class SchedulerSchema(serializers.Serializer[Any]):
    """What the pod's scheduler says beside us."""

    name = serializers.CharField()
    message = serializers.CharField(allow_blank=True, help_text="of the condition PodScheduled")
    refused = serializers.IntegerField(help_text="times that it asked us and was refused; 0: it never asked")


class PendingPodSchema(serializers.Serializer[Any]):
    """A pod that asks for devices and waits."""

    uid = serializers.CharField()
    namespace = serializers.CharField()
    pod = serializers.CharField()
    claim = serializers.CharField(allow_blank=True)
    rule = serializers.CharField(
        allow_blank=True,
        help_text="which rule the pod breaks; `gated`, `other-scheduler` or `not-asked` where it waits for somebody else; "
        "empty where no node has the devices",
    )
    summary = serializers.CharField(allow_blank=True)
    reasons = ReasonSchema(many=True)
    scheduler = SchedulerSchema()
    since = serializers.DateTimeField()


class PodExplanationSchema(serializers.Serializer[Any]):
    """Why a pod is where it is, or why it waits."""

    pod = serializers.CharField()
    namespace = serializers.CharField()
    uid = serializers.CharField(allow_blank=True)
    allocation = serializers.UUIDField(allow_null=True)
    claim = serializers.CharField(allow_blank=True)
    state = serializers.CharField()
    node = serializers.CharField(allow_null=True)
    devices = GrantSchema(many=True)
    summary = serializers.CharField(allow_blank=True)
    reasons = ReasonSchema(many=True)
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="what the pod has that other schedulers go by and gpuplane does not"
    )
    nodes = NodeWhySchema(many=True, help_text="node by node, a page of them by name")
    nodes_total = serializers.IntegerField(help_text="nodes that cannot serve")
    nodes_next = serializers.CharField(allow_null=True, help_text="address of the next page of nodes")
    nodes_previous = serializers.CharField(allow_null=True, help_text="address of the page before")
    same_as = serializers.CharField(
        allow_null=True, help_text="pod of this answer that asks the same and carries the nodes of both"
    )
    device_reasons = DeviceReasonSchema(
        many=True, help_text="why devices of the types asked for cannot serve, over all nodes; for a pod that waits"
    )
    scheduler = SchedulerSchema(allow_null=True, help_text="for a pod that waits")


class PodExplainedSchema(PodExplanationSchema):
    """With what happened to it."""

    timeline = serializers.ListField(child=AnyObjectField())


class ClaimExplainedSchema(serializers.Serializer[Any]):
    """Who holds devices through a claim, and which of its pods wait, and why."""

    claim = serializers.CharField()
    namespace = serializers.CharField()
    summary = serializers.CharField()
    pods = PodExplanationSchema(many=True)
    timeline = serializers.ListField(child=AnyObjectField())
