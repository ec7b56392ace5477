"""Revisions of device rows, by which snapshots in memory find what changed.

Every writer of a device stamps it with the revision of its transaction: on SQLite, where writers are serial, a counter
incremented in the transaction, on PostgreSQL the transaction's id. Readers use `storage.revisioned_rows`, which
explains why none misses a row.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db import connection

from storage.cursors import hot_cursor, on_postgresql

SQLITE_NEXT = (
    "INSERT INTO nodes_revision (id, value) VALUES (1, 1) "
    "ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value"
)
POSTGRESQL_OWN = "pg_current_xact_id()::text::bigint"


class Stamp(NamedTuple):
    """A revision in a statement: SQL and its parameters."""

    text: str
    values: tuple[int, ...]


def next_revision() -> int:
    """The revision of the current transaction. Call inside one, before writing devices."""
    with hot_cursor() as cursor:
        cursor.execute(f"SELECT {POSTGRESQL_OWN}" if on_postgresql() else SQLITE_NEXT)
        return int(cursor.fetchone()[0])


def next_stamp() -> Stamp:
    """The revision for a raw statement; takes no query on PostgreSQL."""
    return Stamp(POSTGRESQL_OWN, ()) if on_postgresql() else Stamp("%s", (next_revision(),))


def transaction_revision() -> int:
    """As `next_revision`. Raises RuntimeError outside a transaction."""
    if not connection.in_atomic_block:
        raise RuntimeError("a revision belongs to a transaction: call inside transaction.atomic")
    return next_revision()
