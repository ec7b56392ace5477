"""Wakes the queueing loop, which runs in another process, when something that it decides by has changed.

Services call it inside the transaction that makes the change (`storage.wake`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from storage.wake import Channel, Waker
from storage.wake import waker as waker_of

QUEUES: Final = Channel("gpuplane:queues")


def wake_queues() -> None:
    """Have the queues decided about after the commit."""
    QUEUES.wake()


def waker() -> AbstractContextManager[Waker]:
    """Listen for what wakes the loop. Raises REDIS_ERRORS."""
    return waker_of(QUEUES)
