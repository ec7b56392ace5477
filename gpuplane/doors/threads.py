"""Threads that work on behalf of the plain doors, a pool for each kind of work, and the turns of requests to Django.

Each pool is bounded in threads and in what waits for them, so a kind of work that is slow (the API server does not
answer, somebody floods a path) makes only its own kind wait.

Invariants:
- Work of one lane never waits for work of another. Filter, prioritize and preempt share one.
- Beyond `waiting` requests, or after `PATIENCE_SECONDS` without a thread, `Busy` is raised and nothing was done.
- After each call a broken or outdated connection is closed (one from PostgreSQL's pool goes back to it), so the next
  call starts clean; SQLite's stay open, as opening one costs a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, Self, TypeVar

import structlog
from django.db import connections

from access.precedence import PRECEDENCE
from allocations.whatif.turns import RUNS_MOST
from gpuplane.doors.body_limits import Kind
from kube.waiting import before_waiting

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for a thread. kube-scheduler waits 60 s for an extender, the API server 10 s for a webhook
of ours."""

log = structlog.get_logger(__name__)


class Busy(asyncio.QueueFull):
    """The lane has as many requests as it takes, or had no thread for too long."""


class Turns:
    """So many at one time, so many more that wait for so long. Used on one event loop, by `async with`."""

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
            log.warning("door.busy", lane=self.name, inside=self.inside)
            raise Busy(self.name)
        self.inside += 1
        if not self._free.locked():
            await self._free.acquire()  # at once
            return self
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._free.acquire()
        except TimeoutError as error:
            self.inside -= 1
            log.warning("door.busy", lane=self.name, inside=self.inside)
            raise Busy(self.name) from error
        except BaseException:
            self.inside -= 1
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inside -= 1
        self._free.release()


class Pool(Protocol):
    """Makes the threads of a lane."""

    def __call__(self, max_workers: int, /, thread_name_prefix: str) -> Executor:
        """An executor."""


class Lane:
    """Threads for one kind of work, and the turns of those who want them."""

    __slots__ = ("_executor", "_first", "_turns")

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        waiting: int,
        patience_seconds: float = PATIENCE_SECONDS,
        pool: Pool = ThreadPoolExecutor,
        first: bool = False,
    ) -> None:
        """`first`: requests to Django give way to it."""
        self._first = first
        self._executor = pool(threads, thread_name_prefix=name)
        self._turns = Turns(name, at_once=threads, waiting=waiting, patience_seconds=patience_seconds)

    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns. It may use the ORM. Raises what it raises, and Busy."""
        async with self._turns:
            if self._first:
                return await in_thread(self._executor, _going_first, function, *args, **kwargs)
            return await in_thread(self._executor, function, *args, **kwargs)

    def close(self) -> None:
        """Wait for what runs, and end the threads."""
        self._executor.shutdown()


@dataclass(frozen=True, slots=True)
class Lanes:
    """One lane for each kind of work of the plain doors."""

    filter: Lane
    """filter, prioritize and preempt: the ledger's own work."""
    ledger: Lane
    """The steps of binds that go together."""
    bind: Lane
    """Binds by the saga, which spend their time waiting for the API server."""
    webhooks: Lane
    """Admission reviews: no database and no API server."""
    lookups: Lane
    """Admission reviews for which a pod is read from the API server."""
    tokens: Lane
    """Tokens that were good before, looked up in the database; and those that were never seen."""
    new_tokens: Lane
    reviews: Lane
    """TokenReviews of tokens that were good before; and of those that were never seen."""
    new_reviews: Lane
    django: Executor
    """Requests to Django, whose `Turns` bound how many there are."""

    def close(self) -> None:
        """End every thread."""
        for lane in (self.filter, self.ledger, self.bind, self.webhooks, self.lookups):
            lane.close()
        for lane in (self.tokens, self.new_tokens, self.reviews, self.new_reviews):
            lane.close()
        self.django.shutdown()


FILTERS: Final = 8
LEDGER_STEPS: Final = 3
"""Kinds of steps; there is one call of each at a time."""
BINDERS: Final = 64
TOKENS: Final = 2
NEW_TOKENS: Final = 1
QUICK_CONNECTIONS: Final = FILTERS + LEDGER_STEPS + TOKENS + NEW_TOKENS
"""Database connections that filter, bind's steps and tokens use at most at one time. Binds by the saga take theirs for
moments."""
LIVE_CONNECTIONS: Final = 4
"""Of the live path: agents' records (2), the fleet's rows, sockets of browsers."""


DJANGO_THREADS: Final = 1024
"""More than there are turns, in which their number is bounded. They are made when they are needed."""
REFUSED_AT_ONCE: Final = 2
"""Simulations beyond those that may run: they are told so without waiting for one that does."""


def lanes(pool: Pool = ThreadPoolExecutor) -> Lanes:
    """A process's."""
    lane = partial(Lane, pool=pool)
    return Lanes(
        filter=lane("filter", threads=FILTERS, waiting=256, first=True),
        ledger=lane("ledger", threads=LEDGER_STEPS, waiting=1024, first=True),
        bind=lane("bind", threads=BINDERS, waiting=1024, patience_seconds=20.0),
        webhooks=lane("webhook", threads=4, waiting=256),
        lookups=lane("lookup", threads=16, waiting=64, patience_seconds=2.0),
        tokens=lane("token", threads=TOKENS, waiting=64),
        new_tokens=lane("new-token", threads=NEW_TOKENS, waiting=64),
        reviews=lane("review", threads=2, waiting=512),
        new_reviews=lane("new-review", threads=4, waiting=512),
        django=pool(DJANGO_THREADS, thread_name_prefix="django"),
    )


def django_turns(pool_size: int | None) -> dict[Kind, Turns]:
    """Turns of requests to Django, by kind. `pool_size`: PostgreSQL connections of the process, None on SQLite.

    Each request, but for `/livez`, may hold a connection, so all of them together take what filter, bind and the live
    path leave of the pool. Simulations hold theirs for moments: a run lets go of it and waits for a process of its own.
    """
    share = 16 if pool_size is None else pool_size - QUICK_CONNECTIONS - LIVE_CONNECTIONS
    at_once = {
        Kind.PAGES: share // 3,
        Kind.REST: share // 6,
        Kind.WRITES: share // 12 if pool_size else 1,
        Kind.SIMULATIONS: RUNS_MOST + REFUSED_AT_ONCE,
        Kind.STRANGERS: share // 6,
        Kind.PROBES: share // 6,
        Kind.ALIVE: 4,
    }
    return {
        kind: Turns(kind, at_once=max(1, most), waiting=64, patience_seconds=10.0) for kind, most in at_once.items()
    }


async def in_thread(executor: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that uses the ORM without holding the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: _tidied(function, *args, **kwargs))


def _going_first(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    with PRECEDENCE:
        return function(*args, **kwargs)


def _tidied(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


def let_go_while_waiting() -> None:
    """From now on no thread of this process keeps a connection of PostgreSQL's pool while it waits for a cluster."""
    before_waiting(_let_go)


def _let_go() -> None:
    for connection in connections.all(initialized_only=True):
        held: Any = connection
        if held.vendor == "postgresql" and not held.in_atomic_block:
            held.close()
