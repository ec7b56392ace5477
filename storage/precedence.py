"""Precedence of filter and bind over other threads of the process, for the interpreter and for SQLite's writer lock.

Listeners run filter and bind within `PRECEDENCE`, requests to Django give way before each query, and `transactions`
uses `WriterLock`. Invariants: no thread gives way inside a transaction or with the writer lock, for which others wait;
no thread waits longer than `patience_seconds` at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final, NamedTuple, Self

PATIENCE_SECONDS: Final = 0.05
"""Filter takes a few milliseconds, some tens for a thousand nodes."""
WRITE_PATIENCE_SECONDS: Final = 0.25
"""How long a write lets later ones with precedence pass."""


class Precedence:
    """Counts the threads with precedence; others wait while there are any."""

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._inside = 0
        self._nobody = threading.Condition()
        self._thread = threading.local()

    def __enter__(self) -> Self:
        """Give this thread precedence. Not reentrant."""
        self._thread.first = True
        with self._nobody:
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.first = False
        with self._nobody:
            self._inside -= 1
            if not self._inside:
                self._nobody.notify_all()

    def is_first(self) -> bool:
        """Whether this thread has precedence."""
        return getattr(self._thread, "first", False)

    def give_way(self) -> None:
        """Wait until no thread has precedence, at most `patience_seconds`."""
        if not self._inside or self.is_first() or getattr(self._thread, "awaited", False):
            return
        with self._nobody:
            self._nobody.wait_for(self._empty, self._patience_seconds)

    def awaited(self, awaited: bool) -> None:
        """Set whether others may wait for this thread, which then does not give way: they would wait for each other."""
        self._thread.awaited = awaited

    def _empty(self) -> bool:
        return not self._inside


class WriterLock:
    """A lock that is passed to threads with precedence first, unless another has waited `patience_seconds`."""

    def __init__(self, precedence: Precedence, *, patience_seconds: float = WRITE_PATIENCE_SECONDS) -> None:
        self._precedence = precedence
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._taken = False
        self._first: deque[_Waiter] = deque()
        self._plain: deque[_Waiter] = deque()

    def __enter__(self) -> Self:
        """Wait for the lock. Not reentrant."""
        self._wait()
        self._precedence.awaited(True)
        return self

    def _wait(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            waiter = _Waiter(time.monotonic(), threading.Event())
            queue = self._first if self._precedence.is_first() else self._plain
            queue.append(waiter)
        try:
            waiter.granted.wait()
        except BaseException:  # e.g. a time limit
            with self._lock:
                if waiter.granted.is_set():
                    self._pass_on()
                else:
                    queue.remove(waiter)
            raise

    def __exit__(self, *_: object) -> None:
        self._precedence.awaited(False)
        with self._lock:
            self._pass_on()

    def _pass_on(self) -> None:
        plain_first = self._plain and self._plain[0].since + self._patience_seconds <= time.monotonic()
        queue = self._plain if plain_first or not self._first else self._first
        self._taken = bool(queue)
        if queue:
            queue.popleft().granted.set()


class _Waiter(NamedTuple):
    since: float
    granted: threading.Event


PRECEDENCE: Final = Precedence()


def yields_to_first(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    """Wrapper of Django's queries, for `connection.execute_wrapper`."""
    if not context["connection"].in_atomic_block:
        PRECEDENCE.give_way()
    return execute(sql, params, many, context)
