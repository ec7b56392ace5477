"""The cursor for statements written out by hand that run with every pod.

Called by the hot path of every room (filter, bind, events). Kept true: it behaves as `connection.cursor()`
does, Django's errors and query log included. On PostgreSQL a statement that came a few times before is
prepared once a connection, which saves parsing and planning it; Django's own cursors put the values into
the text, so that no two statements are ever the same.
"""

from __future__ import annotations

from typing import Any

from django.db import connection


def hot_cursor() -> Any:
    """A cursor of the current connection; the parameters travel beside the statement, typed by the server."""
    if connection.vendor != "postgresql":
        return connection.cursor()
    from django.db.backends.postgresql.base import ServerBindingCursor

    connection.ensure_connection()
    # The stubs know this class, of psycopg 3, as one of psycopg 2.
    cursor: Any = ServerBindingCursor(connection.connection)  # type: ignore[call-arg]  # as above
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)
