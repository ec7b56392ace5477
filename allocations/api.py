"""REST of who holds what, and who waits: `allocations/`, `leases/`, `pods/`, renewing, and the explanations.

Kept true: whatever lies in a namespace that the caller does not see answers 404 or is left out.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from access.actors import Actor
from access.authentication import request_actor
from allocations.choices import LIVE, State
from allocations.explain import NODES_MOST, NODES_TOLD, NodesAsked, claim_explain, pod_explain
from allocations.leases.port import LeaseView
from allocations.models import Allocation, PodRefusal
from allocations.outside import lease_list
from allocations.overviews import waiting_pods
from allocations.schemas import (
    AllocationSchema,
    AllocationWriteSchema,
    ClaimExplainedSchema,
    LeaseSchema,
    PendingPodSchema,
    PodExplainedSchema,
    RenewSchema,
)
from allocations.selectors import allocation_get, allocation_list
from allocations.services import allocation_release, claim_devices, claim_renew
from allocations.waiting import DEFAULT_SCHEDULER
from audit.clock import database_now
from claims.selectors import claim_get
from claims.services import require_seen
from kube.keys import SHARED_HOLDER

UID = OpenApiParameter("uid", UUID, OpenApiParameter.PATH, description="uid of the allocation")
EVICT = OpenApiParameter("evict", bool, OpenApiParameter.QUERY, description="evict the pod first, where it still lives")


def address(kind: str) -> list[OpenApiParameter]:
    """Path parameters of an object in a namespace."""
    return [
        OpenApiParameter("namespace", str, OpenApiParameter.PATH, description=f"namespace of the {kind}"),
        OpenApiParameter("name", str, OpenApiParameter.PATH, description=f"name of the {kind}"),
    ]


class AllocationFilters(serializers.Serializer[Any]):
    """Query of `allocations/`."""

    state = serializers.ChoiceField(choices=State.choices, required=False)
    live = serializers.BooleanField(
        required=False, allow_null=True, default=None, help_text="whether its devices count as used"
    )
    namespace = serializers.CharField(required=False, max_length=63)
    pod = serializers.CharField(required=False, max_length=253)
    pod_uid = serializers.CharField(required=False, max_length=128)
    node = serializers.CharField(required=False, max_length=253)
    claim = serializers.CharField(required=False, max_length=253)


class Release(serializers.Serializer[Any]):
    """Query of a release."""

    evict = serializers.BooleanField(required=False, default=False)


COLUMNS = {"pod": "pod_name", "node": "node__name", "claim": "claim_name"}
"""Filter → column, where they differ."""


class AllocationViewSet(GenericViewSet[Allocation]):
    """Allocations of every namespace that the caller sees."""

    queryset = Allocation.objects.none()
    ordering = ("-created_at", "-id")

    @extend_schema(
        summary="Allocations, the newest first", parameters=[AllocationFilters], responses=AllocationSchema(many=True)
    )
    def list(self, request: Request) -> Response:
        """Allocations that match."""
        filters = AllocationFilters(data=request.query_params)
        filters.is_valid(raise_exception=True)
        wanted: dict[str, Any] = dict(filters.validated_data)
        live = wanted.pop("live", None)
        columns = {COLUMNS.get(key, key): value for key, value in wanted.items() if value}
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
        form = AllocationWriteSchema(data=request.data)
        form.is_valid(raise_exception=True)
        actor = request_actor(request)
        wanted = form.validated_data
        claim = claim_get(namespace=wanted["namespace"], name=wanted["claim"], actor=actor)
        allocation = claim_devices(claim=claim, actor=actor, holder=wanted.get("holder", ""))
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
        form = Release(data=request.query_params)
        form.is_valid(raise_exception=True)
        actor = request_actor(request)
        allocation = allocation_get(uid=uid, actor=actor)
        allocation_release(allocation=allocation, actor=actor, evict=form.validated_data["evict"], now=database_now())
        return Response(allocation_row(allocation_get(uid=uid, actor=actor)))


class PendingFilters(serializers.Serializer[Any]):
    """Query of `pods/`."""

    namespace = serializers.CharField(required=False, max_length=63)
    claim = serializers.CharField(required=False, max_length=253)


class PendingPodViewSet(GenericViewSet[PodRefusal]):
    """Pods that ask for devices, hold none and wait, of every namespace that the caller sees."""

    queryset = PodRefusal.objects.none()
    ordering = ("first_at", "id")

    @extend_schema(
        summary="Pods that wait for devices, the longest waiting first",
        parameters=[PendingFilters],
        responses=PendingPodSchema(many=True),
    )
    def list(self, request: Request) -> Response:
        """Pods that match."""
        form = PendingFilters(data=request.query_params)
        form.is_valid(raise_exception=True)
        columns = {"claim": "claim_name"}
        wanted = {columns.get(key, key): value for key, value in form.validated_data.items() if value}
        page = self.paginate_queryset(waiting_pods(actor=request_actor(request)).filter(**wanted)) or []
        return self.get_paginated_response([pending_row(pod) for pod in page])


class LeaseFilters(serializers.Serializer[Any]):
    """Query of `leases/`."""

    node = serializers.CharField(required=False, max_length=253)
    device_uuid = serializers.CharField(required=False, max_length=128)


class LeaseViewSet(GenericViewSet[Any]):
    """Leases of every device that is taken."""

    queryset = Allocation.objects.none()
    ordering = ("name",)

    @extend_schema(summary="Leases, by name", parameters=[LeaseFilters], responses=LeaseSchema(many=True))
    def list(self, request: Request) -> Response:
        """Leases that match."""
        filters = LeaseFilters(data=request.query_params)
        filters.is_valid(raise_exception=True)
        wanted = {key: value for key, value in filters.validated_data.items() if value}
        leases = [lease for lease in lease_list() if all(getattr(lease, key) == value for key, value in wanted.items())]
        page: Any = self.paginate_queryset(leases) or []
        actor = request_actor(request)
        return self.get_paginated_response([lease_row(lease, actor) for lease in page])


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
        form = RenewSchema(data=request.data)
        form.is_valid(raise_exception=True)
        actor = request_actor(request)
        claim = claim_get(namespace=namespace, name=name, actor=actor)
        renewed = claim_renew(
            claim=claim, actor=actor, ttl_seconds=form.validated_data.get("ttlSeconds"), now=database_now()
        )
        fresh = allocation_list(actor=actor).filter(pk__in=[allocation.pk for allocation in renewed])
        return Response([allocation_row(allocation) for allocation in fresh])


class ExplainQuery(serializers.Serializer[Any]):
    """Query of the explanations."""

    nodes_after = serializers.CharField(
        required=False, default="", max_length=253, allow_blank=True, help_text="tell the nodes that follow this name"
    )
    nodes_size = serializers.IntegerField(
        required=False, default=NODES_TOLD, min_value=1, max_value=NODES_MOST, help_text="nodes of a page"
    )


def nodes_asked(request: Request) -> NodesAsked:
    """Which page of nodes is asked for."""
    form = ExplainQuery(data=request.query_params)
    form.is_valid(raise_exception=True)
    return NodesAsked(after=form.validated_data["nodes_after"], size=form.validated_data["nodes_size"])


def with_addresses(told: dict[str, Any], request: Request) -> dict[str, Any]:
    """The pages of nodes before and after, as addresses."""
    address = request.build_absolute_uri()
    for key in ("nodes_next", "nodes_previous"):
        if told[key] is not None:
            told[key] = replace_query_param(address, "nodes_after", told[key])
    return told


class ClaimExplain(APIView):
    """Why the pods of a claim run where they do, or wait."""

    @extend_schema(
        summary="Explain a claim", parameters=[*address("claim"), ExplainQuery], responses=ClaimExplainedSchema
    )
    def get(self, request: Request, namespace: str, name: str) -> Response:
        """The explanation."""
        actor = request_actor(request)
        require_seen(namespace, name, actor=actor)
        told = claim_explain(namespace, name, actor, nodes_asked(request))
        return Response(told | {"pods": [with_addresses(pod, request) for pod in told["pods"]]})


class PodExplain(APIView):
    """Why a pod runs where it does, or waits."""

    @extend_schema(summary="Explain a pod", parameters=[*address("pod"), ExplainQuery], responses=PodExplainedSchema)
    def get(self, request: Request, namespace: str, name: str) -> Response:
        """The explanation."""
        actor = request_actor(request)
        require_seen(namespace, name, actor=actor)
        return Response(with_addresses(pod_explain(namespace, name, actor, nodes_asked(request)), request))


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


def pending_row(pod: PodRefusal) -> dict[str, Any]:
    """A pod that waits as REST shows it."""
    return {
        "uid": pod.pod_uid,
        "namespace": pod.namespace,
        "pod": pod.pod_name,
        "claim": pod.claim_name,
        "rule": pod.rule,
        "summary": pod.summary,
        "reasons": [{"reason": reason, "nodes": count} for reason, count in pod.reasons.items()],
        "scheduler": {
            "name": pod.scheduler_name or DEFAULT_SCHEDULER,
            "message": pod.scheduler_message,
            "refused": pod.count,
        },
        "since": pod.first_at,
    }


def lease_row(lease: LeaseView, actor: Actor) -> dict[str, Any]:
    """A lease as REST shows it to this actor."""
    return {
        "name": lease.name,
        "holder_identity": _shown(lease.holder_identity, actor),
        "node": lease.node,
        "device_uuid": lease.device_uuid,
        "sharers": [_shown(holder, actor) for holder in lease.sharers],
        "acquired_at": lease.acquired_at,
    }


def _shown(holder: str, actor: Actor) -> str | None:
    """`<namespace>/<pod>/<uid>`, None where the namespace is not seen."""
    return holder if holder == SHARED_HOLDER or actor.sees(holder.partition("/")[0]) else None
