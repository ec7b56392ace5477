"""Browser streams of this room, for the router in `gpuplane.asgi`."""

from django.urls import path

from nodes.consumers import FleetConsumer

websocket_urlpatterns = [path("ws/fleet/", FleetConsumer.as_asgi())]
