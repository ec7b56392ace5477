"""Who may run a what-if now: one run a user, and four in all.

Called by `allocations.whatif.run`. Four in all counts the runs of one web process. One a user holds across web processes, by a key in Redis that
ends by itself; while Redis is away it, too, counts those of one process. Kept true: a turn ends with its run, however that ends; a process
that dies with runs under way keeps their users waiting `LEFT_SECONDS` at most.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis
import structlog
from django.conf import settings

from access.errors import TooMany, Unavailable

RUNS_MOST: Final = 4
"""In one web process. Each may take 256 MiB and a core, at the lowest priority."""
RETRY_SECONDS: Final = 10
"""A run's deadline: by then the turn is free."""
LEFT_SECONDS: Final = 15
REDIS_SECONDS: Final = 0.5
KEY: Final = "gpuplane:what-if:"
_END: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

log = structlog.get_logger(__name__)


class Turns:
    """The runs of one process."""

    def __init__(self, most: int = RUNS_MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._users: set[int] = set()

    @property
    def running(self) -> int:
        """Runs under way."""
        return len(self._users)

    @contextmanager
    def taken(self, user: int) -> Iterator[None]:
        """A turn for this user. Raises TooMany while they have one, Unavailable while all are taken."""
        with self._lock:
            if user in self._users:
                raise _twice()
            if len(self._users) >= self._most:
                raise Unavailable(
                    f"{self._most} what-if runs are under way, which is as many as there may be; try again"
                )
            self._users.add(user)
        try:
            with _everywhere(user):
                yield
        finally:
            with self._lock:
                self._users.discard(user)


TURNS: Final = Turns()


@contextmanager
def _everywhere(user: int) -> Iterator[None]:
    """The same turn in Redis. Raises TooMany where another process runs for this user."""
    key, token = f"{KEY}{user}", secrets.token_hex(8)
    client = redis.Redis.from_url(
        settings.GPUPLANE_REDIS_URL, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
    )
    try:
        free = True
        try:
            free = bool(client.set(key, token, nx=True, px=LEFT_SECONDS * 1000))
        except (redis.RedisError, OSError) as error:
            log.info("what_if.turn_unshared", error=str(error))  # one a user then holds within this process
        if not free:
            raise _twice()
        try:
            yield
        finally:
            _give_back(client, key, token)
    finally:
        client.close()


def _give_back(client: redis.Redis, key: str, token: str) -> None:
    try:
        client.eval(_END, 1, key, token)
    except (redis.RedisError, OSError) as error:
        log.info("what_if.turn_not_ended", error=str(error))  # it ends by itself


def _twice() -> TooMany:
    return TooMany(
        "a what-if run of yours is still under way; one user has one at a time",
        rule="one-at-a-time",
        retry_after_seconds=RETRY_SECONDS,
    )
