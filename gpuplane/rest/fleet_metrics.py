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

from access.choices import TokenScope
from access.errors import NotAllowed
from allocations.publish.fleet_metrics import fleet_metrics
from allocations.publish.ledger_metrics import ledger_metrics
from autoscaling.metrics import growth_metrics
from gpuplane.metrics_relay import relayed
from gpuplane.rest.authentication import request_actor
from inference.metrics import slot_metrics
from nodes.live.reads import latest_samples
from storage.clock import database_now
from storage.redis_client import Purpose, client


class FleetMetrics(APIView):
    """Gauges of every GPU and of the ledger, in Prometheus' text format."""

    machine_scope = {"get": TokenScope.METRICS}

    @extend_schema(
        summary="Every GPU for Prometheus",
        description=(
            "Names of pods and namespaces are among the labels: a token needs the scope `metrics`; a session is an"
            " admin's. Figures of GPUs older than 15 seconds are left out. Beside the GPUs: live allocations by state,"
            " waiting pods by rule, nodes by state, how long agents are silent, slots and waiting inference requests by"
            " model, and what all workers have counted."
        ),
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponse:
        """About twenty queries, whatever the size."""
        actor = request_actor(request)
        if actor.token:
            actor.require_scope(TokenScope.METRICS)
        if actor.namespaces is not None:
            raise NotAllowed("only machine accounts of scope metrics, and admins, may read the whole fleet")
        samples, now = latest_samples(), time.time()
        text = fleet_metrics(samples=samples, now=now) + ledger_metrics(samples=samples, now=now)
        text += growth_metrics() + slot_metrics(now=database_now())
        with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection:
            text += relayed(connection)
        return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)
