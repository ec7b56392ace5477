"""Sends tasks: after a commit, or as the next run of a watch.

Invariants: `send_after_commit` neither waits for nor fails with an unavailable broker, and is used only for work that
reconciling does anyway, only later.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

EXPIRES_SECONDS = 60
WATCH_QUEUE = "watch"
TURN_EXPIRES_SECONDS = 30
"""After that the beat has sent another."""

log = structlog.get_logger(__name__)


def send_after_commit(task: str, *args: Any, delay_seconds: float = 0) -> None:
    """Send the task after the transaction has committed, at once without one; it runs after the delay."""

    def send() -> None:
        try:
            current_app.send_task(task, args=args, countdown=delay_seconds, expires=EXPIRES_SECONDS, retry=False)
        except (OperationalError, OSError) as error:
            log.info("task.not_sent", task=task, error=str(error))

    transaction.on_commit(send)


def enqueue_next(task: str) -> None:
    """Send the next run of a watch. Raises OperationalError, OSError without a broker."""
    current_app.send_task(task, queue=WATCH_QUEUE, expires=TURN_EXPIRES_SECONDS)
