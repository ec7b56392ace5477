"""The collector of garbage, kept from looking at what lives long.

Started with the web process by `gpuplane.doors.lifespan`. Five thousand agents' connections are half a million objects; the interpreter's own way looked
through all of them every two seconds, and everything stood still for up to 0.5 s. Kept true: what lives for YOUNG_SECONDS is set aside; only cycles
can become garbage there, since counting references frees everything else at once, and every WHOLE_SECONDS it is looked through, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from typing import Final

import structlog

YOUNG_SECONDS: Final = 10.0
WHOLE_SECONDS: Final = 3600.0
THRESHOLDS: Final = (50_000, 5, 1_000_000)
"""Objects made before the youngest are looked through, and how often that happens before the next older are; the oldest only by us."""

log = structlog.get_logger(__name__)


class _Running:
    """The task of this process, and the thresholds that were there before."""

    task: asyncio.Task[None] | None = None
    before: tuple[int, int, int] = gc.get_threshold()


async def start() -> None:
    """Begin with the web process."""
    _Running.before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    _Running.task = asyncio.get_running_loop().create_task(_keep(time.monotonic), name="garbage")


async def stop() -> None:
    """End with the web process, with everything as it was."""
    task, _Running.task = _Running.task, None
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    gc.unfreeze()
    gc.set_threshold(*_Running.before)


def set_aside() -> None:
    """Free the cycles among young objects; whatever else there is counts as long-lived from now on."""
    gc.collect(1)
    gc.freeze()


def look_through() -> int:
    """Free the cycles among all objects; how many objects that were."""
    gc.unfreeze()
    freed = gc.collect()
    gc.freeze()
    return freed


async def _keep(clock: Callable[[], float]) -> None:
    due = clock() + WHOLE_SECONDS
    while True:
        await asyncio.sleep(YOUNG_SECONDS)
        if clock() < due:
            set_aside()
            continue
        began = clock()
        freed = look_through()
        due = clock() + WHOLE_SECONDS
        log.info("garbage.looked_through", freed=freed, seconds=round(clock() - began, 3))
