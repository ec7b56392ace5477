"""REST of growth: `pools/`, `scaling-requests/`, `node-claims/`.

Everybody reads; operators say what a pool's nodes have, and cancel scaling requests. Invariants: pods in namespaces
that the caller does not see are counted, and not named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.errors import BadInput
from autoscaling import shapes
from autoscaling.choices import RequestState, ShapeSource
from autoscaling.models import NodeClaim, Pool, ScalingRequest
from autoscaling.pools import most_of
from autoscaling.selectors import (
    node_claim_list,
    pods_of_requests,
    pool_get,
    pool_list,
    request_get,
    request_list,
)
from autoscaling.services import pool_put, request_cancel
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import AnyObjectField, NameFilter, TextsField, filters
from gpuplane.rest.inventory import LinkField
from kube.keys import NATIVE_GPU
from nodes.inventory import DEVICES_MOST, MINOR_MOST, MODEL_LONGEST, NUMA_MOST, PCIE_LONGEST, TYPE_LONGEST
from storage.clock import database_now

POOL_NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the NodePool")
REQUEST_ID = OpenApiParameter("pk", int, OpenApiParameter.PATH, description="number of the scaling request")


class ShapeDeviceSchema(serializers.Serializer[Any]):
    """A device of a pool's nodes."""

    minor = serializers.IntegerField(min_value=0, max_value=MINOR_MOST)
    type = serializers.CharField(required=False, max_length=TYPE_LONGEST)
    model = serializers.CharField(required=False, max_length=MODEL_LONGEST)
    memory = serializers.CharField(required=False, help_text="a quantity, or bytes")
    numa = serializers.IntegerField(required=False, min_value=-1, max_value=NUMA_MOST)
    pcie = serializers.CharField(required=False, max_length=PCIE_LONGEST)


class ShapeSchema(serializers.Serializer[Any]):
    """What one node of a pool has."""

    devices = serializers.ListField(child=ShapeDeviceSchema(), max_length=DEVICES_MOST)
    links = serializers.ListField(child=LinkField(), required=False)


class PoolWriteSchema(serializers.Serializer[Any]):
    """What an operator says of a pool."""

    shape = ShapeSchema()


class PoolSchema(serializers.Serializer[Any]):
    """A pool: a NodePool of Karpenter's whose nodes have GPUs."""

    name = serializers.CharField()
    weight = serializers.IntegerField()
    source = serializers.ChoiceField(  # type: ignore[assignment]  # a field of that name, as declared
        choices=ShapeSource.values, help_text="where its shape is known from"
    )
    model = serializers.CharField(allow_blank=True)
    gpus = serializers.IntegerField(help_text="of one node; 0 while the shape is not known")
    shape = ShapeSchema(allow_null=True)
    labels = TextsField()
    taints = serializers.ListField(child=AnyObjectField())
    limits = TextsField()
    used = TextsField()
    nodes_left = serializers.IntegerField(allow_null=True, help_text="that may still be made; null: any number")
    problem = serializers.CharField(allow_blank=True, help_text="what is wrong with what it says of itself")
    changed_at = serializers.DateTimeField()


class TriggerSchema(serializers.Serializer[Any]):
    """One node that is wanted."""

    name = serializers.CharField(help_text="of the trigger pod")
    state = serializers.CharField()
    gpus = serializers.IntegerField()
    pods = serializers.IntegerField(help_text="that it is for")
    node_claim = serializers.CharField(allow_blank=True)
    node = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    served_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class ScalingRequestSchema(serializers.Serializer[Any]):
    """Nodes of one pool that are wanted for one shape of need."""

    id = serializers.IntegerField()
    pool = serializers.CharField()
    model = serializers.CharField(allow_blank=True)
    need = AnyObjectField()
    state = serializers.ChoiceField(choices=RequestState.values)
    wanted = serializers.IntegerField(help_text="nodes under way")
    reason = serializers.CharField(allow_blank=True)
    pods = serializers.ListField(
        child=serializers.CharField(), help_text="that wait for it, of namespaces that you see"
    )
    pods_total = serializers.IntegerField()
    triggers = TriggerSchema(many=True)
    created_at = serializers.DateTimeField()
    triggered_at = serializers.DateTimeField(allow_null=True)
    launching_at = serializers.DateTimeField(allow_null=True)
    registered_at = serializers.DateTimeField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class NodeClaimSchema(serializers.Serializer[Any]):
    """A NodeClaim, with the time of each step."""

    name = serializers.CharField()
    uid = serializers.CharField()
    pool = serializers.CharField()
    trigger = serializers.CharField(allow_blank=True)
    node = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField()
    launched_at = serializers.DateTimeField(allow_null=True)
    registered_at = serializers.DateTimeField(allow_null=True)
    initialized_at = serializers.DateTimeField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    inventory_at = serializers.DateTimeField(allow_null=True)
    failed_at = serializers.DateTimeField(allow_null=True)
    deleted_at = serializers.DateTimeField(allow_null=True)


class RequestFilters(serializers.Serializer[Any]):
    """Query of `scaling-requests/`."""

    pool = NameFilter()
    state = serializers.ChoiceField(choices=RequestState.choices, required=False)


