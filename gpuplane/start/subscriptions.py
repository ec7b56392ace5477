"""Receives what other processes publish: one connection to Redis for all channels."""

from __future__ import annotations

from django.conf import settings

from access import changes
from gpuplane.start.background import BackgroundTask
from gpuplane.start.gateway import DESK
from inference import runner_wakes
from storage.redis_listener import Listener

SUBSCRIPTIONS = (changes.subscription(), DESK.subscription(), runner_wakes.subscription())


async def _listen() -> None:
    await Listener(settings.GPUPLANE_REDIS_URL, SUBSCRIPTIONS).run()


_task = BackgroundTask("redis-listener", _listen)


async def start() -> None:
    """Subscribe."""
    _task.start()


async def stop() -> None:
    """Close the connection."""
    await _task.stop()
