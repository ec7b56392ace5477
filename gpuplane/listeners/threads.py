"""Threads of the plain ASGI applications, a pool for each kind of work, and slots for requests to Django.

Each pool is bounded in threads and in what waits for them, so slow work (the API server does not answer, a path is
flooded) delays only work of its own kind.

Invariants:
- Work of one lane never waits for work of another. Filter, prioritize and preempt share one.
- Beyond `waiting` requests, or after `patience_seconds` without a thread, `Busy` is raised and nothing was done.
- After each call a broken or outdated connection is closed (one from PostgreSQL's pool goes back to it), so the next
  call starts clean; SQLite's stay open, as opening one costs a millisecond. The thread of a lane with
  `keeps_connection` keeps PostgreSQL's, too, until it breaks, rests or the lane ends; `QUICK_CONNECTIONS` counts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar

import structlog
from django.db import connections

from allocations.whatif.run_slots import RUNS_MOST
from gpuplane.listeners.answers import RETRY_SOON, Refused
from gpuplane.listeners.body_limits import RequestKind
from kube.waiting import before_waiting
from storage.precedence import PRECEDENCE
from storage.transactions import release_connection

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for a thread. kube-scheduler waits 60 s for an extender, the API server 10 s for these
webhooks."""

log = structlog.get_logger(__name__)


class Busy(Refused, asyncio.QueueFull):
    """Too many requests wait for a slot, or none was free in time. `claims.admission` catches it as QueueFull."""

    def __init__(self, name: str, inside: int) -> None:
        log.warning("listener.busy", lane=name, inside=inside)
        super().__init__(503, "too many concurrent requests of this kind; retry later", RETRY_SOON)


