"""REST of GpuQueues. Everybody reads them; admins write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from allocations.queue_statuses import queue_statuses
from claims.kinds import QUEUE
from claims.models import GpuQueue
from claims.queue_manifests import AMOUNT_MOST
from gpuplane.rest.fields import LABEL_PATTERN, AnyObjectField, NameFilter
from gpuplane.rest.manifests import ManifestViewSet, described, read_schema, write_schema


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
    parent = serializers.CharField(required=False, max_length=253, allow_null=True)  # type: ignore[assignment]
    namespaces = serializers.ListField(
        child=serializers.RegexField(LABEL_PATTERN, max_length=63), required=False, max_length=1_000
    )
    priority = serializers.IntegerField(min_value=-(2**31), max_value=2**31 - 1, required=False)
    # the manifest's name
    queueingStrategy = serializers.ChoiceField(choices=["BestEffortFIFO", "StrictFIFO"], required=False)  # noqa: N815
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
