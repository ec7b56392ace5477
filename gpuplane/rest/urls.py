"""Every address under `/api/`. Mounted by `gpuplane.urls`."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, include, path, re_path
from django.urls.exceptions import Resolver404
from django.urls.resolvers import get_resolver
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.views import APIView
from typing_extensions import override

from access.errors import NotFound
from gpuplane.rest.accounts import AccountViewSet, TeamViewSet
from gpuplane.rest.allocations import AllocationResize, AllocationViewSet, ClaimRenew
from gpuplane.rest.claims import ClaimViewSet
from gpuplane.rest.devices import DeviceViewSet
from gpuplane.rest.events import EventViewSet
from gpuplane.rest.explanations import ClaimExplain, PodExplain
from gpuplane.rest.fleet_metrics import FleetMetrics
from gpuplane.rest.gangs import GangViewSet
from gpuplane.rest.gguf_headers import GgufHeaders
from gpuplane.rest.history import DeviceHistory, FleetHistory
from gpuplane.rest.idempotency import View, bounded, idempotent
from gpuplane.rest.inference import InferenceRequestViewSet, ModelViewSet, RunnerViewSet, SlotViewSet
from gpuplane.rest.leases import LeaseViewSet
from gpuplane.rest.nodes import NodeViewSet
from gpuplane.rest.pending import PendingPodViewSet
from gpuplane.rest.queues import QueueUsage, QueueViewSet
from gpuplane.rest.reservations import ReservationViewSet
from gpuplane.rest.scaling import NodeClaimViewSet, PoolViewSet, ScalingRequestViewSet
from gpuplane.rest.simulations import Simulations
from gpuplane.rest.summary import FleetSummary
from gpuplane.rest.tokens import TokenViewSet


def at(route: str, view: View, name: str, *, repeatable: bool = False) -> URLPattern:
    """An address with bounded bodies and Idempotency-Key. `repeatable`: its POST changes nothing."""
    return path(route, bounded(idempotent(view, repeatable=repeatable)), name=name)


COLLECTION: Final[dict[str, Any]] = {"get": "list", "post": "create"}
OBJECT: Final[dict[str, Any]] = {"get": "retrieve", "put": "update", "patch": "partial_update", "delete": "destroy"}
"""Methods of manifests, by HTTP verb."""
PATCHED: Final[dict[str, Any]] = {verb: method for verb, method in OBJECT.items() if verb != "put"}

resources = [
    at("nodes/", NodeViewSet.as_view({"get": "list"}), "nodes"),
    at("nodes/<str:name>/", NodeViewSet.as_view({"get": "retrieve", "delete": "destroy"}), "node"),
    at("nodes/<str:name>/inventory/", NodeViewSet.as_view({"put": "inventory"}), "node-inventory"),
    at("devices/", DeviceViewSet.as_view({"get": "list"}), "devices"),
    at("claims/", ClaimViewSet.as_view(COLLECTION), "claims"),
    at("claims/<str:namespace>/<str:name>/", ClaimViewSet.as_view(OBJECT), "claim"),
    at("claims/<str:namespace>/<str:name>/explain/", ClaimExplain.as_view(), "claim-explain"),
    at("claims/<str:namespace>/<str:name>/renew/", ClaimRenew.as_view(), "claim-renew"),
    at("gangs/", GangViewSet.as_view(COLLECTION), "gangs"),
    at("gangs/<str:namespace>/<str:name>/", GangViewSet.as_view(OBJECT), "gang"),
    at("queues/", QueueViewSet.as_view(COLLECTION), "queues"),
    at("queues/<str:name>/usage/", QueueUsage.as_view(), "queue-usage"),
    at("queues/<str:name>/", QueueViewSet.as_view(OBJECT), "queue"),
    at("pods/", PendingPodViewSet.as_view({"get": "list"}), "pods"),
    at("pods/<str:namespace>/<str:name>/explain/", PodExplain.as_view(), "pod-explain"),
    at("allocations/", AllocationViewSet.as_view({"get": "list", "post": "create"}), "allocations"),
    at("allocations/<uuid:uid>/resize/", AllocationResize.as_view(), "allocation-resize"),
    at("allocations/<uuid:uid>/", AllocationViewSet.as_view({"get": "retrieve", "delete": "destroy"}), "allocation"),
    at("pools/", PoolViewSet.as_view({"get": "list"}), "pools"),
    at("pools/<str:name>/", PoolViewSet.as_view({"get": "retrieve", "put": "update"}), "pool"),
    at("scaling-requests/", ScalingRequestViewSet.as_view({"get": "list"}), "scaling-requests"),
    at(
        "scaling-requests/<int:pk>/",
        ScalingRequestViewSet.as_view({"get": "retrieve", "delete": "destroy"}),
        "scaling-request",
    ),
    at("node-claims/", NodeClaimViewSet.as_view({"get": "list"}), "node-claims"),
    at("models/", ModelViewSet.as_view(COLLECTION), "models"),
    at("models/<path:name>/", ModelViewSet.as_view(OBJECT), "model"),
    at("gguf-headers/", GgufHeaders.as_view(), "gguf-headers"),
    at("runners/", RunnerViewSet.as_view({"get": "list"}), "runners"),
    at("runners/<str:node>/", RunnerViewSet.as_view({"get": "retrieve"}), "runner"),
    at("slots/", SlotViewSet.as_view({"get": "list"}), "slots"),
    at("slots/<str:slot_id>/", SlotViewSet.as_view({"get": "retrieve", "delete": "destroy"}), "slot"),
    at("requests/", InferenceRequestViewSet.as_view({"get": "list"}), "requests"),
    at("requests/<uuid:uid>/", InferenceRequestViewSet.as_view({"get": "retrieve"}), "request"),
    at("workloads/", InferenceRequestViewSet.as_view({"get": "list"}), "workloads"),
    at("workloads/<uuid:uid>/", InferenceRequestViewSet.as_view({"get": "retrieve"}), "workload"),
    at("leases/", LeaseViewSet.as_view({"get": "list"}), "leases"),
    at("reservations/", ReservationViewSet.as_view({"get": "list"}), "reservations"),
    at("reservations/<str:name>/", ReservationViewSet.as_view({"get": "retrieve"}), "reservation"),
    at("events/", EventViewSet.as_view({"get": "list"}), "events"),
    at("simulations/", Simulations.as_view(), "simulations", repeatable=True),
    at("fleet/summary/", FleetSummary.as_view(), "fleet-summary"),
    at("devices/<str:uuid>/history/", DeviceHistory.as_view(), "device-history"),
    at("fleet/history/", FleetHistory.as_view(), "fleet-history"),
    at("fleet/metrics/", FleetMetrics.as_view(), "fleet-metrics"),
    at("accounts/", AccountViewSet.as_view(COLLECTION), "accounts"),
    at("accounts/<str:username>/", AccountViewSet.as_view(PATCHED), "account"),
    at("teams/", TeamViewSet.as_view(COLLECTION), "teams"),
    at("teams/<str:name>/", TeamViewSet.as_view(PATCHED), "team"),
    # not idempotent: a token that was issued would be kept with the answer
    path("tokens/", bounded(TokenViewSet.as_view({"get": "list", "post": "create"})), name="tokens"),
    at("tokens/<uuid:uid>/", TokenViewSet.as_view({"patch": "partial_update", "delete": "destroy"}), "token"),
]


class Schema(SpectacularAPIView):
    """The OpenAPI document. There is one version; the query parameter for it is ignored."""

    def _get_version_parameter(self, request: Any) -> None:  # noqa: ARG002 - drf-spectacular's own hook
        return None


class Nowhere(APIView):
    """Any other address: a problem document, or a redirect to the address with the slash."""

    permission_classes = (AllowAny,)
    authentication_classes = ()
    schema = None

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Every method."""
        if request.method in {"GET", "HEAD"} and not request.path.endswith("/") and _exists(f"{request.path}/"):
            return HttpResponseRedirect(request.get_full_path(force_append_slash=True))
        return super().dispatch(request, *args, **kwargs)

    @override
    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """No method is allowed."""
        raise NotFound("there is no such address; addresses end with a slash")


def _exists(address: str) -> bool:
    try:
        found = get_resolver().resolve(address)
    except Resolver404:
        return False
    return found.url_name != "api-nowhere"


app_name = "api"
urlpatterns = [
    path("v1/", include((resources, "v1"))),
    path("schema/", Schema.as_view(), name="schema"),
    path(
        "docs/", SpectacularSwaggerSplitView.as_view(url_name="api:schema", template_name="api/docs.html"), name="docs"
    ),
    re_path("", Nowhere.as_view(), name="api-nowhere"),
]
