"""REST of pods that wait: `pods/`.

Invariants: pods of namespaces that the caller does not see are left out.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from allocations.models import PodRefusal
from allocations.selectors import waiting_pods
from allocations.waiting import DEFAULT_SCHEDULER
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import NameFilter, NamespaceFilter, filters


class ReasonSchema(serializers.Serializer[Any]):
    """A reason, and how many nodes gave it."""

    reason = serializers.CharField()
    nodes = serializers.IntegerField()


class SchedulerSchema(serializers.Serializer[Any]):
    """What the pod's scheduler says beside us."""

    name = serializers.CharField()
    message = serializers.CharField(allow_blank=True, help_text="of the condition PodScheduled")
    refused = serializers.IntegerField(help_text="times that it asked us and was refused; 0: it never asked")


class PendingPodSchema(serializers.Serializer[Any]):
    """A pod that asks for devices and waits."""

    uid = serializers.CharField()
    namespace = serializers.CharField()
    pod = serializers.CharField()
    claim = serializers.CharField(allow_blank=True)
    rule = serializers.CharField(
        allow_blank=True,
        help_text=(
            "which rule the pod breaks; `gated`, `other-scheduler` or `not-asked` where it waits for somebody else; "
            "empty where no node has the devices"
        ),
    )
    summary = serializers.CharField(allow_blank=True)
    reasons = ReasonSchema(many=True)
    scheduler = SchedulerSchema()
    since = serializers.DateTimeField()


class PendingFilters(serializers.Serializer[Any]):
    """Query of `pods/`."""

    namespace = NamespaceFilter()
    claim = NameFilter("claim_name")


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
        pods = waiting_pods(actor=request_actor(request)).filter(**filters(PendingFilters, request))
        page = self.paginate_queryset(pods) or []
        return self.get_paginated_response([pending_row(pod) for pod in page])


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
