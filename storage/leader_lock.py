"""Locks in Redis, for tasks that run on one worker at a time, and a value that each holder leaves to the next.

Invariants: a lock lasts `LOCK_SECONDS` and is renewed while its holder lives, for a bounded time, so that a worker that
is dead, stalled or waits for ever loses it; only the one that holds it renews it, releases it and writes the value; a
holder that lost its lock is stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from uuid import uuid4
from weakref import WeakSet

import structlog

from storage.redis_client import REDIS_ERRORS, Purpose, Redis, client

T = TypeVar("T")

PREFIX: Final = "gpuplane:leader:"
LOCK_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 3.0
HELD_SECONDS: Final = 300.0
"""How long a lock is renewed for a watch or a loop, whose run takes some 25 s."""
ALONE_SECONDS: Final = 3600.0
"""The same for other work, such as the first publishing of a large fleet."""
CARRY_SECONDS: Final = 86_400
"""Older resourceVersions are compacted away."""


def _if_held(command: str) -> str:
    """A Lua script for Redis that runs the command if the lock, KEYS[1], has the value ARGV[1]."""
    return f"if redis.call('get', KEYS[1]) == ARGV[1] then {command} end return 0"


_RENEW: Final = _if_held("return redis.call('pexpire', KEYS[1], ARGV[2])")
_END: Final = _if_held("return redis.call('del', KEYS[1])")
_CARRY: Final = _if_held("redis.call('set', KEYS[2], ARGV[2], 'ex', ARGV[3]) return 1")
_DROP: Final = _if_held("redis.call('del', KEYS[2]) return 1")

log = structlog.get_logger(__name__)

_running: WeakSet[threading.Event] = WeakSet()
_guard = threading.Lock()
_shutting_down = threading.Event()


def shut_down() -> None:
    """Stop every holder in this process, also those that come later: the worker is shutting down."""
    with _guard:
        _shutting_down.set()
    stop_all()


def stop_all() -> None:
    """Stop every holder in this process."""
    with _guard:
        for stop in _running:
            stop.set()


class LeaderLock:
    """A held lock. `stop` is set when it is lost; `value` is what Redis holds, of no other holder."""

    def __init__(self, connection: Redis, name: str, value: str, stop: threading.Event) -> None:
        self.name = name
        self.value = value
        self.stop = stop
        self._connection = connection

    @property
    def carried(self) -> str | None:
        """The value that the last holder left."""
        value: Any = self._connection.get(self._key("carried"))
        return None if value is None else str(value)

    def carry(self, value: str | None) -> bool:
        """Leave the value to the next holder. False when the lock is lost."""
        return self._eval(_DROP) if value is None else self._eval(_CARRY, value, str(CARRY_SECONDS))

    def renew(self) -> bool:
        """Extend the lock by `LOCK_SECONDS`. False when it is lost."""
        return self._eval(_RENEW, str(int(LOCK_SECONDS * 1000)))

    def end(self) -> None:
        """Release the lock."""
        self._eval(_END)

    def _eval(self, script: str, *values: str) -> bool:
        keys = (self._key("lock"), self._key("carried"))
        return bool(self._connection.eval(script, len(keys), *keys, self.value, *values))

    def _key(self, part: str) -> str:
        return f"{PREFIX}{self.name}:{part}"


@contextmanager
def leader_lock(
    redis_url: str, name: str, *, stop: threading.Event | None = None, most_seconds: float | None = None
) -> Iterator[LeaderLock | None]:
    """Hold the lock; None while another worker holds it. Raises REDIS_ERRORS.

    `stop`: the event to set when the lock is lost; by default a new one. `most_seconds`: how long it is renewed, by
    default `HELD_SECONDS`.
    """
    with client(redis_url, Purpose.WORK, decode=True) as connection:
        value = uuid4().hex  # a number would begin again where Redis loses everything
        if not connection.set(f"{PREFIX}{name}:lock", value, nx=True, px=int(LOCK_SECONDS * 1000)):
            yield None
            return
        held = LeaderLock(connection, name, value, stop or threading.Event())
        with _kept(held, HELD_SECONDS if most_seconds is None else most_seconds):
            yield held


def run_alone(redis_url: str, name: str, work: Callable[[], T]) -> T | None:
    """Do this work unless another worker is at it; None then. Raises REDIS_ERRORS and what the work raises."""
    with leader_lock(redis_url, name, most_seconds=ALONE_SECONDS) as ours:
        return None if ours is None else work()


@contextmanager
def _kept(held: LeaderLock, most_seconds: float) -> Iterator[None]:
    """Renew the lock in a thread, since the work may be blocked."""
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(held, over, most_seconds), name="leader-lock", daemon=True)
    with _guard:
        _running.add(held.stop)
        if _shutting_down.is_set():
            held.stop.set()
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
        with _guard:
            _running.discard(held.stop)
        try:
            held.end()
        except REDIS_ERRORS as error:
            log.warning("lock.not_ended", error=str(error))  # the lock expires


def _keep(held: LeaderLock, over: threading.Event, most_seconds: float) -> None:
    ends = time.monotonic() + most_seconds
    while not over.wait(RENEW_SECONDS):
        if time.monotonic() >= ends:
            log.error("lock.held_too_long", name=held.name, seconds=most_seconds)
            held.stop.set()
            return
        try:
            renewed = held.renew()
        except REDIS_ERRORS as error:
            log.warning("lock.not_renewed", error=str(error))
            renewed = False
        if not renewed:
            held.stop.set()
            return
