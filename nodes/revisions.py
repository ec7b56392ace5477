"""Revisions of device rows: how a picture in memory learns what changed (DESIGN §2, Snapshot).

Every writer of a device stamps it with the revision of its transaction; a reader asks for rows at or
above a mark. Kept true: a row is never missed, even when two writers commit in reverse order.

- SQLite: writers are serial, so a counter taken inside the write transaction is enough.
- PostgreSQL: the revision is the writing transaction's id. A reader notes `pg_snapshot_xmin`, the
  oldest transaction still open when it looked, and next time reads everything from there on: what it
  already has is read again, what commits late is not missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.db import connection

from audit.cursors import hot_cursor, on_postgresql

SQLITE_NEXT = (
    "INSERT INTO nodes_revision (id, value) VALUES (1, 1) "
    "ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value"
)
POSTGRESQL_OWN = "pg_current_xact_id()::text::bigint"


class Stamp(NamedTuple):
    """A revision as it is written into a statement: SQL, and the parameters in it."""

    text: str
    values: tuple[int, ...]


def next_revision() -> int:
    """The revision of the current transaction. Call inside one, before writing devices."""
    with hot_cursor() as cursor:
        cursor.execute(f"SELECT {POSTGRESQL_OWN}" if on_postgresql() else SQLITE_NEXT)
        return int(cursor.fetchone()[0])


def next_stamp() -> Stamp:
    """The same for statements written by hand: PostgreSQL fills it in by itself, and is not asked for it."""
    return Stamp(POSTGRESQL_OWN, ()) if on_postgresql() else Stamp("%s", (next_revision(),))


@contextmanager
def writing() -> Iterator[int]:
    """The current transaction's revision, for services that stamp many rows."""
    if not connection.in_atomic_block:
        raise RuntimeError("a revision belongs to a transaction: call inside transaction.atomic")
    yield next_revision()
