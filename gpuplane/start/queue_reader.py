"""Reads the queues every second, for admission, which must not read on the event loop."""

from __future__ import annotations

import threading

import structlog
from django.conf import settings
from django.db import DatabaseError, close_old_connections

from claims.queues import DIRECTORY

EVERY_SECONDS = 1.0

log = structlog.get_logger(__name__)

_stopping = threading.Event()


async def start() -> None:
    """Start the thread, where there is a cluster whose pods are gated."""
    _stopping.clear()
    if settings.GPUPLANE_KUBECONFIG:
        threading.Thread(target=_read, name="queues", daemon=True).start()


async def stop() -> None:
    """Let the thread end after its present round."""
    _stopping.set()


def _read() -> None:
    while True:
        try:
            DIRECTORY.get(EVERY_SECONDS / 2)
        except DatabaseError as error:
            log.warning("queues.not_read", error=str(error))
        except Exception:  # a defect must not end the thread
            log.exception("queues.read_failed")
        finally:
            close_old_connections()
        if _stopping.wait(EVERY_SECONDS):
            return
