"""REST of explanations: why a pod, or the pods of a claim, run where they do or wait.

Invariants: a namespace that the caller does not see answers 404.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from allocations.explain import NODES_MOST, NODES_SHOWN, NodePage, claim_explain, pod_explain
from autoscaling.selectors import pod_growth
from claims.services import require_seen
from gpuplane.rest.allocations import GrantSchema
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import AnyObjectField, address, checked
from gpuplane.rest.pending import ReasonSchema, SchedulerSchema
from gpuplane.rest.queues import QuotaStatusSchema


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


class WorkloadSchema(serializers.Serializer[Any]):
    """The queue and the gang of a pod that the queues admit."""

    queue = serializers.CharField()
    gang = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    quotas = QuotaStatusSchema(many=True, help_text="of the queue, as of the last decision")
    reason = serializers.CharField()


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
    workload = WorkloadSchema(allow_null=True, help_text="for a pod that waits in a queue")
    scheduler = SchedulerSchema(allow_null=True, help_text="for a pod that waits")


class GrowthSchema(serializers.Serializer[Any]):
    """The node that a pod waits for, or why none is made for it."""

    pool = serializers.CharField(allow_blank=True)
    state = serializers.CharField(allow_blank=True, help_text="of its trigger pod")
    text = serializers.CharField()
    trigger = serializers.CharField(allow_blank=True)
    node_claim = serializers.CharField(allow_blank=True)
    node = serializers.CharField(allow_blank=True)


class PodExplainedSchema(PodExplanationSchema):
    """With what happened to it."""

    growth = GrowthSchema(allow_null=True, help_text="for a pod that lacks nothing but devices")
    timeline = serializers.ListField(child=AnyObjectField())


class ClaimExplainedSchema(serializers.Serializer[Any]):
    """Who holds devices through a claim, and which of its pods wait, and why."""

    claim = serializers.CharField()
    namespace = serializers.CharField()
    summary = serializers.CharField()
    pods = PodExplanationSchema(many=True)
    timeline = serializers.ListField(child=AnyObjectField())


class ExplainQuery(serializers.Serializer[Any]):
    """Query of the explanations."""

    nodes_after = serializers.CharField(
        required=False, default="", max_length=253, allow_blank=True, help_text="return the nodes that follow this name"
    )
    nodes_size = serializers.IntegerField(
        required=False, default=NODES_SHOWN, min_value=1, max_value=NODES_MOST, help_text="nodes of a page"
    )


def node_page(request: Request) -> NodePage:
    """The page of nodes that the query names."""
    query = checked(ExplainQuery, request.query_params)
    return NodePage(after=query["nodes_after"], size=query["nodes_size"])


def with_addresses(explanation: dict[str, Any], request: Request) -> dict[str, Any]:
    """The explanation with the pages of nodes before and after as addresses."""
    address = request.build_absolute_uri()
    for key in ("nodes_next", "nodes_previous"):
        if explanation[key] is not None:
            explanation[key] = replace_query_param(address, "nodes_after", explanation[key])
    return explanation


class ClaimExplain(APIView):
    """Why the pods of a claim run where they do, or wait."""

    @extend_schema(
        summary="Explain a claim", parameters=[*address("claim"), ExplainQuery], responses=ClaimExplainedSchema
    )
    def get(self, request: Request, namespace: str, name: str) -> Response:
        """The explanation."""
        actor = request_actor(request)
        require_seen(namespace, name, actor=actor)
        explanation = claim_explain(namespace, name, actor, node_page(request))
        return Response(explanation | {"pods": [with_addresses(pod, request) for pod in explanation["pods"]]})


class PodExplain(APIView):
    """Why a pod runs where it does, or waits."""

    @extend_schema(summary="Explain a pod", parameters=[*address("pod"), ExplainQuery], responses=PodExplainedSchema)
    def get(self, request: Request, namespace: str, name: str) -> Response:
        """The explanation."""
        actor = request_actor(request)
        require_seen(namespace, name, actor=actor)
        explanation = with_addresses(pod_explain(namespace, name, actor, node_page(request)), request)
        growth = pod_growth(namespace=namespace, name=name)
        return Response(explanation | {"growth": growth and growth._asdict()})
