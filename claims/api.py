"""REST of GpuClaims, in manifest shape: the same YAML serves `kubectl` and REST (CLAIM-1).

What is allocated through a claim comes from above (`statuses`, given by `gpuplane.rest.urls`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.authentication import request_actor
from audit.clock import database_now
from claims.choices import Phase
from claims.models import GpuClaim
from claims.schemas import ClaimPatchSchema, ClaimSchema, ClaimWriteSchema
from claims.selectors import claim_get, claim_list, claim_manifest
from claims.services import claim_create, claim_delete, claim_patch, claim_replace

Statuses = Callable[[Sequence[GpuClaim]], Mapping[int, dict[str, Any]]]
"""Claims → claim id → `status`."""


def unknown(claims: Sequence[GpuClaim]) -> Mapping[int, dict[str, Any]]:
    """What is allocated is not known here."""
    return {claim.pk: {} for claim in claims}


ADDRESS = [
    OpenApiParameter("namespace", str, OpenApiParameter.PATH, description="namespace of the claim"),
    OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the claim"),
]


class ClaimFilters(serializers.Serializer[Any]):
    """Query of `claims/`."""

    namespace = serializers.CharField(required=False, max_length=63)
    name = serializers.CharField(required=False, max_length=253)
    phase = serializers.ChoiceField(
        choices=[Phase.INVALID], required=False, help_text="only Invalid is kept with the claim"
    )


class ClaimViewSet(GenericViewSet[GpuClaim]):
    """GpuClaims of every namespace that the caller sees."""

    queryset = GpuClaim.objects.none()
    ordering = ("namespace", "name")
    statuses: Statuses = staticmethod(unknown)

    @extend_schema(summary="Claims", parameters=[ClaimFilters], responses=ClaimSchema(many=True))
    def list(self, request: Request) -> Response:
        """Claims that match, by namespace and name."""
        filters = ClaimFilters(data=request.query_params)
        filters.is_valid(raise_exception=True)
        wanted = {key: value for key, value in filters.validated_data.items() if value}
        page = self.paginate_queryset(claim_list(actor=request_actor(request)).filter(**wanted)) or []
        statuses = self.statuses(page)
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
        return Response(self._manifest(claim), status=201)

    @extend_schema(summary="One claim", parameters=ADDRESS, responses=ClaimSchema)
    def retrieve(self, request: Request, namespace: str, name: str) -> Response:
        """One claim with its status."""
        return Response(self._manifest(claim_get(namespace=namespace, name=name, actor=request_actor(request))))

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
        return Response(self._manifest(claim))

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
        return Response(self._manifest(claim))

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

    def _manifest(self, claim: GpuClaim) -> dict[str, Any]:
        return claim_manifest(claim, self.statuses([claim])[claim.pk])
