"""Calls of the official loader, which runs plugins and reads mounted files without a deadline.

Called by `kube.configured`. Invariants: a call runs in a thread of its own, one at a time; who asks while it runs gets
its answer; nobody waits past its deadline, and after that everybody is refused at once until it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SECONDS: Final = 30.0
"""A cloud provider's plugin that signs in anew takes seconds."""


class NoAnswer(Exception):
    """The call is still running past its deadline."""


class CredentialCall(Generic[T]):
    """One call that may be made again and again. Shared by threads."""

    def __init__(self, work: Callable[[], T], *, seconds: float | None = None) -> None:
        self._work = work
        self._seconds = SECONDS if seconds is None else seconds
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kube-credentials")
        self._running: Future[T] | None = None
        self._until = 0.0

    def result(self) -> T:
        """The answer of the call that runs, or of a new one. Raises `NoAnswer`, and what the call raises."""
        with self._lock:
            if self._running is None or self._running.done():
                self._until = time.monotonic() + self._seconds
                self._running = self._threads.submit(self._work)
            running, until = self._running, self._until
        wait([running], max(until - time.monotonic(), 0))
        if not running.done():
            raise NoAnswer(f"no answer within {self._seconds:g} s")
        return running.result()
