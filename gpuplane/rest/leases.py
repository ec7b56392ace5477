"""REST of leases: `leases/`.

Invariants: a holder in a namespace that the caller does not see is null.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.actors import Actor
from allocations.backends import lease_list
from allocations.leases.port import LeaseView
from allocations.models import Allocation
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import NameFilter, filters
from kube.keys import SHARED_HOLDER


class LeaseSchema(serializers.Serializer[Any]):
    """A lease; names of holders in namespaces that the caller does not see are null."""

    name = serializers.CharField()
    holder_identity = serializers.CharField(allow_null=True)
    node = serializers.CharField(allow_blank=True)
    device_uuid = serializers.CharField(allow_blank=True)
    sharers = serializers.ListField(child=serializers.CharField(allow_null=True))
    acquired_at = serializers.CharField(allow_null=True)


class LeaseFilters(serializers.Serializer[Any]):
    """Query of `leases/`."""

    node = NameFilter()
    device_uuid = serializers.CharField(required=False, max_length=128)


class LeaseViewSet(GenericViewSet[Any]):
    """Leases of every device that is taken."""

    queryset = Allocation.objects.none()
    ordering = ("name",)

    @extend_schema(summary="Leases, by name", parameters=[LeaseFilters], responses=LeaseSchema(many=True))
    def list(self, request: Request) -> Response:
        """Leases that match."""
        columns = filters(LeaseFilters, request).items()
        leases = [lease for lease in lease_list() if all(getattr(lease, name) == value for name, value in columns)]
        page: Any = self.paginate_queryset(leases) or []
        actor = request_actor(request)
        return self.get_paginated_response([lease_row(lease, actor) for lease in page])


def lease_row(lease: LeaseView, actor: Actor) -> dict[str, Any]:
    """A lease as REST shows it to this actor."""
    return {
        "name": lease.name,
        "holder_identity": _shown(lease.holder_identity, actor),
        "node": lease.node,
        "device_uuid": lease.device_uuid,
        "sharers": [_shown(holder, actor) for holder in lease.sharers],
        "acquired_at": lease.acquired_at,
    }


def _shown(holder: str, actor: Actor) -> str | None:
    """`<namespace>/<pod>/<uid>`, None where the namespace is not seen."""
    return holder if holder == SHARED_HOLDER or actor.sees(holder.partition("/")[0]) else None
