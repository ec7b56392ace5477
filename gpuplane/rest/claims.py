"""REST of GpuClaims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from allocations.selectors import claim_statuses
from claims.choices import Phase
from claims.dialects.claim_manifest import COUNT_MOST, TTL_SECONDS_MOST
from claims.dialects.request import Policy
from claims.kinds import CLAIM
from claims.models import GpuClaim
from gpuplane.rest.fields import (
    LABEL_PATTERN,
    AnyObjectField,
    AskedQuantityField,
    NameFilter,
    NamespaceFilter,
    address,
)
from gpuplane.rest.manifests import ManifestViewSet, described, read_schema, write_schema
from kube.device_types import GPU


class ClaimDevicesSchema(serializers.Serializer[Any]):
    """What is asked; amounts are per device. Neither core nor memory: whole devices."""

    count = serializers.IntegerField(min_value=1, max_value=COUNT_MOST)
    type = serializers.RegexField(LABEL_PATTERN, required=False, max_length=63, default=GPU)
    model = serializers.ListField(
        child=serializers.CharField(max_length=128), required=False, max_length=64, help_text="any of these"
    )
    core = serializers.IntegerField(min_value=1, max_value=100, required=False, help_text="percent of a device")
    memory = AskedQuantityField(required=False)
    # the manifest's name
    memoryRatio = serializers.IntegerField(  # noqa: N815 - the manifest's name
        min_value=1, max_value=100, required=False
    )
    policy = serializers.ChoiceField(choices=[policy.value for policy in Policy], required=False)
    policyStrict = serializers.BooleanField(required=False)  # noqa: N815 - the manifest's name


class ClaimSpecSchema(serializers.Serializer[Any]):
    """spec."""

    devices = ClaimDevicesSchema()
    # the manifest's name
    gangRef = serializers.CharField(  # noqa: N815 - the manifest's name
        required=False, allow_blank=True, max_length=253
    )
    # the manifest's name
    ttlSeconds = serializers.IntegerField(  # noqa: N815 - the manifest's name
        min_value=1, max_value=TTL_SECONDS_MOST, required=False
    )
    resize = serializers.BooleanField(
        required=False, help_text="shares that were given through it follow its core, memory and memoryRatio"
    )


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


ClaimWriteSchema = write_schema(CLAIM, ClaimSpecSchema())
ClaimSchema = read_schema(CLAIM, ClaimStatusSchema())


class ClaimFilters(serializers.Serializer[Any]):
    """Query of `claims/`."""

    namespace = NamespaceFilter()
    name = NameFilter()
    phase = serializers.ChoiceField(
        choices=[Phase.INVALID], required=False, help_text="only Invalid is kept with the claim"
    )


@described(
    many="Claims",
    one="a claim",
    address=address("claim"),
    query=ClaimFilters,
    read=ClaimSchema,
    write=ClaimWriteSchema,
    created="In `metadata.namespace`, `default` where it has none. `metadata.generateName` is understood.",
    deleted="Pods that run through it keep their devices.",
)
class ClaimViewSet(ManifestViewSet[GpuClaim]):
    """GpuClaims of every namespace that the caller sees."""

    kind = CLAIM
    filters = ClaimFilters
    queryset = GpuClaim.objects.none()

    def statuses(self, rows: Sequence[GpuClaim]) -> Mapping[int, Mapping[str, Any]]:
        """Phase, conditions and allocations."""
        return claim_statuses(rows)
