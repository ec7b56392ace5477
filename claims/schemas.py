"""What a GpuClaim looks like over REST, for the OpenAPI document and for nothing else.

Manifests are checked by `claims.dialects.gpuclaim`; a schemathesis run compares both.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from claims.choices import Phase
from claims.dialects.gpuclaim import COUNT_MOST, KIND, TTL_SECONDS_MOST
from claims.dialects.request import Policy
from kube.keys import API_VERSION

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


@extend_schema_field({"oneOf": [{"type": "string", "maxLength": 64}, {"type": "integer", "minimum": 1}]})
class QuantityField(serializers.Field[Any, Any, Any, Any]):
    """Bytes, or a quantity such as `16Gi`."""


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class TextsField(serializers.Field[Any, Any, Any, Any]):
    """Text by name."""


class ClaimDevicesSchema(serializers.Serializer[Any]):
    """What is asked; amounts are per device. Neither core nor memory: whole devices."""

    count = serializers.IntegerField(min_value=1, max_value=COUNT_MOST)
    type = serializers.RegexField(LABEL_PATTERN, required=False, max_length=63, default="gpu")
    model = serializers.ListField(
        child=serializers.CharField(max_length=128), required=False, max_length=64, help_text="any of these"
    )
    core = serializers.IntegerField(min_value=1, max_value=100, required=False, help_text="percent of a device")
    memory = QuantityField(required=False)
    memoryRatio = serializers.IntegerField(min_value=1, max_value=100, required=False)  # noqa: N815 - the manifest's name
    policy = serializers.ChoiceField(choices=[policy.value for policy in Policy], required=False)
    policyStrict = serializers.BooleanField(required=False)  # noqa: N815 - the manifest's name


class ClaimSpecSchema(serializers.Serializer[Any]):
    """spec."""

    devices = ClaimDevicesSchema()
    gangRef = serializers.CharField(required=False, allow_blank=True, max_length=253)  # noqa: N815 - the manifest's name
    ttlSeconds = serializers.IntegerField(min_value=1, max_value=TTL_SECONDS_MOST, required=False)  # noqa: N815 - the manifest's name


class ClaimWriteMetadataSchema(serializers.Serializer[Any]):
    """metadata as written."""

    name = serializers.RegexField(SUBDOMAIN_PATTERN, max_length=253)
    namespace = serializers.RegexField(LABEL_PATTERN, max_length=63, required=False)
    labels = TextsField(required=False)
    annotations = TextsField(required=False)
    resourceVersion = serializers.CharField(required=False, max_length=64)  # noqa: N815 - the manifest's name


class ClaimWriteSchema(serializers.Serializer[Any]):
    """A GpuClaim manifest as written."""

    apiVersion = serializers.ChoiceField(choices=[API_VERSION], required=False)  # noqa: N815 - the manifest's name
    kind = serializers.ChoiceField(choices=[KIND], required=False)
    metadata = ClaimWriteMetadataSchema()
    spec = ClaimSpecSchema()


@extend_schema_field({"type": "object", "additionalProperties": True})
class AnyObjectField(serializers.Field[Any, Any, Any, Any]):
    """Any object."""


class ClaimPatchSchema(serializers.Serializer[Any]):
    """A merge patch: any part of the manifest."""

    metadata = AnyObjectField(required=False)
    spec = AnyObjectField(required=False)


class ClaimMetadataSchema(serializers.Serializer[Any]):
    """metadata."""

    name = serializers.CharField()
    namespace = serializers.CharField()
    uid = serializers.UUIDField()
    generation = serializers.IntegerField()
    resourceVersion = serializers.CharField(allow_blank=True)  # noqa: N815 - the manifest's name
    creationTimestamp = serializers.DateTimeField()  # noqa: N815 - the manifest's name
    labels = TextsField()
    annotations = TextsField()


class ClaimAllocationDeviceSchema(serializers.Serializer[Any]):
    """A device, or a share of it."""

    minor = serializers.IntegerField()
    uuid = serializers.CharField()
    core = serializers.IntegerField(help_text="percent")
    memory = serializers.IntegerField(help_text="bytes")


class ClaimAllocationSchema(serializers.Serializer[Any]):
    """One of the newest hundred allocations."""

    pod = serializers.CharField(allow_blank=True, help_text="empty for REST clients")
    uid = serializers.CharField(help_text="of the pod, of the allocation where there is no pod")
    node = serializers.CharField()
    devices = ClaimAllocationDeviceSchema(many=True)
    since = serializers.DateTimeField()


class ClaimStatusSchema(serializers.Serializer[Any]):
    """status."""

    phase = serializers.ChoiceField(choices=Phase.values)
    conditions = serializers.ListField(child=AnyObjectField())
    allocated = serializers.IntegerField()
    allocations = ClaimAllocationSchema(many=True)


class ClaimSchema(serializers.Serializer[Any]):
    """A GpuClaim manifest."""

    apiVersion = serializers.ChoiceField(choices=[API_VERSION])  # noqa: N815 - the manifest's name
    kind = serializers.ChoiceField(choices=[KIND])
    metadata = ClaimMetadataSchema()
    spec = AnyObjectField()
    status = ClaimStatusSchema()
