"""Wakes the queueing loop, which runs in another process, when something that it decides by has changed.

Services call it inside the transaction that makes the change. Invariants: nothing is sent before the commit or after a
rollback; the caller never waits and never fails; a message that is lost delays a decision until the loop's next round,
some seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction

from storage.redis_client import REDIS_ERRORS, Purpose, client, shared_client

CHANNEL: Final = "gpuplane:queues"
STOP_SECONDS: Final = 1.0
"""How often a waiting loop looks whether it shall stop."""

log = structlog.get_logger(__name__)


class _Sender:
    """A thread that publishes; it starts with the first call, again after a fork."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._process = 0

    def ask(self) -> None:
        """Publish soon; several calls may be one message."""
        self._wanted.set()
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._process = os.getpid()
                    threading.Thread(target=self._run, name="queue-wake", daemon=True).start()

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            try:
                shared_client(settings.GPUPLANE_REDIS_URL, Purpose.OPTIONAL).publish(CHANNEL, b"")
            except REDIS_ERRORS as error:
                log.info("queues.not_woken", why=str(error))


_sender = _Sender()


def wake_queues() -> None:
    """Have the queues decided about after the commit."""
    transaction.on_commit(_sender.ask)


class Waker:
    """Waits for messages."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until the loop is woken; False after so many seconds, or when `stop` is set."""
        ends = time.monotonic() + seconds
        while not stop.is_set() and (left := ends - time.monotonic()) > 0:
            message = self._subscription.get_message(timeout=min(left, STOP_SECONDS))
            if message is not None and message["type"] == "message":
                return True
        return False


@contextmanager
def waker() -> Iterator[Waker]:
    """Listen for what wakes the loop. Raises REDIS_ERRORS."""
    with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection, connection.pubsub() as subscription:
        subscription.subscribe(CHANNEL)
        yield Waker(subscription)
