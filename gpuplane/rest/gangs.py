"""REST of GpuGangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from allocations.queue_statuses import INVALID, PENDING, PLACED, TIMED_OUT, gang_statuses
from claims.kinds import GANG
from claims.models import GpuGang
from claims.queue_manifests import MEMBERS_MOST, TIMEOUT_MOST
from gpuplane.rest.fields import AnyObjectField, NameFilter, NamespaceFilter, address
from gpuplane.rest.manifests import ManifestViewSet, described, read_schema, write_schema


class GangTopologySchema(serializers.Serializer[Any]):
    """Where the pods stand, by a label of nodes: one of the two."""

    required = serializers.CharField(required=False, max_length=316)  # type: ignore[assignment]  # a field of that name
    preferred = serializers.CharField(required=False, max_length=316)


class GangSpecSchema(serializers.Serializer[Any]):
    """spec."""

    minMember = serializers.IntegerField(min_value=1, max_value=MEMBERS_MOST)  # noqa: N815 - the manifest's name
    # the manifest's name
    timeoutSeconds = serializers.IntegerField(  # noqa: N815 - the manifest's name
        min_value=1, max_value=TIMEOUT_MOST, required=False
    )
    topology = GangTopologySchema(required=False)
    # the manifest's name
    onMemberFailure = serializers.ChoiceField(  # noqa: N815 - the manifest's name
        choices=["none", "evictAll"], required=False
    )


class GangStatusSchema(serializers.Serializer[Any]):
    """status."""

    phase = serializers.ChoiceField(choices=[PENDING, PLACED, TIMED_OUT, INVALID])
    members = serializers.IntegerField(help_text="pods, waiting and running")
    placed = serializers.IntegerField(help_text="pods that hold devices")
    conditions = serializers.ListField(child=AnyObjectField())


class GangFilters(serializers.Serializer[Any]):
    """Query of `gangs/`."""

    namespace = NamespaceFilter()
    name = NameFilter()


GangWriteSchema = write_schema(GANG, GangSpecSchema())
GangSchema = read_schema(GANG, GangStatusSchema())


@described(
    many="Gangs",
    one="a gang",
    address=address("gang"),
    query=GangFilters,
    read=GangSchema,
    write=GangWriteSchema,
    created="In `metadata.namespace`, `default` where it has none.",
    deleted="Its pods that run keep their devices; those that wait, wait for a gang of that name.",
)
class GangViewSet(ManifestViewSet[GpuGang]):
    """GpuGangs of every namespace that the caller sees."""

    kind = GANG
    filters = GangFilters
    queryset = GpuGang.objects.none()

    def statuses(self, rows: Sequence[GpuGang]) -> Mapping[int, Mapping[str, Any]]:
        """Phase, members and what it waits for."""
        return gang_statuses(rows)
