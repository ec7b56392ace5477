"""Checkpoints SQLite's write-ahead log in a thread, so that no filter has to wait for it.

By default SQLite does it inside the commit that fills the log's 1,000th page: one filter in forty then waits for two
fsyncs. Invariants: a passive checkpoint blocks nothing and waits for nothing; where no web process runs, SQLite does it
at AUTOCHECKPOINT_PAGES of the settings.
"""

from __future__ import annotations

import threading

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connection

PAUSE_SECONDS = 1.0

log = structlog.get_logger(__name__)

_stopping = threading.Event()


async def start() -> None:
    """Start the thread; on PostgreSQL none is needed."""
    _stopping.clear()
    if connection.vendor == "sqlite":
        threading.Thread(target=_keep, name="checkpoints", daemon=True).start()


async def stop() -> None:
    """Let the thread end after its present round."""
    _stopping.set()


def checkpoint() -> None:
    """Copy what no reader needs any more from the log into the database."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        cursor.fetchall()


def _keep() -> None:
    while not _stopping.wait(PAUSE_SECONDS):
        try:
            checkpoint()
        except (DatabaseError, InterfaceError) as error:
            log.warning("database.checkpoint_failed", error=str(error))
        finally:
            close_old_connections()
    connection.close()
