"""WebSocket routes of browsers' streams, for `gpuplane.application`."""

from __future__ import annotations

from django.urls import URLPattern, path

from nodes.consumers.fleet import FleetConsumer
from nodes.consumers.one_node import DeviceConsumer, NodeConsumer
from nodes.live.hub import Hub


def websocket_urlpatterns(hub: Hub) -> list[URLPattern]:
    """The routes of a process with this hub."""
    return [
        path("ws/fleet/", FleetConsumer.as_asgi(hub=hub)),
        path("ws/nodes/<str:name>/", NodeConsumer.as_asgi()),
        path("ws/devices/<int:device_id>/", DeviceConsumer.as_asgi()),
    ]
