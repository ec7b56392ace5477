"""Every GPU for Prometheus: `fleet/metrics/`."""

from __future__ import annotations

import time

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from prometheus_client import CONTENT_TYPE_LATEST
from rest_framework.request import Request
from rest_framework.views import APIView

from access.authentication import request_actor
from access.errors import NotAllowed
from allocations.fleet_metrics import fleet_metrics
from nodes.live.asked import latest_for


class FleetMetrics(APIView):
    """Gauges of every GPU, in Prometheus' text format."""

    @extend_schema(
        summary="Every GPU for Prometheus",
        description="Names of pods and namespaces are among the labels, so only who sees every namespace may scrape: admins and service accounts. "
        "Figures older than 15 seconds are left out.",
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponse:
        """Two queries, whatever the size."""
        if request_actor(request).namespaces is not None:
            raise NotAllowed("only admins and service accounts may scrape the whole fleet")
        return HttpResponse(
            fleet_metrics(samples=latest_for(request), now=time.time()), content_type=CONTENT_TYPE_LATEST
        )
