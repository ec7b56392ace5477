"""What-if over REST: `POST simulations/` runs a scenario, `GET` answers the fleet as one (VIEW-4).

Invariants: the body is parsed by the run's process alone (`allocations.whatif`), and its answer is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from typing_extensions import override

from access.clients import client_of
from allocations.live_scenario import live_scenario
from allocations.scenario.parse import LIMITS
from allocations.whatif.run import CONFINEMENT, Kind, what_if
from allocations.whatif.run_slots import RUNS_MOST
from autoscaling.selectors import scenario_pools
from claims.dialects.request import SharePolicy
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import SUBDOMAIN_PATTERN, AnyObjectField
from gpuplane.rest.inference_schema import (
    EstimateSchema,
    KeepWarmSchema,
    ScenarioModelSchema,
    ScenarioRequestSchema,
    ScenarioRunnerSchema,
    SimulatedRequestSchema,
    SimulatedSlotSchema,
)
from gpuplane.rest.inventory import NodeShapeSchema


class ScenarioNodeSchema(NodeShapeSchema):
    """One node."""

    name = serializers.RegexField(SUBDOMAIN_PATTERN, max_length=253)


class ScenarioOptionsSchema(serializers.Serializer[Any]):
    """Engine options."""

    share = serializers.ChoiceField(choices=[policy.value for policy in SharePolicy], required=False)


class ScenarioSchema(serializers.Serializer[Any]):
    """A fleet, and pods in the order of their arrival; with queues all of them are there from the start."""

    nodes = ScenarioNodeSchema(many=True, required=False)
    claims = serializers.ListField(child=AnyObjectField(), required=False, help_text="GpuClaim manifests")
    gangs = serializers.ListField(child=AnyObjectField(), required=False, help_text="GpuGang manifests")
    queues = serializers.ListField(child=AnyObjectField(), required=False, help_text="GpuQueue manifests")
    pods = serializers.ListField(child=AnyObjectField(), required=False, help_text="Pod manifests")
    pools = serializers.ListField(
        child=AnyObjectField(), required=False, help_text="`name`, `weight`, `max`, `labels`, `taints`, `node`"
    )
    models = ScenarioModelSchema(many=True, required=False)
    runners = ScenarioRunnerSchema(many=True, required=False)
    requests = ScenarioRequestSchema(many=True, required=False, help_text="in the order of their arrival")
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
    waits_for = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="pods that have to be gone first"
    )
    scaling = serializers.CharField(
        required=False, allow_null=True, help_text="the pool whose new node will serve it; with pools alone"
    )


class SimulatedQuotaSchema(serializers.Serializer[Any]):
    """What a queue has of one group of models, in GPUs."""

    models = serializers.ListField(child=serializers.CharField(), help_text="empty: those that no other quota names")
    deserved = serializers.FloatField()
    limit = serializers.FloatField(allow_null=True)
    fair_share = serializers.FloatField(help_text="before the decisions")
    allocated = serializers.FloatField(help_text="after the decisions")


class SimulationSchema(serializers.Serializer[Any]):
    """Decisions in the order of arrival, and the fleet after the last."""

    decisions = SimulatedDecisionSchema(many=True)
    fleet = serializers.DictField(child=serializers.ListField(child=AnyObjectField()))
    problems = serializers.ListField(child=serializers.CharField(), required=False)
    evictions = serializers.ListField(
        child=AnyObjectField(), required=False, help_text="`pod`, `for` (the workload that takes), `by`"
    )
    queues = serializers.DictField(child=SimulatedQuotaSchema(many=True), required=False)
    slots = SimulatedSlotSchema(
        many=True, required=False, help_text="to start, in the order of planning; where models, runners or requests are"
    )
    requests = SimulatedRequestSchema(many=True, required=False)
    keep_warm = KeepWarmSchema(many=True, required=False)
    estimates = serializers.DictField(child=EstimateSchema(many=True), required=False, help_text="by model")
    scaling = serializers.ListField(
        child=AnyObjectField(), required=False, help_text="`pool`, `gpus`, `pods` of each node to be made"
    )


class ScenarioText(NamedTuple):
    """A body as it came."""

    kind: Kind
    text: bytes


class JsonScenario(BaseParser):
    """`application/json`, left unread."""

    media_type = "application/json"
    kind: Kind = "json"

    @override
    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The bytes and what they are."""
        return ScenarioText(self.kind, stream.read())


class YamlScenario(JsonScenario):
    """`application/yaml`."""

    media_type = "application/yaml"
    kind: Kind = "yaml"


NOTHING = ScenarioText("json", b"null")
"""No body: a scenario of nothing."""


class Simulations(APIView):
    """What-if."""

    parser_classes = (JsonScenario, YamlScenario)
    problems = {
        "422": (
            "the scenario needs more memory than a run may have, or its answer is longer than one may be; "
            "or the Idempotency-Key was used for another request"
        ),
        "429": "a run of this user is under way",
        "503": "as many runs are under way as there may be, or a part that this needs is down; try again",
        "504": "the run was ended at its deadline",
    }

    @extend_schema(
        summary="Run a scenario",
        description=(
            f"Runs in a process of its own: one a user and {RUNS_MOST} in all, each for at most"
            f" {CONFINEMENT.deadline_seconds:g} seconds, with {CONFINEMENT.memory_bytes >> 20} MiB of memory and an"
            f" answer of at most {CONFINEMENT.answer_bytes >> 20} MiB. It ends when the client closes its connection."
        ),
        request=ScenarioSchema,
        responses=SimulationSchema,
    )
    def post(self, request: Request) -> HttpResponse:
        """Decisions and the fleet after them; nothing is kept."""
        scenario = request.data if isinstance(request.data, ScenarioText) else NOTHING
        answer = what_if(
            scenario.text, user=request.user.pk or 0, kind=scenario.kind, form="result", client=client_of(request)
        )
        return HttpResponse(answer, content_type="application/json")

    @extend_schema(
        summary="The fleet as a scenario",
        description=(
            "Nodes, claims, gangs, queues and running pods as they are now, to add pods to and to POST. Of pods in "
            "namespaces that the caller does not see only amounts, queue and age are included."
        ),
        responses=ScenarioSchema,
    )
    def get(self, request: Request) -> HttpResponse:
        """At most as large as a scenario may be."""
        scenario = live_scenario(actor=request_actor(request), limits=LIMITS)
        pools = scenario_pools()
        return Response({**scenario, "pools": pools} if pools else scenario)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """As REST framework's own responses have it: `gpuplane.listeners.django_requests` frees the scenario by it."""
        final: Any = super().finalize_response(request, response, *args, **kwargs)
        final.renderer_context = self.get_renderer_context()
        return final
