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


class Statement(NamedTuple):
    """A statement that returns one column of the rows that it writes, and its parameters."""

    text: str
    values: Sequence[Any]


_PLACE = re.compile(r"(?<!%)%s")


@cache
def on_postgresql() -> bool:
    """Whether the database is PostgreSQL, else SQLite. Asked once: a process has one all its life, and a look at it goes by the thread."""
    return connections[DEFAULT_DB_ALIAS].vendor == "postgresql"


def hot_cursor() -> Any:
    """A cursor of the current connection; the parameters travel beside the statement, typed by the server."""
    # looked up once: each use of `django.db.connection` finds it anew for the thread
    connection: Any = connections[DEFAULT_DB_ALIAS]
    connection.ensure_connection()
    if not on_postgresql():
        watched = connection.queries_logged or connection.execute_wrappers or connection.needs_rollback
        return connection.cursor() if watched else _LiteCursor(connection)
    from django.db.backends.postgresql.base import ServerBindingCursor

    cursor: Any = ServerBindingCursor(connection.connection)  # type: ignore[call-arg]  # stubs of psycopg 2, the class is psycopg 3's
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)


def run_together(statements: Sequence[Statement]) -> list[list[Any]]:
    """Run all of them in the current transaction; the column that each returned, in their order.

    On PostgreSQL they go to the server as one, and none sees what another wrote; on SQLite one runs after the other.
    """
    with hot_cursor() as cursor:
        if on_postgresql():
            cursor.execute(
                _as_one(tuple(one.text for one in statements)), [*chain(*(one.values for one in statements))]
            )
            return list(cursor.fetchone())
        found = []
        for one in statements:
            cursor.execute(one.text, one.values)
            found.append([row[0] for row in cursor.fetchall()])
        return found


@lru_cache(maxsize=512)
def _as_one(texts: tuple[str, ...]) -> str:
    parts = ", ".join(f"part{place} AS ({text})" for place, text in enumerate(texts))
    columns = ", ".join(f"ARRAY(SELECT * FROM part{place})" for place in range(len(texts)))  # noqa: S608 - numbers only
    return f"WITH {parts} SELECT {columns}"


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
