"""What-if over REST: `POST simulations/` (VIEW-4). A scenario in, decisions out, on nothing but the body."""

from __future__ import annotations

from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from allocations.scenario import parse_scenario, run_scenario
from claims.dialects.request import SharePolicy
from nodes.schemas import NodeShapeSchema


@extend_schema_field({"type": "object", "additionalProperties": True})
class AnyObjectField(serializers.Field[Any, Any, Any, Any]):
    """Any object."""


class ScenarioNodeSchema(NodeShapeSchema):
    """One node."""

    name = serializers.RegexField(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)


class ScenarioOptionsSchema(serializers.Serializer[Any]):
    """Engine options."""

    share = serializers.ChoiceField(choices=[policy.value for policy in SharePolicy], required=False)


class ScenarioSchema(serializers.Serializer[Any]):
    """A fleet, and pods in the order of their arrival."""

    nodes = ScenarioNodeSchema(many=True, required=False)
    claims = serializers.ListField(child=AnyObjectField(), required=False, help_text="GpuClaim manifests")
    gangs = serializers.ListField(child=AnyObjectField(), required=False, help_text="GpuGang manifests")
    pods = serializers.ListField(child=AnyObjectField(), required=False, help_text="Pod manifests")
    options = ScenarioOptionsSchema(required=False)


class SimulatedDeviceSchema(serializers.Serializer[Any]):
    """A device, or a share of it."""

    uuid = serializers.CharField()
    minor = serializers.IntegerField()
    type = serializers.CharField()
    core = serializers.IntegerField(help_text="percent")
    memory = serializers.IntegerField(allow_null=True, help_text="bytes")


class SimulatedDecisionSchema(serializers.Serializer[Any]):
    """What became of a pod."""

    pod = serializers.CharField()
    node = serializers.CharField(allow_null=True)
    devices = SimulatedDeviceSchema(many=True)
    reasons = serializers.DictField(child=serializers.CharField(), help_text="node → why it could not serve")
    summary = serializers.CharField(allow_blank=True)


class SimulationSchema(serializers.Serializer[Any]):
    """Decisions in the order of arrival, and the fleet after the last."""

    decisions = SimulatedDecisionSchema(many=True)
    fleet = serializers.DictField(child=serializers.ListField(child=AnyObjectField()))
    problems = serializers.ListField(child=serializers.CharField(), required=False)


class Simulations(APIView):
    """What-if."""

    @extend_schema(summary="Run a scenario", request=ScenarioSchema, responses=SimulationSchema)
    def post(self, request: Request) -> Response:
        """Decisions and the fleet after them; nothing is kept."""
        return Response(msgspec.to_builtins(run_scenario(parse_scenario(request.data))))
