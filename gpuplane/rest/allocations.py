"""REST of who holds what: `allocations/`, and renewing what is allocated through a claim.

Invariants: whatever lies in a namespace that the caller does not see answers 404 or is left out.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from allocations.choices import LIVE, State
from allocations.models import Allocation
from allocations.selectors import allocation_get, allocation_list
from allocations.services import allocation_release, allocation_resize, claim_devices, claim_renew
from claims.dialects.claim_manifest import TTL_SECONDS_MOST
from claims.kinds import CLAIM
from claims.selectors import manifest_get
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import (
    LABEL_PATTERN,
    SUBDOMAIN_PATTERN,
    AskedQuantityField,
    NameFilter,
    NamespaceFilter,
    address,
    body_of,
    checked,
    filters,
)
from storage.clock import database_now

HOLDER_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"
UID = OpenApiParameter("uid", UUID, OpenApiParameter.PATH, description="uid of the allocation")
EVICT = OpenApiParameter("evict", bool, OpenApiParameter.QUERY, description="evict the pod first, where it still lives")


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
    queue = serializers.RegexField(
        SUBDOMAIN_PATTERN, max_length=253, required=False, help_text="the queue that admits it; else the namespace's"
    )


class RenewSchema(serializers.Serializer[Any]):
    """From now on; the claim's own ttlSeconds where it is left out."""

    ttlSeconds = serializers.IntegerField(  # noqa: N815 - as in the manifest
        min_value=1, max_value=TTL_SECONDS_MOST, required=False, allow_null=True
    )


class ResizeSchema(serializers.Serializer[Any]):
    """New amounts of each device of a share; what is left out stays."""

    core = serializers.IntegerField(min_value=0, max_value=100, required=False, help_text="percent")
    memory = AskedQuantityField(required=False, help_text="a quantity, such as 10Gi")


class AllocationFilters(serializers.Serializer[Any]):
    """Query of `allocations/`."""

    state = serializers.ChoiceField(choices=State.choices, required=False)
    live = serializers.BooleanField(
        required=False, allow_null=True, default=None, help_text="whether its devices count as used"
    )
    namespace = NamespaceFilter()
    pod = NameFilter("pod_name")
    pod_uid = serializers.CharField(required=False, max_length=128)
    node = NameFilter("node__name")
    claim = NameFilter("claim_name")


class Release(serializers.Serializer[Any]):
    """Query of a release."""

    evict = serializers.BooleanField(required=False, default=False)


class AllocationViewSet(GenericViewSet[Allocation]):
    """Allocations of every namespace that the caller sees."""

    queryset = Allocation.objects.none()
    ordering = ("-created_at", "-id")

    @extend_schema(
        summary="Allocations, the newest first", parameters=[AllocationFilters], responses=AllocationSchema(many=True)
    )
    def list(self, request: Request) -> Response:
        """Allocations that match."""
        columns = filters(AllocationFilters, request)
        live = columns.pop("live", None)
        allocations = allocation_list(actor=request_actor(request)).filter(**columns)
        if live is not None:
            allocations = allocations.filter(state__in=LIVE) if live else allocations.exclude(state__in=LIVE)
        page = self.paginate_queryset(allocations) or []
        return self.get_paginated_response([allocation_row(allocation) for allocation in page])

    @extend_schema(summary="One allocation", parameters=[UID], responses=AllocationSchema)
    def retrieve(self, request: Request, uid: UUID) -> Response:
        """One allocation."""
        return Response(allocation_row(allocation_get(uid=uid, actor=request_actor(request))))

    @extend_schema(
        summary="Claim devices without a pod",
        description="Gives devices to a client as the claim asks (bare-metal use): the same ledger, the same rules. "
        "409 when nothing fits now.",
        request=AllocationWriteSchema,
        responses={201: AllocationSchema},
    )
    def create(self, request: Request) -> Response:
        """Claim devices."""
        body = body_of(AllocationWriteSchema, request)
        actor = request_actor(request)
        claim = manifest_get(CLAIM, namespace=body["namespace"], name=body["claim"], actor=actor)
        allocation = claim_devices(claim=claim, actor=actor, holder=body.get("holder", ""), queue=body.get("queue", ""))
        fresh = allocation_get(uid=allocation.pk, actor=actor)
        return Response(allocation_row(fresh), status=201)

    @extend_schema(
        summary="Give the devices back",
        description="409 while the pod lives, unless `evict=true`, which asks it to go first.",
        parameters=[UID, EVICT],
        responses={200: AllocationSchema},
    )
    def destroy(self, request: Request, uid: UUID) -> Response:
        """Release; the allocation as it then is."""
        evict = checked(Release, request.query_params)["evict"]
        actor = request_actor(request)
        allocation = allocation_get(uid=uid, actor=actor)
        allocation_release(allocation=allocation, actor=actor, evict=evict, now=database_now())
        return Response(allocation_row(allocation_get(uid=uid, actor=actor)))


