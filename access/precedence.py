"""Who goes first where threads of one process compete for the interpreter and for SQLite's writer: filter and bind.

Called by the doors, which run filter and bind within `first()`, by the requests to Django, which give way before each query, and by
`transactions`, whose turns it orders. Kept true: nobody gives way inside a transaction, or with a writer's turn, for which others wait; and
nobody waits longer than `patience_seconds` at a time, so that a fleet that filters without a pause slows the rest and stops nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

PATIENCE_SECONDS: Final = 0.05
"""Filter takes a few milliseconds, some tens for a thousand nodes."""
WRITE_PATIENCE_SECONDS: Final = 0.25
"""How long a write lets others pass that came later."""


class Precedence:
    """Counts those who go first; the others wait while there are any."""

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._inside = 0
        self._nobody = threading.Condition()
        self._thread = threading.local()

    def __enter__(self) -> Self:
        """Let this thread go first until the end of the `with`. Not entered twice by one thread."""
        self._thread.first = True
        with self._nobody:
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.first = False
        with self._nobody:
            self._inside -= 1
            if not self._inside:
                self._nobody.notify_all()

    def is_first(self) -> bool:
        """Whether this thread goes first."""
        return getattr(self._thread, "first", False)

    def give_way(self) -> None:
        """Wait until nobody goes first, `patience_seconds` at most."""
        if not self._inside or self.is_first() or getattr(self._thread, "awaited", False):
            return
        with self._nobody:
            self._nobody.wait_for(self._empty, self._patience_seconds)

    def awaited(self, awaited: bool) -> None:
        """Say whether others may be waiting for this thread: it gives no way then, lest they wait for each other."""
        self._thread.awaited = awaited

    def _empty(self) -> bool:
        return not self._inside


class WritersTurn:
    """One writer at a time, handed on: to those who go first before the others, unless one of those has waited `patience_seconds`."""

    def __init__(self, precedence: Precedence, *, patience_seconds: float = WRITE_PATIENCE_SECONDS) -> None:
        self._precedence = precedence
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._taken = False
        self._first: deque[_Waiter] = deque()
        self._plain: deque[_Waiter] = deque()

    def __enter__(self) -> Self:
        """Wait for the turn. Not entered twice by one thread."""
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
            waiter.given.wait()
        except BaseException:  # a time limit, say
            with self._lock:
                if waiter.given.is_set():
                    self._hand_on()
                else:
                    queue.remove(waiter)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._precedence.awaited(False)
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        plain_first = self._plain and self._plain[0].since + self._patience_seconds <= time.monotonic()
        queue = self._plain if plain_first or not self._first else self._first
        self._taken = bool(queue)
        if queue:
            queue.popleft().given.set()


class _Waiter(NamedTuple):
    since: float
    given: threading.Event


PRECEDENCE: Final = Precedence()


def gives_way(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    """Wrapper of Django's queries, for `connection.execute_wrapper`."""
    if not context["connection"].in_atomic_block:
        PRECEDENCE.give_way()
    return execute(sql, params, many, context)
