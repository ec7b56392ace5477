"""Checks open sockets against their tokens and accounts, and writes down when tokens were used."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from access.sockets import ROUND_SECONDS, SOCKETS
from access.tokens import WRITE_SECONDS, uses_flush
from gpuplane.start.background import BackgroundTask
from storage.clock import database_now

STOP_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


async def _rounds() -> None:
    written = time.monotonic()
    while True:
        await asyncio.sleep(ROUND_SECONDS)
        try:
            await SOCKETS.check()
        except Exception:  # a defect must not end the rounds; the next one tries again
            log.exception("access.round_failed")
        if time.monotonic() - written >= WRITE_SECONDS:
            written = time.monotonic()
            await _write_uses()


_task = BackgroundTask("access-rounds", _rounds)


async def start() -> None:
    """Begin the rounds."""
    _task.start()


async def stop() -> None:
    """End the rounds, and write the last uses."""
    await _task.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await _write_uses()


async def _write_uses() -> None:
    try:
        await database_sync_to_async(lambda: uses_flush(now=database_now()))()
    except DatabaseError as error:
        log.warning("access.uses_unwritten", error=str(error))
