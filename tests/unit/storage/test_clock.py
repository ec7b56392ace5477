"""The database's clock, and a reading of it that goes on by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from storage.clock import RunningClock, StepClock, database_now
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


@pytest.mark.parametrize(
    ("passed", "gained", "want"),
    [
        pytest.param(3600, 3600, None, id="no step in an hour"),
        pytest.param(5, 5.9, None, id="clocks that run a little apart"),
        pytest.param(5, 65, 0, id="set forward by a minute"),
        pytest.param(5, -3595, None, id="set back: no row seems older"),
    ],
)
def test_a_step_of_the_databases_clock_is_seen(passed: float, gained: float, want: float | None) -> None:
    """SLOT-2 SLOT-9 what it gains on the process's monotonic clock is a step; silence counts from then on."""
    monotonic, moment = [100.0], [AT]
    clock = StepClock(read=lambda: moment[0], monotonic=lambda: monotonic[0])
    assert clock.read().even_since is None
    monotonic[0] += passed
    moment[0] += timedelta(seconds=gained)
    expected = None if want is None else moment[0] - timedelta(seconds=want)
    assert clock.read().even_since == expected


def test_a_step_stays_known_when_the_clock_is_set_back() -> None:
    """SLOT-2 SLOT-9 silence still counts from the step, and not from a moment that is yet to come."""
    monotonic, moment = [100.0], [AT]
    clock = StepClock(read=lambda: moment[0], monotonic=lambda: monotonic[0])
    for passed, gained in ((0, 0), (5, 3605), (5, -3595)):
        monotonic[0] += passed
        moment[0] += timedelta(seconds=gained)
        reading = clock.read()
    assert reading.even_since == moment[0] - timedelta(seconds=5)


def test_a_slow_query_is_no_step() -> None:
    """SLOT-2 SLOT-9 a database that answers late has not set its clock."""
    monotonic, moment = [100.0], [AT]
    waits = [0.0]

    def read() -> datetime:
        monotonic[0] += waits[0]
        moment[0] += timedelta(seconds=waits[0])
        return moment[0]

    clock = StepClock(read=read, monotonic=lambda: monotonic[0])
    for wait in (0.0, 90.0, 0.0):
        waits[0] = wait
        assert clock.read().even_since is None
