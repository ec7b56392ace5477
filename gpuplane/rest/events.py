"""REST of what happened: `events/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from audit.choices import EventKind
from audit.models import Event
from audit.selectors import event_list
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import NameFilter, NamespaceFilter, filters

FAMILY_PATTERN = r"^[a-z][a-z-]*\.([a-z-]+)?$"


class EventSchema(serializers.Serializer[Any]):
    """One thing that happened."""

    uid = serializers.CharField(help_text="only ever grows")
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=EventKind.values)
    actor = serializers.CharField()
    namespace = serializers.CharField(allow_blank=True)
    name = serializers.CharField(allow_blank=True)
    node = serializers.CharField(allow_blank=True)
    claim = serializers.CharField(allow_blank=True)
    allocation = serializers.UUIDField(allow_null=True)
    message = serializers.CharField()
    data = serializers.DictField(child=serializers.JSONField())  # type: ignore[assignment]  # a field, not the property
    other = serializers.CharField(
        allow_blank=True,
        help_text="who else is concerned, such as the holder of a lease; empty where you do not see them",
    )


class EventFilters(serializers.Serializer[Any]):
    """Query of `events/`."""

    kind = serializers.RegexField(
        FAMILY_PATTERN, required=False, max_length=48, help_text="a kind, or a family such as `claim.`"
    )
    actor = serializers.CharField(source="by", required=False, max_length=150)
    namespace = NamespaceFilter()
    name = NameFilter()
    node = NameFilter()
    claim = NameFilter()
    allocation = serializers.UUIDField(required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)


class EventViewSet(GenericViewSet[Event]):
    """Events that the caller may read."""

    queryset = Event.objects.none()
    ordering = ("-id",)

    @extend_schema(summary="Events, the newest first", parameters=[EventFilters], responses=EventSchema(many=True))
    def list(self, request: Request) -> Response:
        """Events that match."""
        events = event_list(actor=request_actor(request), **filters(EventFilters, request))
        page = self.paginate_queryset(events) or []
        return self.get_paginated_response([event_row(event) for event in page])


def event_row(event: Any) -> dict[str, Any]:
    """An event of `event_list` as REST shows it."""
    return {
        "uid": str(event.pk),
        "at": event.at,
        "kind": event.kind,
        "actor": event.actor,
        "namespace": event.namespace,
        "name": event.name,
        "node": event.node,
        "claim": event.claim,
        "allocation": event.allocation_id and str(event.allocation_id),
        "message": event.message,
        "data": event.data,
        "other": event.named,
    }
