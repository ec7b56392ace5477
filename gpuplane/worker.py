"""Celery's consumer, which a failure while it clears a lost connection away does not end.

Loaded by the processes `worker` and `watch` (`worker_consumer` in `gpuplane.celery`). Celery takes every error
of a connection for a reason to connect again, except one that comes up while it tidies behind the last one:
it counts the tasks that run, for instance, while their threads end, and a set that changes as it is read is a
RuntimeError. Kept true: such an error is logged, and the next connection is made.
"""

from __future__ import annotations

import structlog
from celery.worker import consumer

log = structlog.get_logger(__name__)


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery carries no types
    """Goes on to the next connection whatever became of the last."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Give the lost connection up, and the tasks whose messages it carried."""
        try:
            super().on_connection_error_after_connected(exc)
        except Exception:  # whatever it is, the next connection is worth more
            log.exception("worker.connection_not_cleared")

    def on_close(self) -> None:
        """Forget messages that the lost connection delivered and nobody has begun."""
        try:
            super().on_close()
        except Exception:  # whatever it is, the next connection is worth more
            log.exception("worker.messages_not_forgotten")
