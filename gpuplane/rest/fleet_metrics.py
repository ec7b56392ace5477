"""Every GPU and the ledger for Prometheus: `fleet/metrics/`."""

from __future__ import annotations

import time

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from prometheus_client import CONTENT_TYPE_LATEST
from rest_framework.request import Request
from rest_framework.views import APIView

from access.authentication import request_actor
from access.errors import NotAllowed
from allocations.fleet_metrics import fleet_metrics
from allocations.ledger_metrics import ledger_metrics
from gpuplane.relay import connect, relayed
from nodes.live.asked import latest_for


class FleetMetrics(APIView):
    """Gauges of every GPU and of the ledger, in Prometheus' text format."""

    @extend_schema(
        summary="Every GPU for Prometheus",
        description="Names of pods and namespaces are among the labels, so only who sees every namespace may scrape: admins and service accounts. "
        "Figures of GPUs older than 15 seconds are left out. Beside the GPUs: live allocations by state, waiting pods by rule, nodes by state, how long "
        "agents are silent, and what all workers have counted.",
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponse:
        """A dozen queries, whatever the size."""
        if request_actor(request).namespaces is not None:
            raise NotAllowed("only admins and service accounts may scrape the whole fleet")
        samples, now = latest_for(request), time.time()
        told = fleet_metrics(samples=samples, now=now) + ledger_metrics(samples=samples, now=now)
        with connect(settings.GPUPLANE_REDIS_URL) as client:
            told += relayed(client)
        return HttpResponse(told, content_type=CONTENT_TYPE_LATEST)
