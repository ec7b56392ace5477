"""The cursor for hand-written SQL on the hot path (filter, bind, events).

Invariants: it behaves like `connection.cursor()`, including Django's errors and query log. On PostgreSQL it binds
parameters on the server, so that repeated statements are prepared; Django's own cursors put the values into the text.
On SQLite it is sqlite3's own cursor, since Django's layers take longer than most statements.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence, Sized
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple, Self

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model


class Statement(NamedTuple):
    """A statement that writes rows, its parameters, and the column to return, if any."""

    text: str
    values: Sequence[Any]
    returning: str = ""


class Written(NamedTuple):
    """The number of rows that a `Statement` wrote, and the returned values."""

    rows: int
    returned: list[Any]


_PLACE = re.compile(r"(?<!%)%s")


@cache
def on_postgresql() -> bool:
    """Whether the database is PostgreSQL, else SQLite. Cached, since `connections` is looked up by thread."""
    return connections[DEFAULT_DB_ALIAS].vendor == "postgresql"


def hot_cursor() -> Any:
    """A cursor of the current connection."""
    # each use of `django.db.connection` is a lookup by thread
    connection: Any = connections[DEFAULT_DB_ALIAS]
    if connection.connection is None:  # Django's own check takes longer than most statements on SQLite
        connection.ensure_connection()
    if not on_postgresql():
        watched = connection.force_debug_cursor or connection.execute_wrappers or connection.needs_rollback
        return connection.cursor() if watched else _LiteCursor(connection)
    from storage.postgresql_cursor import NumberedCursor

    cursor = NumberedCursor(connection.connection)
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)


def moment(value: datetime | None) -> Any:
    """A datetime parameter: aware on PostgreSQL, naive UTC text on SQLite (Django's own storage)."""
    if value is None or on_postgresql():
        return value
    # fast for UTC, as nearly all are: filter has several
    in_utc = value if value.tzinfo is UTC else value.astimezone(UTC)
    return in_utc.isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00")


def marks(values: Sized) -> str:
    """A placeholder for each, for `IN (…)`."""
    return ", ".join(["%s"] * len(values))


def write_rows(rows: Sequence[Model], columns: Sequence[str]) -> None:
    """Update these fields of existing rows, by one statement that is executed for each row.

    Django's `bulk_update` builds an expression for each value, 50 ms for the health of 64 devices.
    """
    if not rows:
        return
    connection = connections[DEFAULT_DB_ALIAS]
    meta: Any = rows[0]._meta  # noqa: SLF001 - Django's public model API
    fields: list[Any] = [meta.get_field(name) for name in columns]
    quoted = connection.ops.quote_name
    sets = ", ".join(f"{quoted(field.column)} = %s" for field in fields)
    table, key = quoted(meta.db_table), quoted(meta.pk.column)
    statement = f"UPDATE {table} SET {sets} WHERE {key} = %s"  # noqa: S608 - names of the schema
    values = [
        [field.get_db_prep_save(getattr(row, field.attname), connection) for field in (*fields, meta.pk)]
        for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.executemany(statement, values)


class Query(NamedTuple):
    """A statement that returns rows, and its parameters."""

    text: str
    values: Sequence[Any]


def run_all(statements: Sequence[Statement]) -> list[Written]:
    """Run the statements in the current transaction; what each wrote, in their order.

    On PostgreSQL they are one statement, and none sees another's writes; on SQLite they run one after another.
    """
    with hot_cursor() as cursor:
        if on_postgresql():
            cursor.execute(*_one_query(statements))
            return _written(cursor.fetchone())
        written = []
        for one in statements:
            if one.returning:
                cursor.execute(f"{one.text} RETURNING {one.returning}", one.values)
                found = [row[0] for row in cursor.fetchall()]
                written.append(Written(len(found), found))
            else:
                cursor.execute(one.text, one.values)
                written.append(Written(cursor.rowcount, []))
        return written


def run_together(parts: Sequence[Query | Sequence[Statement]]) -> list[Any]:
    """Run the parts in the current transaction, one after the other: rows of a query, `run_all` of statements.

    On PostgreSQL they are sent together, in one round trip, and each sees what was committed before it begins. Outside
    a transaction they are one there: all of them are committed when this returns, or none.
    """
    if len(parts) == 1 or not on_postgresql():
        return [rows_of(part) if isinstance(part, Query) else run_all(part) for part in parts]
    connection: Any = connections[DEFAULT_DB_ALIAS]
    if connection.connection is None:
        connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.pipeline():
        cursors = []
        for part in parts:
            cursor = hot_cursor()
            cursor.execute(*(part if isinstance(part, Query) else _one_query(part)))
            cursors.append(cursor)
    # after the end of the pipeline, which reads all answers: a read inside would be a round trip of its own
    return [
        cursor.fetchall() if isinstance(part, Query) else _written(cursor.fetchone())
        for part, cursor in zip(parts, cursors, strict=True)
    ]


def rows_of(query: Query) -> list[Any]:
    """The rows of one query."""
    with hot_cursor() as cursor:
        cursor.execute(query.text, query.values)
        found: list[Any] = cursor.fetchall()
        return found


def _one_query(statements: Sequence[Statement]) -> Query:
    text = _as_one(tuple((one.text, one.returning) for one in statements))
    return Query(text, [*chain(*(one.values for one in statements))])


def _written(row: Sequence[list[Any]]) -> list[Written]:
    return [Written(len(found), found) for found in row]


@lru_cache(maxsize=512)
def _as_one(parts: tuple[tuple[str, str], ...]) -> str:
    """One statement that returns an array for each part: its returned column, or else a 1 for each row."""
    named = ", ".join(f"part{place} AS ({text} RETURNING {column or 1})" for place, (text, column) in enumerate(parts))
    arrays = ", ".join(f"ARRAY(SELECT * FROM part{place})" for place in range(len(parts)))  # noqa: S608 - numbers only
    return f"WITH {named} SELECT {arrays}"


class _LiteCursor:
    """sqlite3's own cursor, with Django's placeholders and Django's errors."""

    __slots__ = ("_connection", "_cursor")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor: sqlite3.Cursor = sqlite3.Connection.cursor(connection.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cursor.close()

    @property
    def rowcount(self) -> int:
        """Rows changed by the last statement."""
        return self._cursor.rowcount

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement with `%s` for each parameter. Raises Django's database errors."""
        try:
            self._cursor.execute(_marked(statement), parameters)
        except sqlite3.Error:
            with self._connection.wrap_database_errors:
                raise

    def fetchone(self) -> Any:
        """The next row, None after the last. Raises Django's database errors."""
        try:
            return self._cursor.fetchone()
        except sqlite3.Error:
            with self._connection.wrap_database_errors:
                raise

    def fetchall(self) -> list[Any]:
        """The remaining rows. Raises Django's database errors."""
        try:
            return self._cursor.fetchall()
        except sqlite3.Error:
            with self._connection.wrap_database_errors:
                raise


@lru_cache(maxsize=512)
def _marked(statement: str) -> str:
    """SQLite's placeholders in place of Django's."""
    return _PLACE.sub("?", statement).replace("%%", "%")
