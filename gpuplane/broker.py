"""Kombu's Redis transport, with closed channels that fail by an error that Celery handles.

`gpuplane.celery` installs it in place of kombu's own. Celery closes the channels of a lost connection twice, the second
time after the transport has dropped its settings, and a task may be acknowledged later still; kombu's own then raises
an AttributeError that ends the worker. Invariants: a channel without a connection fails as a lost connection does.
"""

from __future__ import annotations

from typing import Any, cast

from kombu.transport import redis

from storage.redis_client import RedisConnectionError


class Channel(redis.Channel):
    """Opens no connection after its own was closed."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("the connection of this channel was given up")
        parameters = super()._connparams(asynchronous=asynchronous)  # type: ignore[no-untyped-call]  # kombu's
        return cast("dict[str, Any]", parameters)


class Transport(redis.Transport):
    """For `redis://`, `rediss://` and `redis+socket://`."""

    Channel = Channel
