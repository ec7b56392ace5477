"""Periodic work on nodes. The beat's schedule is in `gpuplane.celery`."""

from __future__ import annotations

import time
from typing import cast

import redis
import structlog
from celery import shared_task
from django.conf import settings

from audit.clock import database_now
from nodes.live import presence

REDIS_SECONDS = 2.0

log = structlog.get_logger(__name__)


@shared_task(name="nodes.notice_silent_agents", ignore_result=True)
def notice_silent_agents() -> None:
    """Mark nodes whose agents fell silent, and those heard again (every 5 s). Idempotent, also beside a twin."""
    client = redis.Redis.from_url(
        settings.GPUPLANE_REDIS_URL, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
    )
    try:
        ears = cast("dict[bytes, bytes]", client.hgetall(presence.EARS))
        since, dead = presence.listening_since_of(ears, epoch=time.time())
        if dead:
            client.hdel(presence.EARS, *dead)
    except (redis.RedisError, OSError) as error:
        log.warning("nodes.silence_unknown", why=str(error))  # the broker is this Redis: the next beat tries again
        return
    finally:
        client.close()
    noticed = presence.notice_silent(now=database_now(), listening_since=since)
    if noticed != presence.Noticed():
        log.info("nodes.agents_noticed", suspect=noticed.suspect, not_ready=noticed.not_ready, ready=noticed.ready)
