"""REST of GpuQueues. Everybody reads them; admins write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from allocations.queue_statuses import queue_statuses
from allocations.queue_usage.amounts import Use
from allocations.queue_usage.reading import COLUMNS, HEADINGS, usage_report
from claims.kinds import QUEUE
from claims.models import GpuQueue
from claims.queue_manifests import AMOUNT_MOST
from gpuplane.csv_files import csv_response
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import LABEL_PATTERN, AnyObjectField, NameFilter, checked
from gpuplane.rest.history import times
from gpuplane.rest.manifests import ManifestViewSet, described, read_schema, write_schema

USUAL = timedelta(days=7)


class QuotaSchema(serializers.Serializer[Any]):
    """What the queue is due of these models, in GPUs."""

    models = serializers.ListField(
        child=serializers.CharField(max_length=128), required=False, max_length=64, help_text="none: every other model"
    )
    deserved = serializers.FloatField(min_value=0, max_value=AMOUNT_MOST, required=False)
    limit = serializers.FloatField(min_value=0, max_value=AMOUNT_MOST, required=False, allow_null=True)
    weight = serializers.FloatField(min_value=0, max_value=AMOUNT_MOST, required=False)


class QueueSpecSchema(serializers.Serializer[Any]):
    """spec."""

    # Field has an attribute of this name, which means another thing
    parent = serializers.CharField(  # type: ignore[assignment]  # a field of that name, as declared
        required=False, max_length=253, allow_null=True
    )
    namespaces = serializers.ListField(
        child=serializers.RegexField(LABEL_PATTERN, max_length=63), required=False, max_length=1_000
    )
    priority = serializers.IntegerField(min_value=-(2**31), max_value=2**31 - 1, required=False)
    # the manifest's name
    queueingStrategy = serializers.ChoiceField(  # noqa: N815 - the manifest's name
        choices=["BestEffortFIFO", "StrictFIFO"], required=False
    )
    quotas = QuotaSchema(many=True, required=False)


class QuotaStatusSchema(QuotaSchema):
    """The same, and where it stands."""

    fairShare = serializers.FloatField()  # noqa: N815 - the manifest's name
    allocated = serializers.FloatField()


class QueueStatusSchema(serializers.Serializer[Any]):
    """status, as of the last decision."""

    waiting = serializers.IntegerField(help_text="workloads that wait in it, and in queues below it")
    summary = serializers.CharField(allow_blank=True, help_text="allocated of fair share, by quota")
    quotas = QuotaStatusSchema(many=True)
    conditions = serializers.ListField(child=AnyObjectField())


class QueueFilters(serializers.Serializer[Any]):
    """Query of `queues/`."""

    name = NameFilter()


class UsageFilters(serializers.Serializer[Any]):
    """Which hours."""

    since = serializers.DateTimeField(required=False, help_text="7 days before `to` unless given")
    until = serializers.DateTimeField(required=False, help_text="now unless given")
    format = serializers.ChoiceField(choices=["json", "csv"], required=False, default="json")

    def get_fields(self) -> dict[str, Any]:
        """`from` is a word of Python."""
        fields = super().get_fields()
        return {"from": fields["since"], "to": fields["until"], "format": fields["format"]}


class UseSchema(serializers.Serializer[Any]):
    """GPU-hours."""

    held = serializers.FloatField()
    measured = serializers.FloatField(help_text="held while the utilisation was known")
    used = serializers.FloatField(help_text="measured times the utilisation")
    borrowed = serializers.FloatField(help_text="held above what the queue deserves")
    lent = serializers.FloatField(help_text="deserved, and held by queues beside it")


class UsageRowSchema(UseSchema):
    """Of one namespace and model."""

    namespace = serializers.CharField(
        allow_null=True, allow_blank=True, help_text="empty: what was lent; null: all that the caller does not see"
    )
    model = serializers.CharField(allow_blank=True)


UsageSchema = type(
    "QueueUsageSchema",
    (serializers.Serializer,),
    {
        "__doc__": "What a queue and those below it held and used.",
        "queue": serializers.CharField(),
        "from": serializers.DateTimeField(help_text="of the first hour"),
        "to": serializers.DateTimeField(help_text="end of the last hour"),
        "total": UseSchema(),
        "rows": UsageRowSchema(many=True),
    },
)

QueueWriteSchema = write_schema(QUEUE, QueueSpecSchema())
QueueSchema = read_schema(QUEUE, QueueStatusSchema())


@described(
    many="Queues",
    one="a queue",
    address=[OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the queue")],
    query=QueueFilters,
    read=QueueSchema,
    write=QueueWriteSchema,
    deleted="Its pods go on in the queue `default`. A queue with others below it stays: 409.",
)
class QueueViewSet(ManifestViewSet[GpuQueue]):
    """GpuQueues."""

    kind = QUEUE
    filters = QueueFilters
    queryset = GpuQueue.objects.none()

    def statuses(self, rows: Sequence[GpuQueue]) -> Mapping[int, Mapping[str, Any]]:
        """Amounts and workloads that wait."""
        return queue_statuses(rows)


class QueueUsage(APIView):
    """Chargeback."""

    @extend_schema(
        summary="What a queue held, used, borrowed and lent, by namespace and model",
        parameters=[
            UsageFilters,
            OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the queue"),
        ],
        responses={(200, "application/json"): UsageSchema, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """GPU-hours, by whole hours. A minute counts some seconds after it is over."""
        filters = checked(UsageFilters, request.query_params)
        since, until = times(filters.get("from"), filters.get("to"), usual=USUAL, names=("from", "to"))
        report = usage_report(since=since, until=until, actor=request_actor(request), queue=name)
        if filters["format"] == "csv":
            return csv_response([HEADINGS, *(row.cells() for row in report.rows)], "queue-usage.csv")
        rows = [{"namespace": row.namespace, "model": row.model, **_amounts(row.use)} for row in report.rows]
        return Response(
            {"queue": name, "from": report.since, "to": report.until, "total": _amounts(report.total), "rows": rows}
        )


def _amounts(use: Use) -> dict[str, float]:
    return {column: round(getattr(use, column), 4) for column in COLUMNS}
