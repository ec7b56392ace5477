"""Browser streams of this room, for the router in `gpuplane.asgi`."""

from django.urls import path

from nodes.consumers.fleet import FleetConsumer
from nodes.consumers.one_node import DeviceConsumer, NodeConsumer

websocket_urlpatterns = [
    path("ws/fleet/", FleetConsumer.as_asgi()),
    path("ws/nodes/<str:name>/", NodeConsumer.as_asgi()),
    path("ws/devices/<int:device_id>/", DeviceConsumer.as_asgi()),
]