class Slots:
    """A semaphore with a bounded queue and a time limit. Used on one event loop, by `async with`."""

    __slots__ = ("_free", "_most", "_patience_seconds", "at_once", "inside", "name")

    def __init__(self, name: str, *, at_once: int, waiting: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.name = name
        self.at_once = at_once
        self.inside = 0
        self._most = at_once + waiting
        self._free = asyncio.Semaphore(at_once)
        self._patience_seconds = patience_seconds

    async def __aenter__(self) -> Self:
        """Raises Busy."""
        if self.inside >= self._most:
            raise Busy(self.name, self.inside)
        self.inside += 1
        try:
            if self._free.locked():
                async with asyncio.timeout(self._patience_seconds):
                    await self._free.acquire()
            else:
                await self._free.acquire()  # at once
        except BaseException as error:
            self.inside -= 1
            if isinstance(error, TimeoutError):
                raise Busy(self.name, self.inside) from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.inside -= 1
        self._free.release()


class Lane:
    """Threads for one kind of work, and the slots of calls that wait for them."""

    __slots__ = ("_executor", "_first", "_keeps", "_kept_since", "_slots")

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        waiting: int,
        patience_seconds: float = PATIENCE_SECONDS,
        pool: type[ThreadPoolExecutor] = ThreadPoolExecutor,
        first: bool = False,
        keeps_connection: bool = False,
    ) -> None:
        """`first`: requests to Django give way to it. `keeps_connection`, for one thread: to take one from the pool and
        give it back costs half of a call of one statement, and the next may not have prepared the statement.
        """
        self._first = first
        self._keeps = keeps_connection
        self._kept_since: float | None = None
        self._executor = pool(threads, thread_name_prefix=name)
        self._slots = Slots(name, at_once=threads, waiting=waiting, patience_seconds=patience_seconds)

    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function, which may use the ORM. Raises what it raises, and Busy."""
        async with self._slots:
            if self._keeps:
                self._kept_since = time.monotonic()
                return await in_thread(self._executor, _keeping, function, *args, **kwargs)
            if self._first:
                return await in_thread(self._executor, _going_first, function, *args, **kwargs)
            return await in_thread(self._executor, function, *args, **kwargs)

    async def rest(self, idle_seconds: float) -> None:
        """Give a kept connection back to the pool where no call has begun for so long."""
        if self._kept_since is not None and time.monotonic() - self._kept_since >= idle_seconds:
            self._kept_since = None
            await in_thread(self._executor, release_connection)

    def shutdown(self) -> None:
        """Wait for what runs, and end the threads."""
        if self._keeps:
            self._executor.submit(connections.close_all)
        self._executor.shutdown()


FILTERS: Final = 8
LEDGER_STEPS: Final = 3
"""Kinds of steps; there is one call of each at a time."""
BINDERS: Final = 64
TOKENS: Final = 2
NEW_TOKENS: Final = 1
GATEWAY_THREADS: Final = 4
"""Rounds of inference requests, reads of what became of them, the row of the process, and the list of models."""
QUICK_CONNECTIONS: Final = FILTERS + LEDGER_STEPS + TOKENS + NEW_TOKENS + GATEWAY_THREADS
"""Database connections that filter, bind's steps, tokens and inference requests use at most at one time. Binds in
threads take theirs for moments."""
LIVE_CONNECTIONS: Final = 4
"""Of the live path: agents' records (2), the fleet's rows, sockets of browsers."""

DJANGO_THREADS: Final = 1024
"""More than `django_slots` has slots. They are made when they are needed."""
REFUSED_AT_ONCE: Final = 2
"""Simulations beyond those that may run, which are refused without waiting for one that does."""


class Lanes:
    """One lane for each kind of work of the plain ASGI applications."""

    def __init__(self, pool: type[ThreadPoolExecutor] = ThreadPoolExecutor) -> None:
        lane = partial(Lane, pool=pool)
        # filter, prioritize and preempt
        self.filter = lane("filter", threads=FILTERS, waiting=256, first=True)
        # the ledger's steps of binds
        self.ledger = lane("ledger", threads=LEDGER_STEPS, waiting=1024, first=True)
        # binds that have to be planned again, which mostly wait for the API server
        self.bind = lane("bind", threads=BINDERS, waiting=1024, patience_seconds=20.0)
        # admission reviews without the database and the API server; and those that read a pod from the API server
        self.webhooks = lane("webhook", threads=4, waiting=256)
        self.lookups = lane("lookup", threads=16, waiting=64, patience_seconds=2.0)
        # tokens looked up in the database: known good ones, and ones never seen before
        self.tokens = lane("token", threads=TOKENS, waiting=64)
        self.new_tokens = lane("new-token", threads=NEW_TOKENS, waiting=64)
        # the same for TokenReviews
        self.reviews = lane("review", threads=2, waiting=512)
        self.new_reviews = lane("new-review", threads=4, waiting=512)
        # large bodies of inference requests, and the list of models
        self.bodies = lane("body", threads=1, waiting=1024)
        self.models = lane("models", threads=1, waiting=64)
        # requests to Django, bounded by `django_slots`
        self.django = pool(DJANGO_THREADS, thread_name_prefix="django")

    def close(self) -> None:
        """Wait for what runs, and end the threads."""
        for threads in vars(self).values():
            threads.shutdown()


def django_slots(pool_size: int | None) -> dict[RequestKind, Slots]:
    """Slots of requests to Django, by kind. `pool_size`: PostgreSQL connections of the process, None on SQLite.

    Each request, but for `/livez`, may hold a connection, so all together take what filter, bind and the live path
    leave of the pool. A simulation gives its connection back before its process begins.
    """
    share = 16 if pool_size is None else pool_size - QUICK_CONNECTIONS - LIVE_CONNECTIONS
    at_once = {
        RequestKind.PAGES: share // 3,
        RequestKind.REST: share // 6,
        RequestKind.WRITES: share // 12 if pool_size else 1,
        RequestKind.SIMULATIONS: RUNS_MOST + REFUSED_AT_ONCE,
        RequestKind.ANONYMOUS: share // 6,
        RequestKind.PROVIDERS: share // 6,
        RequestKind.SERVICE_ACCOUNTS: share // 6,
        RequestKind.PROBES: share // 6,
        RequestKind.ALIVE: 4,
    }
    return {
        kind: Slots(kind, at_once=max(1, most), waiting=64, patience_seconds=10.0) for kind, most in at_once.items()
    }


async def in_thread(executor: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that uses the ORM without holding the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: _tidied(function, *args, **kwargs))


def _going_first(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    with PRECEDENCE:
        return function(*args, **kwargs)


def _keeping(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Afterwards a connection of PostgreSQL's pool stays with the thread."""
    try:
        return function(*args, **kwargs)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_at = None  # Django sets it with each new connection


def _tidied(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


def release_connections_while_waiting() -> None:
    """Make threads of this process give connections of PostgreSQL's pool back before they wait for a cluster."""
    before_waiting(_release_connections)


def _release_connections() -> None:
    for connection in connections.all(initialized_only=True):
        held: Any = connection
        if held.vendor == "postgresql" and not held.in_atomic_block:
            held.close()
