"""Limits what-if runs: one a user, and four in all.

Called by `allocations.whatif.run`. The four are those of one web process. One a user holds across web processes, by a
key in Redis that expires; while Redis is away, within each process. Invariants: a slot is freed when its run ends,
however that ends; after the death of a process the users of its runs wait `KEY_SECONDS` at most.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from django.conf import settings

from access.errors import TooManyUnderWay, Unavailable
from storage.redis_client import REDIS_ERRORS, Purpose, client

RUNS_MOST: Final = 4
"""In one web process. Each may take 256 MiB and a core, at the lowest priority."""
RETRY_SECONDS: Final = 10
"""A run's deadline: by then its slot is free."""
KEY_SECONDS: Final = 15
KEY: Final = "gpuplane:what-if:"
_DELETE_OWN: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

log = structlog.get_logger(__name__)


class RunSlots:
    """The runs of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[int] = set()

    @property
    def running(self) -> int:
        """Number of runs."""
        return len(self._users)

    @contextmanager
    def taken(self, user: int) -> Iterator[None]:
        """Take a slot for this user. Raises TooManyUnderWay while they have one, Unavailable while all are taken."""
        with self._lock:
            if user in self._users:
                raise _second_run()
            if len(self._users) >= RUNS_MOST:
                raise Unavailable(
                    f"{RUNS_MOST} what-if runs are under way, which is as many as there may be; try again"
                )
            self._users.add(user)
        try:
            with _taken_in_redis(user):
                yield
        finally:
            with self._lock:
                self._users.discard(user)


RUN_SLOTS: Final = RunSlots()


@contextmanager
def _taken_in_redis(user: int) -> Iterator[None]:
    """The same across web processes. Raises TooManyUnderWay where another one runs for this user."""
    key, token = f"{KEY}{user}", secrets.token_hex(8)
    with client(settings.GPUPLANE_REDIS_URL, Purpose.OPTIONAL) as connection:
        free = True
        try:
            free = bool(connection.set(key, token, nx=True, px=KEY_SECONDS * 1000))
        except REDIS_ERRORS as error:
            log.info("what_if.slot_unshared", error=str(error))
        if not free:
            raise _second_run()
        try:
            yield
        finally:
            try:
                connection.eval(_DELETE_OWN, 1, key, token)
            except REDIS_ERRORS as error:
                log.info("what_if.slot_not_ended", error=str(error))  # it expires


def _second_run() -> TooManyUnderWay:
    return TooManyUnderWay(
        "a what-if run of yours is still under way; one user has one at a time",
        rule="one-at-a-time",
        retry_after_seconds=RETRY_SECONDS,
    )
