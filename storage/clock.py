"""The database's clock, which decides every expiry. It is read at an edge (a task, a view) and passed on as `now`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connection

from storage.cursors import on_postgresql

CLOCK: Final = "SELECT clock_timestamp()"
"""PostgreSQL's clock, for a pipeline."""
STEP: Final = timedelta(seconds=1)
"""A clock that gained more than this on the monotonic clock between two readings was set forward."""


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


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the database's clock. `even_since`: since when it runs without a step, None: no step was seen."""

    now: datetime
    even_since: datetime | None = None

    def later(self, since: datetime | None) -> datetime | None:
        """Since when silence counts that has counted from `since` on, None: always."""
        return max((one for one in (since, self.even_since) if one is not None), default=None)


class StepClock:
    """The database's clock beside this process's monotonic clock, for tasks that act on silence.

    After the database's clock was set forward every row seems old, until those that live renew theirs: silence counts
    from `even_since` on. Threads may share one.
    """

    def __init__(
        self, *, read: Callable[[], datetime] = database_now, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest_origin: datetime | None = None
        """The latest moment at which the monotonic clock may have been 0, by the reading before."""
        self._stepped_at: float | None = None

    def read(self) -> ClockReading:
        """Read the database's clock. A query that takes long is no step."""
        before = self._monotonic()
        now = self._read()
        after = self._monotonic()
        with self._lock:
            earliest_origin, known = now - timedelta(seconds=after), self._latest_origin
            self._latest_origin = now - timedelta(seconds=before)
            if known is not None and earliest_origin - known > STEP:
                self._stepped_at = after
            if self._stepped_at is None:
                return ClockReading(now)
            return ClockReading(now, now - timedelta(seconds=after - self._stepped_at))
