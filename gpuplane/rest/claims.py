"""REST of GpuClaims, in manifest shape: the same YAML serves `kubectl` and REST (CLAIM-1).

The schemas are for the OpenAPI document. `claims.dialects.claim_manifest` checks manifests; a schemathesis run compares
both.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from allocations.selectors import claim_statuses
from claims.choices import Phase
from claims.dialects.claim_manifest import COUNT_MOST, KIND, TTL_SECONDS_MOST
from claims.dialects.request import Policy
from claims.models import GpuClaim
from claims.selectors import claim_get, claim_list, claim_manifest
from claims.services import claim_create, claim_delete, claim_patch, claim_replace
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import (
    LABEL_PATTERN,
    SUBDOMAIN_PATTERN,
    AnyObjectField,
    AskedQuantityField,
    NameFilter,
    NamespaceFilter,
    TextsField,
    address,
    filters,
)
from kube.device_types import GPU
from kube.keys import API_VERSION
from storage.clock import database_now

ADDRESS = address("claim")


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
    memoryRatio = serializers.IntegerField(min_value=1, max_value=100, required=False)  # noqa: N815
    policy = serializers.ChoiceField(choices=[policy.value for policy in Policy], required=False)
    policyStrict = serializers.BooleanField(required=False)  # noqa: N815 - the manifest's name


class ClaimSpecSchema(serializers.Serializer[Any]):
    """spec."""

    devices = ClaimDevicesSchema()
    # the manifest's name
    gangRef = serializers.CharField(required=False, allow_blank=True, max_length=253)  # noqa: N815
    # the manifest's name
    ttlSeconds = serializers.IntegerField(min_value=1, max_value=TTL_SECONDS_MOST, required=False)  # noqa: N815


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


class ClaimFilters(serializers.Serializer[Any]):
    """Query of `claims/`."""

    namespace = NamespaceFilter()
    name = NameFilter()
    phase = serializers.ChoiceField(
        choices=[Phase.INVALID], required=False, help_text="only Invalid is kept with the claim"
    )


class ClaimViewSet(GenericViewSet[GpuClaim]):
    """GpuClaims of every namespace that the caller sees."""

    queryset = GpuClaim.objects.none()
    ordering = ("namespace", "name")

    @extend_schema(summary="Claims", parameters=[ClaimFilters], responses=ClaimSchema(many=True))
    def list(self, request: Request) -> Response:
        """Claims that match, by namespace and name."""
        claims = claim_list(actor=request_actor(request)).filter(**filters(ClaimFilters, request))
        page = self.paginate_queryset(claims) or []
        statuses = claim_statuses(page)
        return self.get_paginated_response([claim_manifest(claim, statuses[claim.pk]) for claim in page])

    @extend_schema(
        summary="Create a claim",
        description="In `metadata.namespace`, `default` where it has none. `metadata.generateName` is understood.",
        request=ClaimWriteSchema,
        responses={201: ClaimSchema},
    )
    def create(self, request: Request) -> Response:
        """Create from a manifest."""
        claim = claim_create(manifest=request.data, actor=request_actor(request), now=database_now())
        return Response(_manifest(claim), status=201)

    @extend_schema(summary="One claim", parameters=ADDRESS, responses=ClaimSchema)
    def retrieve(self, request: Request, namespace: str, name: str) -> Response:
        """One claim with its status."""
        return Response(_manifest(claim_get(namespace=namespace, name=name, actor=request_actor(request))))

    @extend_schema(
        summary="Replace a claim",
        description="With `metadata.resourceVersion` only if the claim is still at that version, else 409.",
        parameters=ADDRESS,
        request=ClaimWriteSchema,
        responses=ClaimSchema,
    )
    def update(self, request: Request, namespace: str, name: str) -> Response:
        """Replace metadata and spec."""
        claim = claim_replace(
            namespace=namespace, name=name, manifest=request.data, actor=request_actor(request), now=database_now()
        )
        return Response(_manifest(claim))

    @extend_schema(
        summary="Change a claim",
        description="A JSON merge patch (RFC 7386) of the manifest; null removes.",
        parameters=ADDRESS,
        request=ClaimPatchSchema,
        responses=ClaimSchema,
    )
    def partial_update(self, request: Request, namespace: str, name: str) -> Response:
        """Merge patch."""
        claim = claim_patch(
            namespace=namespace, name=name, patch=request.data, actor=request_actor(request), now=database_now()
        )
        return Response(_manifest(claim))

    @extend_schema(
        summary="Delete a claim",
        description="Pods that run through it keep their devices.",
        parameters=ADDRESS,
        responses={204: None},
    )
    def destroy(self, request: Request, namespace: str, name: str) -> Response:
        """Delete."""
        claim_delete(namespace=namespace, name=name, actor=request_actor(request), now=database_now())
        return Response(status=204)


def _manifest(claim: GpuClaim) -> dict[str, Any]:
    return claim_manifest(claim, claim_statuses([claim])[claim.pk])
