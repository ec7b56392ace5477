"""The database's clock, which decides every expiry (DESIGN §6: clocks differ).

Read once at an edge (a task, a view) and passed on as `now`. On SQLite database and process share
the machine's clock.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection

from audit.cursors import on_postgresql


def database_now() -> datetime:
    """The current time in UTC, as the database sees it."""
    if not on_postgresql():
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)
