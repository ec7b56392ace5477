"""The database's clock, which decides every expiry. It is read at an edge (a task, a view) and passed on as `now`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connection

from storage.cursors import on_postgresql

CLOCK: Final = "SELECT clock_timestamp()"
"""PostgreSQL's clock, for a pipeline."""


def database_now() -> datetime:
    """The database's current time in UTC; SQLite runs in the process and shares its clock."""
    if not on_postgresql():
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute(CLOCK)
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class RunningClock:
    """A reading of the database's clock, advanced by the monotonic clock: for work that takes seconds."""

    read_at: datetime
    began: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> datetime:
        """The current time, without a query."""
        return self.read_at + timedelta(seconds=time.monotonic() - self.began)
