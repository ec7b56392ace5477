"""Addresses of the pages, included at the root by `gpuplane.urls`."""

from django.urls import path

from access import token_pages
from access import views as access
from allocations.views import claims as claim_pages
from allocations.views import devices, export, lists, scenario, single, usage
from allocations.views import nodes as node_pages
from claims import views as claims
from gpuplane.pages import claim_form, events
from nodes import views as nodes
from nodes.history import views as history

urlpatterns = [
    path("sign-in/", access.SignIn.as_view(), name="sign-in"),
    path("sign-out/", access.SignOut.as_view(), name="sign-out"),
    path("theme/", access.theme, name="theme"),
    path("tokens/", token_pages.tokens, name="tokens"),
    path("tokens/<uuid:uid>/revoke/", token_pages.token_end, name="token-revoke"),
    path("", nodes.fleet, name="fleet"),
    path("fleet/holders/", node_pages.fleet_holders_part, name="fleet-holders"),
    path("nodes/", nodes.node_table, name="nodes"),
    path("nodes/<str:name>/", node_pages.node, name="node"),
    path("nodes/<str:name>/devices/", node_pages.node_devices_part, name="node-devices"),
    path("devices/<int:device_id>/card/", node_pages.device_card, name="device-card"),
    path("nodes/<str:name>/history/", history.node_history, name="node-history"),
    path("devices/<int:device_id>/", devices.device, name="device"),
    path("devices/<int:device_id>/state/", devices.device_state, name="device-state"),
    path("devices/<int:device_id>/history/", history.device_history, name="device-history"),
    path("devices/<int:device_id>/history.csv", history.device_history_csv, name="device-history-csv"),
    path("fleet/devices.csv", export.fleet_csv, name="fleet-csv"),
    path("fleet/history/", history.fleet_history, name="fleet-history"),
    path("fleet/history.csv", history.fleet_history_csv, name="fleet-history-csv"),
    path("usage/", usage.usage, name="usage"),
    path("usage/idle/", usage.idle, name="idle"),
    path("claims/", claims.claim_table, name="claims"),
    path("claims/new/", claim_form.claim_new, name="claim-create"),
    path("claims/<str:namespace>/<str:name>/", claim_pages.claim, name="claim"),
    path("claims/<str:namespace>/<str:name>/delete/", claims.claim_remove, name="claim-delete"),
    path("allocations/", lists.allocation_table, name="allocations"),
    path("allocations/<uuid:allocation_id>/", single.allocation, name="allocation"),
    path("allocations/<uuid:allocation_id>/release/", single.release, name="allocation-release"),
    path("pending/", lists.pending_table, name="pending"),
    path("pending/count/", lists.pending_count, name="pending-count"),
    path("pending/<str:namespace>/<str:name>/", lists.pending_pod, name="pending-pod"),
    path("events/", events.events, name="events"),
    path("events/newest/", events.newest, name="events-newest"),
    path("simulate/", scenario.simulate, name="simulate"),
]
