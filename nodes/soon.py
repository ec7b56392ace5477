"""Work for a worker soon after a commit, which reconciling does anyway, only later.

Used where an inventory brought something new (`nodes.advertise`, `nodes.newcomers`). Kept true: nobody waits for a broker that is away, and
nothing is lost with a task that could not be sent.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

EXPIRES_SECONDS = 60

log = structlog.get_logger(__name__)


def soon(task: str, *args: Any) -> None:
    """Send the task of this name when the transaction has been committed, at once where there is none."""

    def send() -> None:
        try:
            current_app.send_task(task, args=args, expires=EXPIRES_SECONDS, retry=False)
        except (OperationalError, OSError) as error:
            log.info("task.not_sent", task=task, error=str(error))

    transaction.on_commit(send)
