"""Loads the fleet's picture before the first request, and compares it with the database now and then.

Run by `gpuplane.doors.lifespan`. Kept true: a database that is away at the start delays readiness,
not the start itself; the comparing thread outlives any failure of one round.
"""

from __future__ import annotations

import threading

import structlog
from django.conf import settings
from django.db import DatabaseError, close_old_connections

from allocations import fleet

FIRST_TRY_SECONDS = 1.0

log = structlog.get_logger(__name__)

_stopping = threading.Event()


async def start() -> None:
    """Begin loading in a thread of its own."""
    _stopping.clear()
    threading.Thread(target=_keep, name="picture", daemon=True).start()


async def stop() -> None:
    """Let the thread end after its present round; it holds nothing that needs saving."""
    _stopping.set()


def _keep() -> None:
    pause = 0.0
    while not _stopping.wait(pause):
        try:
            if fleet.loaded():
                fleet.FLEET.compare()
            else:
                fleet.current()
                log.info("fleet.picture_loaded", devices=fleet.device_count())
            pause = settings.GPUPLANE_RELOAD_SECONDS
        except DatabaseError as error:
            log.warning("fleet.picture_not_read", error=str(error))
            pause = pause if fleet.loaded() else FIRST_TRY_SECONDS
        except Exception:  # a defect must not end the comparing for good
            log.exception("fleet.compare_failed")
            pause = settings.GPUPLANE_RELOAD_SECONDS
        finally:
            close_old_connections()
