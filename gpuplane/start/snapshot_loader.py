"""Loads the fleet's snapshot at the start, and compares it with the database every GPUPLANE_RELOAD_SECONDS."""

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
    """Start the thread."""
    _stopping.clear()
    threading.Thread(target=_keep, name="snapshot", daemon=True).start()


async def stop() -> None:
    """Let the thread end after its present round."""
    _stopping.set()


def _keep() -> None:
    pause = 0.0
    while not _stopping.wait(pause):
        try:
            if fleet.loaded():
                fleet.compare()
            else:
                fleet.current()
                log.info("fleet.snapshot_loaded", devices=fleet.device_count())
            pause = settings.GPUPLANE_RELOAD_SECONDS
        except DatabaseError as error:
            log.warning("fleet.snapshot_not_read", error=str(error))
            pause = pause if fleet.loaded() else FIRST_TRY_SECONDS
        except Exception:  # a defect must not end the thread
            log.exception("fleet.compare_failed")
            pause = settings.GPUPLANE_RELOAD_SECONDS
        finally:
            close_old_connections()
