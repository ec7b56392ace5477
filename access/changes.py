"""Tells every process that an account, its tokens or its teams changed: what they remember of it counts no more.

`tell` is called by services inside their transaction; `Listener` runs once in each web process
(`gpuplane.start.access`). The message on the Redis channel `gpuplane:access` is `{"account": name}`, empty for all
accounts. Kept true: nothing goes out before the commit; the process that made the change needs no Redis to know;
whoever was not listening when something was said forgets everything once it listens again. While Redis is away the
others know within `tokens.FRESH_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson
import redis
import redis.asyncio
import structlog
from django.conf import settings
from django.db import transaction

from access import tokens
from access.sockets import SOCKETS

CHANNEL: Final = "gpuplane:access"
TIMEOUT_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 10.0
"""How long to wait for a message before the connection is tried by a ping."""
AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


def tell(account: str = "") -> None:
    """After the commit: what is remembered of this account, or of all, is forgotten everywhere."""
    transaction.on_commit(partial(_tell_now, account))


def heard(account: str) -> None:
    """Forget here, and look again at the open sockets that it concerns. From any thread."""
    tokens.forget(account)
    SOCKETS.changed(account)


def _tell_now(account: str) -> None:
    heard(account)
    try:
        with redis.Redis.from_url(
            settings.GPUPLANE_REDIS_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        ) as client:
            client.publish(CHANNEL, orjson.dumps({"account": account}))
    except (redis.RedisError, OSError) as error:
        log.warning("access.not_told", account=account, why=str(error), known_seconds=tokens.FRESH_SECONDS)


class Listener:
    """One process's ear. `run` ends only by being cancelled."""

    def __init__(self, url: str, *, on_change: Callable[[str], None] = heard) -> None:
        self._url = url
        self._on_change = on_change
        self._away = False
        self.listening = asyncio.Event()
        """Set while it hears what is said."""

    async def run(self) -> None:
        """Listen, and come back when Redis was away."""
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as error:
                self.listening.clear()
                if not self._away:
                    self._away = True
                    log.warning("access.redis_down", why=str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self) -> None:
        client = redis.asyncio.Redis.from_url(
            self._url, socket_connect_timeout=TIMEOUT_SECONDS, health_check_interval=QUIET_SECONDS
        )
        try:
            async with client.pubsub() as channel:
                await channel.subscribe(CHANNEL)
                while True:
                    message = await channel.get_message(timeout=QUIET_SECONDS)
                    if message is not None:
                        self._take(message)
        finally:
            await client.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._away = False
            self._on_change("")  # what was said while nobody listened
            self.listening.set()
        elif message["type"] == "message":
            self._on_change(_account_in(message["data"]))


def _account_in(data: bytes) -> str:
    """The account named; "", which stands for all, where the message cannot be read."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    account = found.get("account", "") if isinstance(found, dict) else ""
    return account if isinstance(account, str) else ""
