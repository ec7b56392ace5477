"""REST of inference: `models/`, `runners/`, `slots/`, `requests/` (also called `workloads/`).

Everybody reads; admins write models, operators stop slots. Whose a request is, is shown to its owner and to admins.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.actors import Actor
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import AnyObjectField, NameFilter, filters
from gpuplane.rest.inference_schema import KV_TYPES, RUNTIMES, ModelWriteSchema
from inference.choices import RequestState, RunnerState, State
from inference.gguf_headers import estimates_of
from inference.model_fields import shown_fields
from inference.models import Model, Runner, Slot
from inference.models import Request as InferenceRequest
from inference.runner_logs import shown_log
from inference.selectors import (
    model_get,
    model_list,
    owner_shown,
    request_get,
    request_list,
    runner_get,
    runner_list,
    slot_get,
    slot_list,
)
from inference.services import model_create, model_delete, model_patch, model_replace, slot_stop
from storage.clock import database_now

MODEL_NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the model; it may have slashes")
NODE = OpenApiParameter("node", str, OpenApiParameter.PATH, description="name of the runner's node")
SLOT_ID = OpenApiParameter("slot_id", str, OpenApiParameter.PATH, description="id of the slot")
REQUEST_ID = OpenApiParameter("uid", UUID, OpenApiParameter.PATH, description="`X-Request-Id` of the request")


class ModelSchema(serializers.Serializer[Any]):
    """A model: what was written, and how it stands."""

    name = serializers.CharField()
    runtime = serializers.ChoiceField(choices=RUNTIMES)
    source = serializers.CharField(required=False)  # type: ignore[assignment]  # the model's word, as Field's own
    memory = serializers.IntegerField(required=False, help_text="bytes on one GPU")
    memoryPerGpu = AnyObjectField(required=False, help_text="number of GPUs → bytes on each")  # noqa: N815 - the scenario's name
    parallel = serializers.IntegerField()
    contextLength = serializers.IntegerField(required=False)  # noqa: N815 - the scenario's name
    kvType = serializers.ChoiceField(choices=KV_TYPES)  # noqa: N815 - the scenario's name
    gguf = serializers.CharField(required=False)
    heads = serializers.IntegerField(required=False)
    gpuCounts = serializers.ListField(child=serializers.IntegerField(), required=False)  # noqa: N815 - the scenario's name
    idleSeconds = serializers.IntegerField(required=False)  # noqa: N815 - the scenario's name
    keepWarm = serializers.IntegerField(required=False)  # noqa: N815 - the scenario's name
    args = serializers.ListField(child=serializers.CharField(), required=False)
    selector = serializers.DictField(child=serializers.CharField(), required=False)
    image = serializers.CharField(required=False)
    revision = serializers.IntegerField(help_text="raised by a change that slots are started anew for")
    estimates = AnyObjectField(help_text="number of GPUs → bytes on each, by the file's header")
    slots = serializers.IntegerField(help_text="that hold memory, or wait for it")
    ready = serializers.IntegerField(help_text="of them")
    lacking = serializers.IntegerField(help_text="slots that keepWarm lacks and that have no place")
    reason = serializers.CharField(allow_blank=True, help_text="why they have none")
    created_at = serializers.DateTimeField()
    changed_at = serializers.DateTimeField()


class RunnerSchema(serializers.Serializer[Any]):
    """A runner."""

    node = serializers.CharField()
    state = serializers.ChoiceField(choices=RunnerState.values)
    version = serializers.CharField(allow_blank=True)
    address = serializers.CharField(allow_blank=True)
    runtimes = serializers.ListField(child=serializers.CharField())
    models = serializers.ListField(child=serializers.CharField(), help_text="on its disk")
    slots = serializers.IntegerField(help_text="that hold memory, or wait for it")
    seen_at = serializers.DateTimeField()
    registered_at = serializers.DateTimeField()


class SlotSchema(serializers.Serializer[Any]):
    """A slot."""

    id = serializers.CharField()
    model = serializers.CharField()
    lora = serializers.CharField(allow_blank=True)
    runner = serializers.CharField(help_text="name of its node")
    gpus = serializers.ListField(child=serializers.IntegerField(), help_text="minors")
    memory = serializers.ListField(child=serializers.IntegerField(), help_text="bytes on each of them")
    allocation = serializers.UUIDField(allow_null=True, help_text="in the ledger; null: it holds nothing yet")
    pod = serializers.CharField(allow_blank=True, help_text="its name; empty: a runner starts the slot")
    evicts = serializers.ListField(child=serializers.CharField(), help_text="slots that went for it")
    state = serializers.ChoiceField(choices=State.values)
    address = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    active = serializers.IntegerField(help_text="requests that it runs")
    attempt = serializers.IntegerField()
    planned_at = serializers.DateTimeField()
    starting_at = serializers.DateTimeField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    draining_at = serializers.DateTimeField(allow_null=True)
    failed_at = serializers.DateTimeField(allow_null=True)
    stopped_at = serializers.DateTimeField(allow_null=True)


class SlotWithLogSchema(SlotSchema):
    """A slot with what it wrote."""

    log_tail = serializers.CharField(
        allow_blank=True,
        help_text="what its process wrote last; of one that runs it is asked of its runner, and empty for a moment",
    )


class InferenceRequestSchema(serializers.Serializer[Any]):
    """An inference request."""

    id = serializers.UUIDField()
    model = serializers.CharField()
    lora = serializers.CharField(allow_blank=True)
    priority = serializers.IntegerField()
    user = serializers.CharField(allow_null=True, help_text="whose it is, for that account and for admins")
    slot = serializers.CharField(allow_null=True, help_text="that runs it, or that it waits for")
    state = serializers.ChoiceField(choices=RequestState.values)
    reason = serializers.CharField(allow_blank=True)
    arrived_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    first_byte_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    tokens = serializers.IntegerField()


class RunnerFilters(serializers.Serializer[Any]):
    """Query of `runners/`."""

    state = serializers.ChoiceField(choices=RunnerState.choices, required=False)


class SlotFilters(serializers.Serializer[Any]):
    """Query of `slots/`."""

    model = NameFilter("model_name")
    runner = NameFilter("node")
    state = serializers.ChoiceField(choices=State.choices, required=False)


class RequestFilters(serializers.Serializer[Any]):
    """Query of `requests/`."""

    model = NameFilter("model_name")
    slot = NameFilter("slot_id")
    state = serializers.ChoiceField(choices=RequestState.choices, required=False)


@extend_schema_view(
    list=extend_schema(summary="Models, by name", responses=ModelSchema(many=True)),
    create=extend_schema(summary="Create a model", request=ModelWriteSchema, responses={201: ModelSchema}),
    retrieve=extend_schema(summary="One model", parameters=[MODEL_NAME], responses=ModelSchema),
    update=extend_schema(
        summary="Replace a model",
        description="A change of more than idleSeconds and keepWarm has its slots started anew, one after the other "
        "as they have no request.",
        parameters=[MODEL_NAME],
        request=ModelWriteSchema,
        responses=ModelSchema,
    ),
    partial_update=extend_schema(
        summary="Change a model",
        description="A JSON merge patch (RFC 7386); null removes.",
        parameters=[MODEL_NAME],
        request=AnyObjectField,
        responses=ModelSchema,
    ),
    destroy=extend_schema(
        summary="Delete a model",
        description="Its slots go once they have no request.",
        parameters=[MODEL_NAME],
        responses={204: None},
    ),
)
class ModelViewSet(GenericViewSet[Model]):
    """Models; admins write."""

    queryset = Model.objects.none()
    ordering = ("name",)

    def list(self, _request: Request) -> Response:
        """All."""
        page = self.paginate_queryset(model_list()) or []
        return self.get_paginated_response([model_row(model) for model in page])

    def create(self, request: Request) -> Response:
        """A new one."""
        model = model_create(body=request.data, actor=request_actor(request), now=database_now())
        return Response(model_row(model_get(model.name)), status=201)

    def retrieve(self, _request: Request, name: str) -> Response:
        """One."""
        return Response(model_row(model_get(name)))

    def update(self, request: Request, name: str) -> Response:
        """Replace it."""
        model_replace(name=name, body=request.data, actor=request_actor(request), now=database_now())
        return Response(model_row(model_get(name)))

    def partial_update(self, request: Request, name: str) -> Response:
        """Change it."""
        model_patch(name=name, patch=request.data, actor=request_actor(request), now=database_now())
        return Response(model_row(model_get(name)))

    def destroy(self, request: Request, name: str) -> Response:
        """Delete it."""
        model_delete(name=name, actor=request_actor(request), now=database_now())
        return Response(status=204)


@extend_schema_view(
    list=extend_schema(summary="Runners, by node", parameters=[RunnerFilters], responses=RunnerSchema(many=True)),
    retrieve=extend_schema(summary="One runner", parameters=[NODE], responses=RunnerSchema),
)
class RunnerViewSet(GenericViewSet[Runner]):
    """Runners."""

    queryset = Runner.objects.none()
    ordering = ("node__name",)

    def list(self, request: Request) -> Response:
        """Those that match."""
        page = self.paginate_queryset(runner_list().filter(**filters(RunnerFilters, request))) or []
        return self.get_paginated_response([runner_row(runner) for runner in page])

    def retrieve(self, _request: Request, node: str) -> Response:
        """One."""
        return Response(runner_row(runner_get(node)))


@extend_schema_view(
    list=extend_schema(summary="Slots, the newest first", parameters=[SlotFilters], responses=SlotSchema(many=True)),
    retrieve=extend_schema(summary="One slot", parameters=[SLOT_ID], responses=SlotWithLogSchema),
    destroy=extend_schema(
        summary="Stop a slot",
        description="It takes no new request, and goes once it has none. Where it is needed, another one is planned. "
        "409 for one that is going.",
        parameters=[SLOT_ID],
        responses={204: None},
    ),
)
class SlotViewSet(GenericViewSet[Slot]):
    """Slots; operators stop them."""

    queryset = Slot.objects.none()
    ordering = ("-planned_at", "-id")

    def list(self, request: Request) -> Response:
        """Those that match."""
        page = self.paginate_queryset(slot_list().filter(**filters(SlotFilters, request))) or []
        return self.get_paginated_response([slot_row(slot) for slot in page])

    def retrieve(self, _request: Request, slot_id: str) -> Response:
        """One."""
        slot = slot_get(slot_id)
        return Response({**slot_row(slot), "log_tail": shown_log(slot)})

    def destroy(self, request: Request, slot_id: str) -> Response:
        """Stop it."""
        slot_stop(slot=slot_get(slot_id), actor=request_actor(request), now=database_now())
        return Response(status=204)


@extend_schema_view(
    list=extend_schema(
        summary="Inference requests, the newest first",
        description="`workloads/` is another name of it. Ended ones are kept for two days.",
        parameters=[RequestFilters],
        responses=InferenceRequestSchema(many=True),
    ),
    retrieve=extend_schema(summary="One inference request", parameters=[REQUEST_ID], responses=InferenceRequestSchema),
)
class InferenceRequestViewSet(GenericViewSet[InferenceRequest]):
    """Requests."""

    queryset = InferenceRequest.objects.none()
    ordering = ("-arrived_at", "-id")

    def list(self, request: Request) -> Response:
        """Those that match."""
        page = self.paginate_queryset(request_list().filter(**filters(RequestFilters, request))) or []
        actor = request_actor(request)
        return self.get_paginated_response([request_row(one, actor) for one in page])

    def retrieve(self, request: Request, uid: UUID) -> Response:
        """One."""
        return Response(request_row(request_get(uid), request_actor(request)))


def model_row(model: Model) -> dict[str, Any]:
    """A model as REST shows it; of `model_list`."""
    estimates, _ = estimates_of(model)
    return {
        **shown_fields(model),
        "revision": model.revision,
        "estimates": {str(count): list(amounts) for count, amounts in estimates.items()},
        "slots": getattr(model, "slots_live", 0),
        "ready": getattr(model, "slots_ready", 0),
        "lacking": model.lacking,
        "reason": model.reason,
        "created_at": model.created_at,
        "changed_at": model.changed_at,
    }


def runner_row(runner: Runner) -> dict[str, Any]:
    """A runner as REST shows it; of `runner_list`."""
    columns = {name: getattr(runner, name) for name in ("state", "version", "address", "runtimes")}
    return {
        **columns,
        "node": runner.node.name,
        "models": runner.models_on_disk,
        "slots": getattr(runner, "slots_live", 0),
        "seen_at": runner.seen_at,
        "registered_at": runner.registered_at,
    }


_OTHERWISE = {
    "model": "model_name",
    "runner": "node",
    "allocation": "allocation_id",
    "slot": "slot_id",
    "pod": "pod_name",
}
"""Names of columns where REST's name is another."""


def slot_row(slot: Slot) -> dict[str, Any]:
    """A slot as REST shows it, without its log."""
    return {name: getattr(slot, _OTHERWISE.get(name, name)) for name in map(str, SlotSchema().fields)}


def request_row(request: InferenceRequest, actor: Actor) -> dict[str, Any]:
    """A request as REST shows it to this caller."""
    names = [name for name in map(str, InferenceRequestSchema().fields) if name != "user"]
    columns = {name: getattr(request, _OTHERWISE.get(name, name)) for name in names}
    return {**columns, "user": owner_shown(request, actor)}
