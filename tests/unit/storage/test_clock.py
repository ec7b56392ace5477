"""The database's clock, and a reading of it that goes on by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from storage.clock import RunningClock, database_now
from tests.databases import TestDatabase

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_the_time_is_of_the_database_and_in_utc(ledger_db: TestDatabase) -> None:
    """It is asked of PostgreSQL; SQLite has the process's clock, and needs no query."""
    with CaptureQueriesContext(connection) as queries:
        first, second = database_now(), database_now()
    assert first.tzinfo is second.tzinfo is UTC
    assert timedelta(0) <= second - first < timedelta(minutes=1)
    assert len(queries) == (2 if ledger_db.vendor == "postgresql" else 0)


def test_a_running_clock_goes_on_from_its_reading_without_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = [100.0]
    monkeypatch.setattr("storage.clock.time.monotonic", lambda: monotonic[0])
    clock = RunningClock(AT, began=98.5)
    assert clock.now == AT + timedelta(seconds=1.5)
    monotonic[0] += 10
    assert clock.now == AT + timedelta(seconds=11.5)
