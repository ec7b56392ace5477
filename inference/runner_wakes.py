"""Wakes the sessions of this process whose runner is to run something else (`wake.wake_runner`).

Fed by the process's subscription to Redis (`gpuplane.start.subscriptions`); read by `inference.runner_socket`.
Invariants: all in the event loop; a session looks by itself every few seconds, so a lost message only delays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from inference.wake import RUNNERS
from storage.redis_listener import Subscription

log = structlog.get_logger(__name__)


class RunnerWakes:
    """Events of the sessions, by node."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def of(self, node: str) -> Iterator[asyncio.Event]:
        """An event that is set when the node's runner is woken."""
        event = asyncio.Event()
        self._events.setdefault(node, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[node]
            events.discard(event)
            if not events:
                del self._events[node]

    def wake(self, node: str) -> None:
        """Wake the sessions of one node."""
        for event in self._events.get(node, ()):
            event.set()

    def wake_all(self) -> None:
        """Wake every session: messages may have been missed."""
        for node in list(self._events):
            self.wake(node)


WAKES: Final = RunnerWakes()


def subscription(wakes: RunnerWakes = WAKES) -> Subscription:
    """Wakes sessions by the node that a message names."""
    return Subscription(
        channel=RUNNERS.name,
        on_message=lambda data: wakes.wake(data.decode("utf-8", "replace")),
        on_subscribed=wakes.wake_all,
        on_lost=lambda why: log.warning("runners.redis_down", why=why),
    )
