"""Keeps the garbage collector from examining long-lived objects.

Five thousand agents' connections are half a million objects; the interpreter's own thresholds examined all of them
every two seconds, which stopped everything for up to 0.5 s. Invariants: objects that survive two collections are
frozen right after the second; only cycles can become garbage among them, and every FULL_SECONDS all of them are
collected, too.

The interpreter counts new objects less those that were freed, old ones included. Where each new sample frees the one
before, a hundred thousand young objects came together before ten thousand were counted. So they are also collected by
time; what a sample keeps is no longer examined after its first collection.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Mapping
from typing import Final

import structlog

from gpuplane.start.background import BackgroundTask

FULL_SECONDS: Final = 3600.0
THRESHOLDS: Final = (10_000, 3, 1_000_000)
"""New objects until the youngest generation is collected (10,000 take 3 ms, in which everything stops), and such
collections until the middle one is. The oldest is collected here alone."""

YOUNG_SECONDS: Final = 0.1
"""How often the youngest generation is collected by time: 5,000 agents make 6,500 objects in it."""
MIDDLE_AFTER: Final = 50
"""Such collections until the middle generation is, of what they left."""

log = structlog.get_logger(__name__)


async def _collect_each_hour() -> None:
    while True:
        await asyncio.sleep(FULL_SECONDS)
        began = time.monotonic()
        freed = collect_all()
        log.info("gc.full_collection", freed=freed, seconds=round(time.monotonic() - began, 3))


async def _collect_young() -> None:
    for number in itertools.count(1):
        await asyncio.sleep(YOUNG_SECONDS)
        gc.collect(0 if number % MIDDLE_AFTER else 1)


_tasks = (BackgroundTask("garbage", _collect_each_hour), BackgroundTask("young-garbage", _collect_young))
_thresholds_before = gc.get_threshold()


async def start() -> None:
    """Set the thresholds, and freeze survivors from now on."""
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(freeze_survivors)
    for task in _tasks:
        task.start()


async def stop() -> None:
    """Restore everything as it was."""
    for task in _tasks:
        await task.stop()
    gc.callbacks.remove(freeze_survivors)
    gc.unfreeze()
    gc.set_threshold(*_thresholds_before)


def freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    """Called by the collector: freeze what a collection of the middle generation left alive."""
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()


def collect_all() -> int:
    """Free the cycles among all objects. Returns the number of objects freed."""
    gc.unfreeze()
    freed = gc.collect()
    gc.freeze()
    return freed
