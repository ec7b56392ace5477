"""REST of reservations: the groups of GPUs behind reservation pods, on nodes in mode device-plugin.

Everybody who is signed in sees them, as devices; of sharers only those that the caller may see, the others are counted.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from allocations.choices import GroupState, State
from allocations.models import GpuGroup
from allocations.reservation_overviews import GroupGpu, GroupView, group_get, group_list, group_views
from gpuplane.fresh_samples import fresh_samples
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import NameFilter, filters

NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the group")


class ReservationPodSchema(serializers.Serializer[Any]):
    """The reservation pod."""

    namespace = serializers.CharField()
    name = serializers.CharField()
    uid = serializers.CharField(allow_null=True, help_text="null: it is not made yet, or it is gone")


class SharerSchema(serializers.Serializer[Any]):
    """An allocation that has a part of the GPUs, or all of them."""

    uid = serializers.UUIDField(help_text="of the allocation")
    namespace = serializers.CharField()
    pod = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=State.values)
    core = serializers.IntegerField(help_text="percent of a GPU, over all GPUs of the group")
    memory = serializers.IntegerField(help_text="bytes, over all GPUs of the group")


class GpuMemorySchema(serializers.Serializer[Any]):
    """Memory of one GPU of the group, in bytes."""

    uuid = serializers.CharField(allow_null=True, help_text="null until the reservation pod has told it")
    allocated = serializers.IntegerField(help_text="by the ledger")
    used = serializers.IntegerField(allow_null=True, help_text="as measured; null where that is not known now")
    releasing = serializers.IntegerField(help_text="of what is allocated: its holders are being released")
    total = serializers.IntegerField()


class ReservationSchema(serializers.Serializer[Any]):
    """A group of GPUs that a reservation pod has."""

    name = serializers.CharField(help_text="value of the label runai-gpu-group")
    node = serializers.CharField()
    state = serializers.ChoiceField(choices=GroupState.values)
    device = serializers.ListField(
        child=serializers.CharField(), help_text="UUIDs; empty until the reservation pod has told them"
    )
    gpus = serializers.IntegerField(help_text="how many GPUs the reservation pod asks for")
    shared = serializers.BooleanField(help_text="its GPU takes sharers; false: all GPUs are one holder's")
    pod = ReservationPodSchema()
    sharers = SharerSchema(many=True)
    sharers_hidden = serializers.IntegerField(help_text="sharers in namespaces that the caller does not see")
    memory = GpuMemorySchema(many=True)
    reason = serializers.CharField(allow_blank=True, help_text="why it is in this state")
    since = serializers.DateTimeField(help_text="when it last changed")
    retries = serializers.IntegerField(help_text="reservation pods in vain since it was ready last")
    retry_at = serializers.DateTimeField(
        allow_null=True, help_text="of an unprotected group: when the next reservation pod is made; null: at once"
    )


class ReservationFilters(serializers.Serializer[Any]):
    """Query of `reservations/`."""

    node = NameFilter("node__name")
    state = serializers.ChoiceField(choices=GroupState.choices, required=False)


@extend_schema_view(
    list=extend_schema(
        summary="Groups of GPUs behind reservation pods, the oldest first",
        description="A group that is gone is listed for an hour.",
        parameters=[ReservationFilters],
        responses=ReservationSchema(many=True),
    ),
    retrieve=extend_schema(summary="One group", parameters=[NAME], responses=ReservationSchema),
)
class ReservationViewSet(GenericViewSet[GpuGroup]):
    """Groups of all nodes."""

    queryset = GpuGroup.objects.none()
    ordering = ("created_at", "id")

    def list(self, request: Request) -> Response:
        """Groups that match."""
        page = self.paginate_queryset(group_list().filter(**filters(ReservationFilters, request))) or []
        return self.get_paginated_response(_rows(page, request))

    def retrieve(self, request: Request, name: str) -> Response:
        """One group."""
        (row,) = _rows([group_get(name)], request)
        return Response(row)


def _rows(groups: list[GpuGroup], request: Request) -> list[dict[str, Any]]:
    views = group_views(groups, actor=request_actor(request), samples=fresh_samples())
    return [reservation_row(view) for view in views]


def reservation_row(view: GroupView) -> dict[str, Any]:
    """A group as REST shows it. Core in percent, memory in bytes."""
    group = view.group
    return {
        "name": group.name,
        "node": group.node.name,
        "state": group.state,
        "device": group.uuids,
        "gpus": group.gpus,
        "shared": group.shared,
        "pod": {"namespace": group.pod_namespace, "name": group.pod_name, "uid": group.pod_uid or None},
        "sharers": [
            {
                "uid": str(sharer.allocation.pk),
                "namespace": sharer.allocation.namespace,
                "pod": sharer.allocation.pod_name,
                "state": sharer.allocation.state,
                "core": sharer.core_percent,
                "memory": sharer.memory_bytes,
            }
            for sharer in view.sharers
        ],
        "sharers_hidden": view.hidden,
        "memory": [_memory(gpu) for gpu in view.gpus],
        "reason": group.reason,
        "since": view.since,
        "retries": group.retries,
        "retry_at": group.retry_at,
    }


def _memory(gpu: GroupGpu) -> dict[str, Any]:
    memory = gpu.memory
    return {
        "uuid": gpu.device.uuid if gpu.told else None,
        "allocated": memory.allocated,
        "used": memory.used,
        "releasing": memory.releasing,
        "total": memory.total,
    }
