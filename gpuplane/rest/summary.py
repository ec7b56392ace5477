"""The fleet in numbers: `fleet/summary/`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from access.actors import Actor
from access.authentication import request_actor
from allocations.selectors import allocation_counts, pending_count
from audit.clock import database_now
from nodes.choices import NodeState
from nodes.selectors import device_counts, node_counts

PENDING_SINCE = timedelta(minutes=10)
"""A pod that was refused and has not been asked about for so long is no longer waiting; kube-scheduler asks at least every 5 minutes."""

SUMS = ("total", "used", "free", "unhealthy")


class NodeNumbersSchema(serializers.Serializer[Any]):
    """Nodes."""

    total = serializers.IntegerField()
    ready = serializers.IntegerField()


class DeviceNumbersSchema(serializers.Serializer[Any]):
    """Devices; `used` are held wholly or in part, `free` can be given away whole."""

    type = serializers.CharField()
    total = serializers.IntegerField()
    used = serializers.IntegerField()
    free = serializers.IntegerField()
    unhealthy = serializers.IntegerField()
    core_used = serializers.IntegerField(help_text="percent, 100 a device")
    memory_total = serializers.IntegerField(help_text="bytes")
    memory_used = serializers.IntegerField(help_text="bytes")


class ModelNumbersSchema(DeviceNumbersSchema):
    """Devices of one model."""

    model = serializers.CharField(allow_blank=True)


class FleetSummarySchema(serializers.Serializer[Any]):
    """The fleet in numbers; allocations and pending pods are those of the namespaces that the caller sees."""

    nodes = NodeNumbersSchema()
    devices = DeviceNumbersSchema(many=True)
    models = ModelNumbersSchema(many=True)
    allocations = serializers.DictField(child=serializers.IntegerField(), help_text="live state → how many")
    pending_pods = serializers.IntegerField()


class FleetSummary(APIView):
    """The fleet in numbers."""

    @extend_schema(summary="The fleet in numbers", responses=FleetSummarySchema)
    def get(self, request: Request) -> Response:
        """Four queries, whatever the size."""
        return Response(fleet_summary(request_actor(request)))


def fleet_summary(actor: Actor) -> dict[str, Any]:
    """What `FleetSummarySchema` says; pages use it too."""
    states = node_counts()
    models = [
        {
            "type": row["type"],
            "model": row["model"],
            **{key: row[key] for key in (*SUMS, "core_used")},
            "memory_total": row["memory_total_bytes"],
            "memory_used": row["memory_used_bytes"],
        }
        for row in device_counts()
    ]
    types: dict[str, dict[str, Any]] = {}
    for row in models:
        numbers = types.setdefault(
            row["type"], {"type": row["type"], **dict.fromkeys((*SUMS, "core_used", "memory_total", "memory_used"), 0)}
        )
        for key in (*SUMS, "core_used", "memory_total", "memory_used"):
            numbers[key] += row[key]
    return {
        "nodes": {"total": sum(states.values()), "ready": states.get(NodeState.READY, 0)},
        "devices": list(types.values()),
        "models": models,
        "allocations": allocation_counts(actor=actor),
        "pending_pods": pending_count(actor=actor, since=database_now() - PENDING_SINCE),
    }
