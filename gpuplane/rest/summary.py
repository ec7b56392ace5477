"""The fleet in numbers: `fleet/summary/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from allocations.overviews import fleet_summary
from gpuplane.rest.authentication import request_actor
from storage.clock import database_now


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
        return Response(fleet_summary(actor=request_actor(request), now=database_now()))
