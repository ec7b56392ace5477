"""Wakes the loops of slots and the sessions of runners, after the commit (`storage.wake`).

Invariants: nobody depends on a message: each listener looks by itself every few seconds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from audit.queue_wake import QUEUES
from storage.wake import Channel, Waker
from storage.wake import waker as waker_of

SLOTS: Final = Channel("gpuplane:slots")
"""Something that slots are planned by has changed."""
RUNNERS: Final = Channel("gpuplane:runners")
"""What a runner is to run has changed; the message is the name of its node."""
REQUESTS: Final = Channel("gpuplane:requests")
"""A slot has become ready or has a free place, or a request came; the message is the name of the model."""


def wake_slots() -> None:
    """Plan slots after the commit."""
    SLOTS.wake()


def wake_runner(node: str) -> None:
    """Have the session of the node's runner compare what it is to run, after the commit."""
    RUNNERS.wake(node)


def wake_requests(model_name: str) -> None:
    """Have waiting requests of the model dispatched after the commit."""
    REQUESTS.wake(model_name)


def waker() -> AbstractContextManager[Waker]:
    """Listen for what wakes the loop of slots: capacity that appears wakes the queues' loop. Raises REDIS_ERRORS."""
    return waker_of(SLOTS, QUEUES)
