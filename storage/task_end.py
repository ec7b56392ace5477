"""Ends asyncio tasks that may wait for Redis.

Called where a process, a socket or a session ends its tasks. redis-py loses a cancellation that comes while it connects
to a server that closes the connection or stays silent: the task goes on, and who awaits it waits for ever. Invariants:
a task has ended when `end_tasks` returns.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

AGAIN_SECONDS: Final = 1.0
"""How long a cancelled task has before it is cancelled again."""

log = structlog.get_logger(__name__)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, again until they have ended. What one raises meanwhile is logged."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        ended, running = await asyncio.wait(running, timeout=AGAIN_SECONDS)
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("task.failed_at_its_end", task=task.get_name(), exc_info=error)
