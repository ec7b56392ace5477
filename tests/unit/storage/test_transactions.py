import errno

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction
from structlog.testing import capture_logs

from storage.cursors import Statement, run_together
from storage.transactions import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Space,
    atomic_retry,
    is_full,
    is_transient,
    one_trip_retry,
    pause_seconds,
    release_connection,
)


@pytest.fixture(autouse=True)
def _no_pauses(request, monkeypatch):
    """Nobody else wants the rows, so nothing is gained by waiting; real deadlocks need the real pauses."""
    if "ledger_db" not in request.fixturenames:
        monkeypatch.setattr("storage.transactions.time.sleep", lambda _: None)


def failing(times, error):
    """Writes a group, then fails so many times."""
    calls: list[None] = []

    def work():
        calls.append(None)
        Group.objects.create(name=f"g{len(calls)}")
        if len(calls) <= times:
            raise error
        return len(calls)

    return work, calls


@pytest.mark.django_db(transaction=True)
def test_a_lost_transaction_is_run_again_and_leaves_nothing_of_the_first_try():
    work, _ = failing(2, OperationalError("database is locked"))
    assert atomic_retry(work)() == 3
    assert list(Group.objects.values_list("name", flat=True)) == ["g3"]


@pytest.mark.django_db(transaction=True)
def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr("storage.transactions.ATTEMPTS", 4)
    work, calls = failing(99, OperationalError("database is locked"))
    with pytest.raises(OperationalError):
        atomic_retry(work)()
    assert len(calls) == 4
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "error",
    [IntegrityError("x"), OperationalError("no such table"), ValueError("x")],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_pass_at_once(error):
    work, calls = failing(1, error)
    with pytest.raises(type(error)):
        atomic_retry(work)()
    assert len(calls) == 1
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_inside_another_transaction_nothing_is_run_again():
    work, calls = failing(1, OperationalError("database is locked"))
    with pytest.raises(OperationalError), transaction.atomic():
        atomic_retry(work)()
    assert len(calls) == 1


class DatabaseFailure(Exception):
    """What a driver raises, with PostgreSQL's code."""

    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def of_postgresql(sqlstate):
    error = OperationalError("x")
    error.__cause__ = DatabaseFailure(sqlstate)
    return error


@pytest.mark.parametrize(
    ("error", "want_transient", "want_full"),
    [
        pytest.param(of_postgresql("40001"), True, False, id="serialization failure"),
        pytest.param(of_postgresql("40P01"), True, False, id="deadlock"),
        pytest.param(of_postgresql("55P03"), True, False, id="lock not available"),
        pytest.param(of_postgresql("53100"), False, True, id="disk full on PostgreSQL"),
        pytest.param(of_postgresql("08006"), False, False, id="connection lost"),
        pytest.param(OperationalError("database is locked"), True, False, id="SQLite's writer"),
        pytest.param(IntegrityError("is locked"), False, False, id="another error that says so"),
        pytest.param(OperationalError("database or disk is full"), False, True, id="disk full on SQLite"),
    ],
)
def test_what_errors_mean(error, want_transient, want_full):
    assert (is_transient(error), is_full(error)) == (want_transient, want_full)


def test_a_disk_without_space_is_full_too():
    assert is_full(OSError(errno.ENOSPC, "x"))
    assert not is_full(OSError(errno.EACCES, "x"))
    assert not is_full(ValueError("disk is full"))


def test_a_full_database_is_remembered_until_a_write_succeeds():
    space = Space()
    space.note(OperationalError("no such table"))
    assert not space.full
    with capture_logs() as logs:
        for _ in range(2):
            space.note(OperationalError("database or disk is full"))
        full = space.full
        for _ in range(2):
            space.found()
    assert (full, space.full) == (True, False)
    assert [entry["event"] for entry in logs] == ["database.full", "database.has_space_again"]


@pytest.mark.django_db(transaction=True)
def test_a_full_database_is_noted_and_not_tried_again(monkeypatch):
    monkeypatch.setattr("storage.transactions.SPACE", space := Space())
    work, calls = failing(9, OperationalError("database or disk is full"))
    with pytest.raises(OperationalError):
        atomic_retry(work)()
    assert (space.full, len(calls)) == (True, 1)


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_full_at_the_last_attempt_is_noted_too(monkeypatch):
    monkeypatch.setattr("storage.transactions.SPACE", space := Space())
    monkeypatch.setattr("storage.transactions.ATTEMPTS", 2)
    errors = iter([OperationalError("database is locked"), OperationalError("database or disk is full")])

    def work():
        raise next(errors)

    with pytest.raises(OperationalError, match="full"):
        atomic_retry(work)()
    assert space.full


def test_a_connection_is_released_outside_of_transactions_alone(ledger_db):
    """SQLite has no pool: its connection stays."""
    Group.objects.count()
    with transaction.atomic():
        release_connection()
        assert connection.connection is not None
    release_connection()
    assert (connection.connection is None) == (ledger_db.vendor == "postgresql")


def test_pauses_grow_to_a_bound():
    assert pause_seconds(1, 0) == FIRST_PAUSE_SECONDS
    assert pause_seconds(2, 1) > pause_seconds(1, 1)
    assert pause_seconds(50, 1) == LONGEST_PAUSE_SECONDS


def bump(name):
    @atomic_retry
    def work():
        one = Group.objects.get(name="counter")
        other = Group.objects.select_for_update().get(name=name)
        Group.objects.filter(pk=other.pk).update(name=name)
        third = Group.objects.select_for_update().get(name={"a": "b", "b": "a"}[name])
        Group.objects.filter(pk=third.pk).update(name=third.name)
        return one.name

    return work


def test_deadlocks_end_well_on_both_databases(ledger_db):
    """LEASE-2 (part) writers that lock in opposite orders both succeed."""
    for name in ("counter", "a", "b"):
        Group.objects.create(name=name)
    assert connection.vendor == ledger_db.vendor
    for _ in range(4):
        assert ledger_db.race([bump("a"), bump("b")]) == ["counter"] * 2


def test_one_access_is_retried_and_needs_a_transaction_on_sqlite_alone(ledger_db):
    """Also PostgreSQL commits it, and within a transaction it is part of that."""
    within = []

    @one_trip_retry
    def insert(name, fails):
        within.append(connection.in_atomic_block)
        if len(within) <= fails:
            raise OperationalError("database is locked")
        run_together([[Statement("INSERT INTO auth_group (name) VALUES (%s)", [name])]])

    insert("a", 2)
    assert within == [ledger_db.vendor == "sqlite"] * 3
    connection.close()
    assert Group.objects.filter(name="a").exists()
    with transaction.atomic():
        insert("b", 0)
        assert within[-1]
        transaction.set_rollback(True)
    assert not Group.objects.filter(name="b").exists()