class AllocationResize(APIView):
    """Let a share grow or shrink in place."""

    @extend_schema(
        summary="Resize a share in place",
        description="Amounts per device. 409 with the reason where the device or the queue has no room, where more is "
        "measured in use, and for whole devices. Running containers keep their limits until they are restarted.",
        parameters=[UID],
        request=ResizeSchema,
        responses=AllocationSchema,
    )
    def post(self, request: Request, uid: UUID) -> Response:
        """The allocation with its new amounts."""
        body = body_of(ResizeSchema, request)
        actor = request_actor(request)
        allocation = allocation_get(uid=uid, actor=actor)
        allocation_resize(
            allocation=allocation,
            actor=actor,
            core=body.get("core"),
            memory=body.get("memory"),
            now=database_now(),
        )
        return Response(allocation_row(allocation_get(uid=uid, actor=actor)))


class ClaimRenew(APIView):
    """Let what is bound through a claim end later."""

    @extend_schema(
        summary="Renew what is allocated through a claim",
        parameters=address("claim"),
        request=RenewSchema,
        responses=AllocationSchema(many=True),
    )
    def post(self, request: Request, namespace: str, name: str) -> Response:
        """The allocations with their new ends."""
        ttl_seconds = body_of(RenewSchema, request).get("ttlSeconds")
        actor = request_actor(request)
        claim = manifest_get(CLAIM, namespace=namespace, name=name, actor=actor)
        renewed = claim_renew(claim=claim, actor=actor, ttl_seconds=ttl_seconds, now=database_now())
        fresh = allocation_list(actor=actor).filter(pk__in=[allocation.pk for allocation in renewed])
        return Response([allocation_row(allocation) for allocation in fresh])


def allocation_row(allocation: Allocation) -> dict[str, Any]:
    """An allocation as REST shows it; expects `allocation_list`'s joins."""
    return {
        "uid": str(allocation.pk),
        "state": allocation.state,
        "namespace": allocation.namespace,
        "pod": allocation.pod_name,
        "pod_uid": allocation.pod_uid,
        "holder": allocation.holder,
        "node": allocation.node.name,
        "claim": allocation.claim_name,
        "dialect": allocation.dialect,
        "devices": [
            {
                "uuid": grant.uuid,
                "type": grant.type,
                "minor": grant.minor,
                "core": grant.core_percent,
                "memory": grant.memory_bytes or None,
                "whole": grant.whole,
                "problem": grant.problem,
            }
            for grant in allocation.devices.all()
        ],
        "summary": allocation.summary,
        "reason": allocation.reason,
        "confined": allocation.confined,
        "created_by": allocation.created_by,
        "ttl_seconds": allocation.ttl_seconds,
        "created_at": allocation.created_at,
        "hold_until": allocation.hold_until,
        "reserved_at": allocation.reserved_at,
        "bound_at": allocation.bound_at,
        "expires_at": allocation.expires_at,
        "releasing_at": allocation.releasing_at,
        "ended_at": allocation.ended_at,
    }
