"""Kombu's Redis transport, whose closed channels refuse with an error that Celery knows.

`gpuplane.celery` puts it in the place of kombu's own. Celery closes the channels of a lost connection twice,
the second time after the transport has let go of its settings, and a task may end later still and be
acknowledged; kombu then meets None, an AttributeError that ends the worker. Kept true: what is asked of a
channel without a connection fails as a lost connection does, which everybody who closes or acknowledges expects.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis
from redis import ConnectionError as RedisConnectionError


class Channel(redis.Channel):
    """Opens no new connections once its own was given up."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("the connection of this channel was given up")
        parameters: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[no-untyped-call]  # in kombu
        return parameters


class Transport(redis.Transport):
    """For `redis://`, `rediss://` and `redis+socket://`."""

    Channel = Channel
