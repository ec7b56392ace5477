"""Celery's consumer, which survives errors in the cleanup of a lost connection.

Loaded by the processes `worker` and `watch` (`worker_consumer` in `gpuplane.celery`). Celery reconnects after every
error of a connection, except one in the cleanup after the last one: for instance, it iterates over the set of running
tasks while their threads end, a RuntimeError. Invariants: such an error is logged, and the next connection is made.
"""

from __future__ import annotations

import structlog
from celery.worker import consumer

log = structlog.get_logger(__name__)


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery carries no types
    """Reconnects whatever the cleanup raises."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop the lost connection, and the tasks whose messages it delivered."""
        try:
            super().on_connection_error_after_connected(exc)
        except Exception:  # whatever celery's cleanup raises must not end the process
            log.exception("worker.connection_not_cleared")

    def on_close(self) -> None:
        """Forget messages of the lost connection whose tasks have not begun."""
        try:
            super().on_close()
        except Exception:  # as above
            log.exception("worker.messages_not_forgotten")
