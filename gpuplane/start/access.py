"""What a web process does about access beside its requests: hears of changes, looks at open sockets, notes uses of tokens.

Started with the web process by `gpuplane.doors.lifespan`. Kept true: a failure of one turn is logged and the next one comes; nothing here is
on the way of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import structlog
from channels.db import database_sync_to_async
from django.conf import settings
from django.db import DatabaseError

from access.changes import Listener
from access.sockets import ROUND_SECONDS, SOCKETS
from access.uses import WRITE_SECONDS, uses_flush

STOP_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class _Running:
    """The tasks of this process."""

    tasks: tuple[asyncio.Task[None], ...] = ()


async def start() -> None:
    """Begin."""
    listener = Listener(settings.GPUPLANE_REDIS_URL)
    loop = asyncio.get_running_loop()
    _Running.tasks = (
        loop.create_task(listener.run(), name="access-listener"),
        loop.create_task(_rounds(), name="access-rounds"),
    )


async def stop() -> None:
    """End, with a last note of uses."""
    tasks, _Running.tasks = _Running.tasks, ()
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await _note_uses()


async def _rounds() -> None:
    noted = time.monotonic()
    while True:
        await asyncio.sleep(ROUND_SECONDS)
        try:
            await SOCKETS.look()
        except Exception:  # a defect must not end the rounds; the next one tries again
            log.exception("access.round_failed")
        if time.monotonic() - noted >= WRITE_SECONDS:
            noted = time.monotonic()
            await _note_uses()


async def _note_uses() -> None:
    try:
        await database_sync_to_async(uses_flush)()
    except DatabaseError as error:
        log.warning("access.uses_unwritten", error=str(error))