class NodeClaimFilters(serializers.Serializer[Any]):
    """Query of `node-claims/`."""

    pool = NameFilter()
    node = NameFilter()


@extend_schema_view(
    list=extend_schema(summary="Pools, by name", responses=PoolSchema(many=True)),
    retrieve=extend_schema(summary="One pool", parameters=[POOL_NAME], responses=PoolSchema),
)
class PoolViewSet(GenericViewSet[Pool]):
    """Pools."""

    queryset = Pool.objects.none()
    ordering = ("name",)

    def list(self, _request: Request) -> Response:
        """All."""
        page = self.paginate_queryset(pool_list()) or []
        return self.get_paginated_response([pool_row(pool) for pool in page])

    def retrieve(self, _request: Request, name: str) -> Response:
        """One."""
        return Response(pool_row(pool_get(name)))

    @extend_schema(
        summary="Say what a node of the pool has",
        description="It counts where neither the NodePool nor the inventory of a node that it made says it.",
        parameters=[POOL_NAME],
        request=PoolWriteSchema,
        responses=PoolSchema,
    )
    def update(self, request: Request, name: str) -> Response:
        """Operators alone."""
        actor = request_actor(request)
        actor.require_operator()
        if not isinstance(request.data, Mapping) or set(request.data) != {"shape"}:
            raise BadInput("the body is an object with a shape", field="shape", rule="required")
        pool = pool_put(pool=pool_get(name), shape=request.data["shape"], actor=actor.name, now=database_now())
        return Response(pool_row(pool))


@extend_schema_view(
    list=extend_schema(
        summary="Scaling requests, the newest first",
        parameters=[RequestFilters],
        responses=ScalingRequestSchema(many=True),
    ),
    retrieve=extend_schema(summary="One scaling request", parameters=[REQUEST_ID], responses=ScalingRequestSchema),
)
class ScalingRequestViewSet(GenericViewSet[ScalingRequest]):
    """Scaling requests."""

    queryset = ScalingRequest.objects.none()
    ordering = ("-id",)

    def list(self, request: Request) -> Response:
        """Those that match."""
        page = self.paginate_queryset(request_list().filter(**filters(RequestFilters, request))) or []
        return self.get_paginated_response(request_rows(page, request))

    def retrieve(self, request: Request, pk: int) -> Response:
        """One."""
        return Response(request_rows([request_get(pk)], request)[0])

    @extend_schema(
        summary="Cancel the scaling request",
        description="Its trigger pods are deleted; the pods that it was for wait, and say so. 409 for an ended one.",
        parameters=[REQUEST_ID],
        responses={204: None},
    )
    def destroy(self, request: Request, pk: int) -> Response:
        """Operators alone."""
        actor = request_actor(request)
        actor.require_operator()
        request_cancel(request=request_get(pk), actor=actor.name, now=database_now())
        return Response(status=204)


class NodeClaimViewSet(GenericViewSet[NodeClaim]):
    """NodeClaims of Karpenter's."""

    queryset = NodeClaim.objects.none()
    ordering = ("-id",)

    @extend_schema(
        summary="NodeClaims, the newest first", parameters=[NodeClaimFilters], responses=NodeClaimSchema(many=True)
    )
    def list(self, request: Request) -> Response:
        """Those that match."""
        page = self.paginate_queryset(node_claim_list().filter(**filters(NodeClaimFilters, request))) or []
        return self.get_paginated_response([_columns(claim, NodeClaimSchema) for claim in page])


def pool_row(pool: Pool) -> dict[str, Any]:
    """A pool as REST shows it."""
    shape = pool.shape
    return {
        "name": pool.name,
        "weight": pool.weight,
        "source": pool.source.value,
        "model": shapes.model_of(shape) if shape else "",
        "gpus": shapes.gpus_of(shape) if shape else 0,
        "shape": shape,
        "labels": pool.labels,
        "taints": pool.taints,
        "limits": pool.limits,
        "used": {key: value for key, value in pool.used.items() if key in (*pool.limits, NATIVE_GPU, "nodes")},
        "nodes_left": most_of(pool, coming=0),
        "problem": pool.problem or pool.closed or ("" if shape else "nobody says what its nodes have"),
        "changed_at": pool.changed_at,
    }


def request_rows(rows: Sequence[ScalingRequest], request: Request) -> list[dict[str, Any]]:
    """Scaling requests as REST shows them to this caller."""
    actor = request_actor(request)
    waiting = pods_of_requests(rows)
    found = []
    for row in rows:
        pods = waiting.get(row.pk, [])
        triggers = [_columns(trigger, TriggerSchema) | {"pods": len(trigger.pods)} for trigger in row.triggers.all()]
        columns = set(map(str, ScalingRequestSchema().fields)) - {"pods", "pods_total", "triggers"}
        shown = {name: getattr(row, name) for name in columns}
        named = [f"{namespace}/{name}" for namespace, name in pods if actor.sees(namespace)]
        found.append(shown | {"triggers": triggers, "pods": named, "pods_total": len(pods)})
    return found


def _columns(row: Any, schema: type[serializers.Serializer[Any]]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in map(str, schema().fields)}
