"""Transactions with retries.

Invariants: only a deadlock, a serialization failure or SQLite's "database is locked" is retried, a bounded number of
times with growing, jittered pauses; never inside an outer transaction, which is lost by then. A retried function must
have no effect outside the database.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

import structlog
from django.db import DatabaseError, OperationalError, connection, transaction

from storage.cursors import on_postgresql
from storage.precedence import PRECEDENCE, WriterLock

P = ParamSpec("P")
R = TypeVar("R")

ATTEMPTS = 8
FIRST_PAUSE_SECONDS = 0.004
LONGEST_PAUSE_SECONDS = 0.5
RETRIED_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL: serialization failure, deadlock detected, lock not available."""
FULL_SQLSTATE = "53100"
"""PostgreSQL: disk full."""
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


def is_transient(error: DatabaseError) -> bool:
    """Whether the same transaction may succeed when it is retried."""
    state = getattr(error.__cause__, "sqlstate", None)
    if state is not None:
        return state in RETRIED_SQLSTATES
    return isinstance(error, OperationalError) and "is locked" in str(error)


def is_full(error: BaseException) -> bool:
    """Whether the database, or a disk, has no space left."""
    if isinstance(error, DatabaseError):
        state = getattr(error.__cause__, "sqlstate", None)
        return state == FULL_SQLSTATE if state is not None else "disk is full" in str(error)
    return isinstance(error, OSError) and error.errno in FULL_ERRNOS


class Space:
    """Whether the database was full at the last write of this process, for readiness."""

    def __init__(self) -> None:
        self.full = False

    def note(self, error: BaseException) -> None:
        """Note the error of a write."""
        if not self.full and is_full(error):
            self.full = True
            log.error("database.full", error=str(error))

    def found(self) -> None:
        """Note a write that succeeded."""
        if self.full:
            self.full = False
            log.info("database.has_space_again")


SPACE = Space()


def atomic_retry(function: Callable[P, R]) -> Callable[P, R]:
    """Run the function in a transaction, and retry it when the database aborts the transaction for another one.

    Raises what the function raises, and the database's error after `ATTEMPTS`.
    """
    return _retried(function, transaction.atomic)


def one_trip_retry(function: Callable[P, R]) -> Callable[P, R]:
    """As `atomic_retry`, for a function whose only access to the database is one statement or one `run_together`.

    Outside a transaction PostgreSQL commits it by itself, which saves the round trips of BEGIN and COMMIT. What it
    raises after that access is committed nevertheless.
    """
    return _retried(function, lambda: _NO_LOCK if on_postgresql() else transaction.atomic())


def _retried(function: Callable[P, R], outermost: Callable[[], AbstractContextManager[object]]) -> Callable[P, R]:
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            with transaction.atomic():
                return function(*args, **kwargs)
        attempt = 0
        while True:
            attempt += 1
            try:
                with _writer_lock(), outermost():
                    return function(*args, **kwargs)
            except DatabaseError as error:
                if attempt == ATTEMPTS or not is_transient(error):
                    SPACE.note(error)
                    raise
                log.info("transaction.again", service=function.__qualname__, attempt=attempt, error=str(error))
                time.sleep(pause_seconds(attempt, random.random()))  # noqa: S311 - jitter, no secret

    return run


_WRITER = WriterLock(PRECEDENCE)
"""SQLite has one writer, and others poll it with pauses up to a tenth of a second; threads that wait here do not."""
_NO_LOCK = contextlib.nullcontext()


def _writer_lock() -> AbstractContextManager[object]:
    """Held by the outermost transaction, so that no thread waits for itself."""
    return _NO_LOCK if on_postgresql() else _WRITER


def pause_seconds(attempt: int, jitter: float) -> float:
    """Pause before the next attempt (`attempt` 1..): doubling and bounded; `jitter` is 0..1."""
    return float(min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)) * (0.5 + jitter / 2)


def release_connection() -> None:
    """Return a pooled connection before waiting for something else; the next statement takes one again.

    It takes 20 µs on PostgreSQL, and does nothing on SQLite, which has no pool, and inside a transaction.
    """
    if on_postgresql() and not connection.in_atomic_block:
        connection.close()
