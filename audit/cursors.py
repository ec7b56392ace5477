"""The cursor for statements written out by hand that run with every pod.

Called by the hot path of every room (filter, bind, events). Kept true: it behaves as `connection.cursor()`
does, Django's errors and query log included. On PostgreSQL a statement that came a few times before is
prepared once a connection, which saves parsing and planning it; Django's own cursors put the values into
the text, so that no two statements are ever the same. On SQLite Django's layers around a statement cost more
than most statements do, so it is sqlite3's own cursor that runs them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple, Self

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model


class Statement(NamedTuple):
    """A statement that writes rows, and its parameters. `returning`: the column of them that is wanted, empty for none."""

    text: str
    values: Sequence[Any]
    returning: str = ""


class Written(NamedTuple):
    """How many rows a `Statement` wrote, and what it returned of them."""

    rows: int
    returned: list[Any]


_PLACE = re.compile(r"(?<!%)%s")


@cache
def on_postgresql() -> bool:
    """Whether the database is PostgreSQL, else SQLite. Asked once: a process has one all its life, and a look at it goes by the thread."""
    return connections[DEFAULT_DB_ALIAS].vendor == "postgresql"


def hot_cursor() -> Any:
    """A cursor of the current connection; the parameters travel beside the statement, typed by the server."""
    # looked up once: each use of `django.db.connection` finds it anew for the thread
    connection: Any = connections[DEFAULT_DB_ALIAS]
    if connection.connection is None:  # Django's own look costs more than most statements on SQLite
        connection.ensure_connection()
    if not on_postgresql():
        watched = connection.force_debug_cursor or connection.execute_wrappers or connection.needs_rollback
        return connection.cursor() if watched else _LiteCursor(connection)
    from django.db.backends.postgresql.base import ServerBindingCursor

    cursor: Any = ServerBindingCursor(connection.connection)  # type: ignore[call-arg]  # stubs of psycopg 2, the class is psycopg 3's
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)


def write_rows(rows: Sequence[Model], columns: Sequence[str]) -> None:
    """Write these fields of rows that are there, by one statement that is run for each row.

    Django's `bulk_update` makes an expression for each value: for the health of 64 devices it takes 50 ms, this one.
    """
    if not rows:
        return
    connection = connections[DEFAULT_DB_ALIAS]
    meta: Any = rows[0]._meta  # noqa: SLF001 - Django's public model API
    fields: list[Any] = [meta.get_field(name) for name in columns]
    quoted = connection.ops.quote_name
    sets = ", ".join(f"{quoted(field.column)} = %s" for field in fields)
    statement = f"UPDATE {quoted(meta.db_table)} SET {sets} WHERE {quoted(meta.pk.column)} = %s"  # noqa: S608 - names of the schema
    values = [
        [*(field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields), row.pk] for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.executemany(statement, values)


def run_together(statements: Sequence[Statement]) -> list[Written]:
    """Run all of them in the current transaction; what each wrote, in their order.

    On PostgreSQL they go to the server as one, and none sees what another wrote; on SQLite one runs after the other.
    """
    with hot_cursor() as cursor:
        if on_postgresql():
            text = _as_one(tuple((one.text, one.returning) for one in statements))
            cursor.execute(text, [*chain(*(one.values for one in statements))])
            return [Written(len(found), found) for found in cursor.fetchone()]
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


@lru_cache(maxsize=512)
def _as_one(parts: tuple[tuple[str, str], ...]) -> str:
    """One statement that answers with an array for each part: what it returns of every row, else a 1."""
    named = ", ".join(f"part{place} AS ({text} RETURNING {wanted or 1})" for place, (text, wanted) in enumerate(parts))
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
        """The rows that are left. Raises Django's database errors."""
        try:
            return self._cursor.fetchall()
        except sqlite3.Error:
            with self._connection.wrap_database_errors:
                raise


@lru_cache(maxsize=512)
def _marked(statement: str) -> str:
    """SQLite's placeholders in place of Django's."""
    return _PLACE.sub("?", statement).replace("%%", "%")
