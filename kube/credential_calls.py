"""Calls of the official loader, which runs plugins and reads mounted files without a deadline.

Called by `kube.configured`. Invariants: a call runs in a thread of its own, one at a time but for those that were
abandoned, of which there are a few at most; who asks while it runs gets its answer; nobody waits past its deadline, and
after that everybody is refused at once until it has ended or was abandoned; a call that hangs does not keep the process
from ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SECONDS: Final = 30.0
"""A cloud provider's plugin that signs in anew takes seconds."""
ABANDONED_SECONDS: Final = 300.0
"""How long past its deadline a call is waited for before another is made beside it."""
ABANDONED_MOST: Final = 3
"""Abandoned calls that run at a time; with so many, no other is made until one has ended."""


class NoAnswer(Exception):
    """The call is still running past its deadline."""


class CredentialCall(Generic[T]):
    """One call that may be made again and again. Shared by threads."""

    def __init__(
        self, work: Callable[[], T], *, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = work
        self._seconds = SECONDS if seconds is None else seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._abandoned: list[Future[T]] = []
        self._until = 0.0

    def result(self) -> T:
        """The answer of the call that runs, or of a new one. Raises `NoAnswer`, and what the call raises."""
        with self._lock:
            self._abandon()
            if self._running is None or self._running.done():
                self._running = self._begin()
                self._until = self._clock() + self._seconds
            running, until = self._running, self._until
        wait([running], max(until - self._clock(), 0))
        if not running.done():
            raise NoAnswer(f"no answer within {self._seconds:g} s")
        return running.result()

    def _abandon(self) -> None:
        """Give up the call that runs, if it is long past its deadline and not too many were given up before."""
        self._abandoned = [one for one in self._abandoned if not one.done()]
        running, is_late = self._running, self._clock() >= self._until + ABANDONED_SECONDS
        if running is not None and not running.done() and is_late and len(self._abandoned) < ABANDONED_MOST:
            self._abandoned.append(running)
            self._running = None

    def _begin(self) -> Future[T]:
        """Make the call in a thread that the interpreter does not wait for when it ends, as it does for executors'."""
        answer: Future[T] = Future()

        def make() -> None:
            try:
                answer.set_result(self._work())
            except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait get it
                answer.set_exception(error)

        threading.Thread(target=make, name="kube-credentials", daemon=True).start()
        return answer
