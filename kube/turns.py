"""One worker at a time a piece of work, and what it carries over from turn to turn, in Redis.

Called by the tasks that hold a watch in turns (DESIGN §2, Watches) and by those that should not run twice at
once. Kept true: a lock lives `LOCK_SECONDS` and is renewed while its holder lives, so a dead or stalled
worker loses it; each holder has a higher fencing number than the one before, and what is carried is written
only under the number that still holds the lock; a holder that lost its lock is stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

import redis
import structlog

from kube.watch import Stop

PREFIX: Final = "gpuplane:turn:"
LOCK_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 3.0
REDIS_SECONDS: Final = 2.0
CARRY_SECONDS: Final = 86_400
"""A resourceVersion older than a day is long compacted away."""

_RENEW: Final = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)
_END: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
_CARRY: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[2], ARGV[2], 'ex', ARGV[3]) return 1 end return 0"
_DROP: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[2]) return 1 end return 0"

log = structlog.get_logger(__name__)

_running: WeakSet[Stop] = WeakSet()
_guard = threading.Lock()


def stop_all() -> None:
    """End every turn of this process at once: the worker is shutting down."""
    with _guard:
        for stop in _running:
            stop.set()


class Turn:
    """The right to do one piece of work now. `stop` is set when that right is lost; `number` is the fencing number."""

    def __init__(self, client: redis.Redis, name: str, number: int) -> None:
        self.number = number
        self.stop = Stop()
        self._client = client
        self._name = name

    @property
    def carried(self) -> str | None:
        """What the last turn left, None where there is nothing."""
        value: Any = self._client.get(self._key("carried"))
        return None if value is None else value.decode()

    def carry(self, value: str | None) -> bool:
        """Leave this to the next turn (None: nothing). False when the lock is in other hands by now."""
        if value is None:
            return bool(self._client.eval(_DROP, 2, self._key("lock"), self._key("carried"), str(self.number)))
        keys = (self._key("lock"), self._key("carried"))
        return bool(self._client.eval(_CARRY, 2, *keys, str(self.number), value, str(CARRY_SECONDS)))

    def renew(self) -> bool:
        """Live on for `LOCK_SECONDS`. False when the lock is in other hands."""
        return bool(self._client.eval(_RENEW, 1, self._key("lock"), str(self.number), str(int(LOCK_SECONDS * 1000))))

    def end(self) -> None:
        """Let the next one in."""
        self._client.eval(_END, 1, self._key("lock"), str(self.number))

    def _key(self, part: str) -> str:
        return f"{PREFIX}{self._name}:{part}"


@contextmanager
def turn(redis_url: str, name: str) -> Iterator[Turn | None]:
    """The turn, or None while somebody else has it. Raises redis.RedisError, OSError where Redis is away."""
    client = redis.Redis.from_url(redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
    try:
        number: Any = client.incr(f"{PREFIX}{name}:number")
        if not client.set(f"{PREFIX}{name}:lock", str(number), nx=True, px=int(LOCK_SECONDS * 1000)):
            yield None
            return
        held = Turn(client, name, int(number))
        with _kept(held):
            yield held
    finally:
        client.close()


@contextmanager
def _kept(held: Turn) -> Iterator[None]:
    """Renew the lock in a thread of its own, since the work may be waiting for the cluster's next word."""
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(held, over), name="turn", daemon=True)
    with _guard:
        _running.add(held.stop)
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
        except (redis.RedisError, OSError) as error:
            log.warning("turn.not_ended", error=str(error))  # the lock runs out by itself


def _keep(held: Turn, over: threading.Event) -> None:
    while not over.wait(RENEW_SECONDS):
        try:
            renewed = held.renew()
        except (redis.RedisError, OSError) as error:
            log.warning("turn.not_renewed", error=str(error))
            renewed = False
        if not renewed:
            held.stop.set()
            return
