"""Wakes whoever waits in another process for something to change: a loop, or the session of a runner.

Services call `Channel.wake` inside the transaction that makes the change. Invariants: nothing is sent before the commit
or after a rollback; the caller never waits and never fails; a message that is lost delays the listener until it looks
by itself, some seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction

from storage.redis_client import REDIS_ERRORS, Purpose, client, shared_client

STOP_SECONDS: Final = 1.0
"""How often a waiting loop looks whether it shall stop."""

log = structlog.get_logger(__name__)


class Channel:
    """A channel of Redis. Its sender is a thread that starts with the first message, again after a fork."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._texts: set[str] = set()
        self._thread: threading.Thread | None = None

    def wake(self, text: str = "") -> None:
        """Publish the text after the commit; several calls of one text may be one message."""
        transaction.on_commit(lambda: self._ask(text))

    def _ask(self, text: str) -> None:
        with self._lock:
            self._texts.add(text)
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                thread = threading.Thread(target=self._run, name=f"wake {self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread can be started; the next message tries again
                    log.warning("wake.not_sent", channel=self.name, why=str(error))
                    return
                self._thread = thread
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            with self._lock:
                texts, self._texts = self._texts, set()
            try:
                for text in sorted(texts):
                    shared_client(settings.GPUPLANE_REDIS_URL, Purpose.OPTIONAL).publish(self.name, text)
            except REDIS_ERRORS as error:
                log.info("wake.not_sent", channel=self.name, why=str(error))


class Waker:
    """Waits for messages."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until a message comes; False after so many seconds, or when `stop` is set."""
        ends = time.monotonic() + seconds
        while not stop.is_set() and (left := ends - time.monotonic()) > 0:
            message = self._subscription.get_message(timeout=min(left, STOP_SECONDS))
            if message is not None and message["type"] == "message":
                return True
        return False


@contextmanager
def waker(*channels: Channel) -> Iterator[Waker]:
    """Listen. Raises REDIS_ERRORS."""
    with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection, connection.pubsub() as subscription:
        subscription.subscribe(*(channel.name for channel in channels))
        yield Waker(subscription)
