"""Statements written by hand: their values and what they write, alike on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from storage import cursors
from storage.columns import read_moment
from storage.cursors import Statement, Written, hot_cursor, moment, run_all, write_rows
from tests.databases import TestDatabase

INSERT = "INSERT INTO auth_group (name) VALUES (%s), (%s)"
RENAME = "UPDATE auth_group SET name = %s WHERE name = %s"


def groups(*names: str) -> list[Group]:
    return [Group.objects.create(name=name) for name in names]


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def test_placeholders_and_percent_signs_are_djangos(ledger_db: TestDatabase) -> None:
    groups("a%b", "ab")
    with hot_cursor() as cursor:
        cursor.execute("SELECT name FROM auth_group WHERE name LIKE %s AND name LIKE '%%b'", ["a%"])
        assert sorted(cursor.fetchall()) == [("a%b",), ("ab",)]
        cursor.execute("SELECT name FROM auth_group WHERE name = %s", ["none"])
        assert cursor.fetchone() is None


def test_each_statement_returns_what_it_wrote(ledger_db: TestDatabase) -> None:
    """Rows are counted, and returned where a column is named, in the order of the statements."""
    groups("old")
    with transaction.atomic():
        inserted, renamed, missed = run_all(
            [
                Statement(INSERT, ["a", "b"], "name"),
                Statement(RENAME, ["new", "old"]),
                Statement(RENAME, ["x", "none"], "id"),
            ]
        )
    assert (inserted.rows, sorted(inserted.returned)) == (2, ["a", "b"])
    assert renamed.rows == 1
    assert missed == Written(0, [])
    assert names() == ["a", "b", "new"]


def test_a_statement_that_fails_undoes_those_before_it(ledger_db: TestDatabase) -> None:
    groups("taken")
    with pytest.raises(IntegrityError), transaction.atomic():
        run_all([Statement(INSERT, ["a", "b"]), Statement(INSERT, ["c", "taken"])])
    assert names() == ["taken"]


def test_named_fields_of_rows_are_written(ledger_db: TestDatabase) -> None:
    """Each row gets its own values, others stay; no rows are no query."""
    first, second, third = groups("a", "b", "c")
    first.name, second.name = "A", "B"
    write_rows([first, second], ["name"])
    write_rows([], ["name"])
    assert names() == ["A", "B", third.name]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC), id="UTC"),
        pytest.param(datetime(2026, 3, 1, 17, tzinfo=timezone(timedelta(hours=5))), id="another offset"),
        pytest.param(None, id="none"),
    ],
)
@pytest.mark.parametrize("postgresql", [True, False], ids=["postgresql", "sqlite"])
def test_a_moment_is_written_as_the_database_keeps_it_and_reads_back(
    monkeypatch: pytest.MonkeyPatch, value: datetime | None, postgresql: bool
) -> None:
    monkeypatch.setattr(cursors, "on_postgresql", lambda: postgresql)
    written = moment(value)
    assert written is value if postgresql or value is None else len(written) == len("2026-03-01 12:00:00.000000")
    assert read_moment(written) == value
