"""The process's subscription to Redis, which passes messages to subscribers by channel.

Run once in each web process by `gpuplane.start.subscriptions`. Invariants: one connection for all channels; subscribers
are called in the event loop, in the order of delivery; messages published while the connection is lost are lost, so
each subscriber is notified whenever its channel has been subscribed; an error of a subscriber does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from storage.redis_client import REDIS_ERRORS, RedisConnectionError, listening_client

AGAIN_SECONDS: Final = 1.0
"""Pause before Redis is tried again."""
QUIET_SECONDS: Final = 10.0
"""After so long without a message Redis is asked whether it is there."""
ANSWER_SECONDS: Final = 2.0
"""Redis is gone when it says nothing for that long then."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The callbacks of a channel, which must not block."""

    channel: str
    on_message: Callable[[bytes], None]
    on_subscribed: Callable[[], None]
    """Called when messages begin to arrive; earlier ones may be missing."""
    on_lost: Callable[[str], None]
    """Called with the reason once for each outage."""


class Listener:
    """All subscriptions of a process over one connection."""

    def __init__(self, url: str, subscriptions: Iterable[Subscription]) -> None:
        self._url = url
        self._by_channel = {one.channel: one for one in subscriptions}
        self._subscribed: set[str] = set()
        self._away = False
        self.listening = asyncio.Event()
        """Set while every channel is subscribed."""

    async def run(self) -> None:
        """Listen, and subscribe again after an outage. Ends only when cancelled."""
        while True:
            try:
                await self._listen()
            except REDIS_ERRORS as error:
                self._lost(str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self) -> None:
        client = listening_client(self._url)
        try:
            async with client.pubsub() as connection:
                await connection.subscribe(*self._by_channel)
                while True:
                    message = await connection.get_message(timeout=QUIET_SECONDS)
                    if message is None:  # redis-py's health check sends a ping and waits for no answer
                        await connection.ping()
                        message = await connection.get_message(timeout=ANSWER_SECONDS)
                    if message is None:
                        raise RedisConnectionError(f"Redis has not answered for {ANSWER_SECONDS:.0f} s")
                    self._take(message)
        finally:
            await client.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "pong":
            return
        channel = message["channel"].decode()
        subscription = self._by_channel[channel]
        if message["type"] == "subscribe":
            self._away = False
            self._subscribed.add(channel)
            self._call(channel, subscription.on_subscribed)
            if len(self._subscribed) == len(self._by_channel):
                self.listening.set()
        elif message["type"] == "message":
            self._call(channel, subscription.on_message, message["data"])

    def _lost(self, why: str) -> None:
        self.listening.clear()
        self._subscribed.clear()
        if self._away:
            return
        self._away = True
        for channel, subscription in self._by_channel.items():
            self._call(channel, subscription.on_lost, why)

    def _call(self, channel: str, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception:  # an error of a subscriber must not stop the others
            log.exception("redis.subscriber_failed", channel=channel)
