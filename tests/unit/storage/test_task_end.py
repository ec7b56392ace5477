"""Tasks end although a cancellation is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import structlog.testing

from gpuplane.start.background import BackgroundTask
from nodes.consumers.signed_in import SignedInConsumer
from storage import task_end
from storage.task_end import end_tasks


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_end, "AGAIN_SECONDS", 0.01)


class Losing:
    """Loses the first cancellation, as redis-py does while it connects."""

    lost = False

    async def run(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.lost:
                    raise
                self.lost = True


async def _direct(losing: Losing) -> Callable[[], Coroutine[Any, Any, None]]:
    task = asyncio.create_task(losing.run())
    return lambda: end_tasks(task)


async def _background(losing: Losing) -> Callable[[], Coroutine[Any, Any, None]]:
    task = BackgroundTask("test", losing.run)
    task.start()
    return task.stop


async def _browser(losing: Losing) -> Callable[[], Coroutine[Any, Any, None]]:
    class Consumer(SignedInConsumer):
        async def pump(self) -> None:
            await losing.run()

    consumer = Consumer()
    consumer.scope = {}
    consumer._task = asyncio.create_task(consumer._run())
    return lambda: consumer.disconnect(1000)


@pytest.mark.parametrize("made", [_direct, _background, _browser], ids=["tasks", "background", "a browser's stream"])
async def test_a_lost_cancellation_keeps_no_task(
    made: Callable[[Losing], Coroutine[Any, Any, Callable[[], Coroutine[Any, Any, None]]]],
) -> None:
    losing = Losing()
    end = await made(losing)
    await asyncio.sleep(0)
    ending = asyncio.create_task(end())
    done, _ = await asyncio.wait([ending], timeout=20)
    ending.cancel()
    assert done, "it would be waited for for ever"
    assert losing.lost


async def test_what_a_task_raises_at_its_end_is_logged() -> None:
    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at its end")

    task = asyncio.create_task(failing(), name="failing")
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    with structlog.testing.capture_logs() as logs:
        await end_tasks(task, ended)
    assert [(one["event"], one["task"]) for one in logs] == [("task.failed_at_its_end", "failing")]
