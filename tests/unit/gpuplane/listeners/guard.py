"""What stands in front of Django, with an application behind it, and a client."""

from __future__ import annotations

from typing import Any

import httpx

from gpuplane.listeners import App
from gpuplane.listeners.bodies import guarded
from gpuplane.listeners.body_limits import MIB, BodyLimits, RequestKind
from gpuplane.listeners.threads import Slots, django_slots

TOKEN = {"Authorization": "Bearer anything"}


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """Reads its body whole, as Django does, before it answers."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def behind_guard(
    app: App, limits: BodyLimits | None = None, slots: dict[RequestKind, Slots] | None = None
) -> httpx.AsyncClient:
    guard = guarded(app, bound_of=(limits or BodyLimits(32 * MIB)).of_django, slots=slots or django_slots(None))
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://gpuplane")
