"""Clients of Redis with time-outs and bounded pools. Nothing else imports `redis`, which ruff checks.

Invariants: no client waits longer than its purpose allows, to connect, for an answer, or for a connection of its pool;
no client has more than `CONNECTIONS_MOST` connections; a command is sent once.
"""

from __future__ import annotations

import threading
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from redis import BlockingConnectionPool, Redis, RedisError
from redis import ConnectionError as RedisConnectionError
from redis.asyncio import BlockingConnectionPool as AsyncPool
from redis.asyncio import ConnectionPool as AsyncUnboundedPool
from redis.asyncio import Redis as AsyncRedis

__all__ = [
    "REDIS_ERRORS",
    "AsyncRedis",
    "Purpose",
    "Redis",
    "RedisConnectionError",
    "RedisError",
    "async_client",
    "client",
    "listening_client",
    "shared_client",
]

CONNECTIONS_MOST: Final = 16
"""Of a client; more concurrent calls wait for each other."""
REDIS_ERRORS: Final = (RedisError, OSError)
"""What calls raise if Redis is unavailable or refuses."""


class Purpose(Enum):
    """The purpose of a client; the value is its time-out in seconds."""

    OPTIONAL = 0.5
    """Requests that continue without the answer."""
    STATUS = 1.0
    """Keys that pages show or rate limits read; without an answer the state is unknown."""
    WORK = 2.0
    """Background work, and messages of services."""
    BULK = 5.0
    """Reads of megabytes."""

    @property
    def seconds(self) -> float:
        """The time-out."""
        return float(self.value)


def client(url: str, purpose: Purpose, *, decode: bool = False) -> Redis:
    """A new client, which the caller closes. `decode`: answers are str instead of bytes."""
    pool = BlockingConnectionPool.from_url(url, timeout=purpose.seconds, decode_responses=decode, **_options(purpose))
    return Redis.from_pool(pool)


_lock = threading.Lock()


def shared_client(url: str, purpose: Purpose, *, decode: bool = False) -> Redis:
    """The client that all threads of the process share; it is never closed."""
    with _lock:  # lru_cache alone makes one for each thread that asks before the first is made
        return _shared_client(url, purpose, decode)


@lru_cache(maxsize=8)
def _shared_client(url: str, purpose: Purpose, decode: bool) -> Redis:
    return client(url, purpose, decode=decode)


def async_client(url: str, purpose: Purpose) -> AsyncRedis:
    """`client` for an event loop."""
    pool = AsyncPool.from_url(url, timeout=purpose.seconds, **_options(purpose))
    return AsyncRedis.from_pool(pool)


def listening_client(url: str) -> AsyncRedis:
    """A client with one connection that waits for messages without a time-out: the caller pings."""
    pool = AsyncUnboundedPool.from_url(
        url,
        max_connections=1,
        socket_connect_timeout=Purpose.WORK.seconds,
    )
    return AsyncRedis.from_pool(pool)


def _options(purpose: Purpose) -> dict[str, Any]:
    return {
        "max_connections": CONNECTIONS_MOST,
        "socket_timeout": purpose.seconds,
        "socket_connect_timeout": purpose.seconds,
    }
