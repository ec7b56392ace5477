"""The gateway's part of the queue, and its connections to slots (`gpuplane.listeners.gateway`).

Not in processes that serve agents alone.
"""

from __future__ import annotations

from typing import Final

from django.conf import settings

from gpuplane.listeners.gateway.dispatcher import Dispatcher
from gpuplane.listeners.gateway.upstream import Upstream

DESK: Final = Dispatcher(queue_seconds=settings.GPUPLANE_QUEUE_SECONDS, queue_length=settings.GPUPLANE_QUEUE_LENGTH)
UPSTREAM: Final = Upstream(silent_seconds=settings.GPUPLANE_UPSTREAM_SECONDS)


async def start() -> None:
    """Begin."""
    if not settings.GPUPLANE_AGENTS_ONLY:
        await DESK.start()


async def stop() -> None:
    """End what is under way."""
    if not settings.GPUPLANE_AGENTS_ONLY:
        await DESK.stop()
    await UPSTREAM.close()
