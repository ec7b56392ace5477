"""Transactions that are tried again when the database asks for it.

Called by every service that writes rows which others write too. Kept true: only a deadlock, a
serialization failure or SQLite's "database is locked" is tried again, a bounded number of times with
growing, jittered pauses; and never inside an outer transaction, which is already lost then. So
nothing inside may have an effect outside the database.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar, overload

import structlog
from django.db import DatabaseError, OperationalError, connection, transaction

from access.precedence import PRECEDENCE, WritersTurn
from audit.cursors import on_postgresql

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


def is_passing(error: DatabaseError) -> bool:
    """Whether the same transaction, run again, may well succeed."""
    state = getattr(error.__cause__, "sqlstate", None)
    if state is not None:
        return state in RETRIED_SQLSTATES
    return isinstance(error, OperationalError) and "is locked" in str(error)


def is_full(error: BaseException) -> bool:
    """Whether the database, or a disk, has no space left: nothing can be written until somebody makes room."""
    if isinstance(error, DatabaseError):
        state = getattr(error.__cause__, "sqlstate", None)
        return state == FULL_SQLSTATE if state is not None else "disk is full" in str(error)
    return isinstance(error, OSError) and error.errno in FULL_ERRNOS


class Space:
    """Whether this process was told lately that the database is full: for readiness."""

    def __init__(self) -> None:
        self.full = False

    def note(self, error: BaseException) -> None:
        """Look whether an error says so."""
        if not self.full and is_full(error):
            self.full = True
            log.error("database.full", error=str(error))

    def found(self) -> None:
        """A write succeeded."""
        if self.full:
            self.full = False
            log.info("database.has_space_again")


SPACE = Space()


@overload
def atomic_retry(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def atomic_retry(*, attempts: int = ...) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def atomic_retry(
    function: Callable[P, R] | None = None, *, attempts: int = ATTEMPTS
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Run the function in one transaction; run it again when the database lost it to another writer.

    Raises what the function raises, and the database's error once `attempts` are used up.
    """

    def decorate(inner: Callable[P, R]) -> Callable[P, R]:
        @wraps(inner)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if connection.in_atomic_block:
                with transaction.atomic():
                    return inner(*args, **kwargs)
            for attempt in range(1, attempts):
                try:
                    with _turn(), transaction.atomic():
                        return inner(*args, **kwargs)
                except DatabaseError as error:
                    if not is_passing(error):
                        SPACE.note(error)
                        raise
                    log.info("transaction.again", service=inner.__qualname__, attempt=attempt, error=str(error))
                    time.sleep(pause_seconds(attempt, random.random()))  # noqa: S311 - jitter, no secret
            with _turn(), transaction.atomic():
                return inner(*args, **kwargs)

        return run

    return decorate if function is None else decorate(function)


_WRITER = WritersTurn(PRECEDENCE)
"""SQLite writes for one at a time, and makes the others look again after pauses that grow to a tenth of a second; a thread of this process
that waits here goes on at once."""
_NO_TURN = contextlib.nullcontext()


def _turn() -> AbstractContextManager[object]:
    """Held by the outermost transaction only, so nobody who holds it waits for it."""
    return _NO_TURN if on_postgresql() else _WRITER


def pause_seconds(attempt: int, jitter: float) -> float:
    """Pause before the next attempt (`attempt` 1..): doubling and bounded; `jitter` is 0..1."""
    return float(min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)) * (0.5 + jitter / 2)


def connection_let_go() -> None:
    """Give a pooled connection back before waiting for somebody else than the database; the next statement takes one again.

    Costs 20 µs on PostgreSQL; nothing on SQLite, whose connections have no pool, nor inside a transaction.
    """
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        connection.close()
