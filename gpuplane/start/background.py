"""An asyncio task that runs as long as the web process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from storage.task_end import end_tasks

AGAIN_SECONDS: Final = 1.0
"""Pause after an error that nothing foresaw."""

log = structlog.get_logger(__name__)


class BackgroundTask:
    """Runs the coroutine of `run` from `start` to `stop`, again after an error."""

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it in the running loop."""
        self._task = asyncio.create_task(self._kept_running(), name=self._name)

    async def stop(self) -> None:
        """Cancel it, if it was started, and wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def _kept_running(self) -> None:
        while True:
            try:
                await self._run()
            except Exception:  # a defect must not end it for as long as the process lives
                log.exception("background.failed", task=self._name)
            else:
                return
            await asyncio.sleep(AGAIN_SECONDS)
