"""The collector of garbage, kept from looking at what lives long.

Started with the web process by `gpuplane.doors.lifespan`. Five thousand agents' connections are half a million objects; the interpreter's own way looked
through all of them every two seconds, and everything stood still for up to 0.5 s. Kept true: what outlives two collections is set aside, at
that moment and so without another look; only cycles can become garbage there, since counting references frees everything else at once, and every
WHOLE_SECONDS all of it is looked through, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Mapping
from typing import Final

import structlog

WHOLE_SECONDS: Final = 3600.0
THRESHOLDS: Final = (50_000, 3, 1_000_000)
"""Objects made before the youngest are looked through, above what a second of five thousand agents makes and drops, and how often that happens before the next older are; the oldest only by us."""

log = structlog.get_logger(__name__)


class _Running:
    """The task of this process, and the thresholds that were there before."""

    task: asyncio.Task[None] | None = None
    before: tuple[int, int, int] = gc.get_threshold()


async def start() -> None:
    """Begin with the web process."""
    _Running.before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(set_aside)
    _Running.task = asyncio.get_running_loop().create_task(_keep(), name="garbage")


async def stop() -> None:
    """End with the web process, with everything as it was."""
    task, _Running.task = _Running.task, None
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        gc.callbacks.remove(set_aside)
    gc.unfreeze()
    gc.set_threshold(*_Running.before)


def set_aside(phase: str, about: Mapping[str, int]) -> None:
    """Called by the collector: what it has just left alive in its middle generation counts as long-lived from now on."""
    if phase == "stop" and about["generation"] == 1:
        gc.freeze()


def look_through() -> int:
    """Free the cycles among all objects; how many objects that were."""
    gc.unfreeze()
    freed = gc.collect()
    gc.freeze()
    return freed


async def _keep() -> None:
    while True:
        await asyncio.sleep(WHOLE_SECONDS)
        began = time.monotonic()
        freed = look_through()
        log.info("garbage.looked_through", freed=freed, seconds=round(time.monotonic() - began, 3))
