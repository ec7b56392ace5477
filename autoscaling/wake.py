"""Wakes the growth loop, which runs in another process, after the commit.

Invariants: the caller never waits and never fails; a lost message delays a round by `loop.MOST_SECONDS`.
"""

from __future__ import annotations

from audit.queue_wake import wake_queues


def wake_growth() -> None:
    """Start a round of the growth loop. It listens to what wakes the queues: capacity and waiting pods concern both."""
    wake_queues()
