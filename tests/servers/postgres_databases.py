"""PostgreSQL databases for tests, copies of a template: a database that is given back is emptied and given out again,
at a tenth of the CPU of a drop and a copy.

Used by `tests.databases`. Invariants: a database that is given out holds exactly what the template holds, sequences
included, and its emptied tables have no page of earlier tests, so that rows lie in the order in which they are written;
a database whose schema, statistics or template rows were changed is dropped.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tests.servers import postgres

KEPT_MOST = 3
"""Databases that wait to be given out again. One test has one, or two at most."""
STATIC = ["django_migrations", "django_content_type", "auth_permission"]
"""Tables that have rows in the template."""
_CATALOGS = ("pg_attribute", "pg_constraint", "pg_index", "pg_proc", "pg_trigger", "pg_statistic")
"""Columns, rules and statistics: a row is written anew with every change, and none by what writes rows of tables."""
_LEFT_SECONDS = 10
_numbers = itertools.count(1)
_idle: list[str] = []
_pristine: list[_State] = []


@dataclass(frozen=True)
class _State:
    """What must be as in the template."""

    rows: tuple[Any, ...]
    """Count and newest transaction of each catalog and each static table."""
    sequences: dict[str, int]
    """Last value of each sequence that was ever asked."""


def take(template: str) -> str:
    """Name of a database like `template`."""
    if _idle:
        return _idle.pop()
    name = f"test_{os.getpid()}_{next(_numbers)}"
    administer("CREATE DATABASE {} TEMPLATE {}", name, template)
    if not _pristine:
        with _connected(name) as connection:
            _pristine.append(_state(connection))
    return name


def give_back(name: str) -> None:
    """Nobody uses it any more; sessions that are left in it are ended."""
    if len(_idle) < KEPT_MOST and _emptied(name):
        _idle.append(name)
    else:
        administer("DROP DATABASE {} WITH (FORCE)", name)


def administer(statement: str, *names: str) -> None:
    """Execute a statement with identifiers, in the database `postgres`."""
    with _connected("postgres") as connection:
        connection.execute(sql.SQL(statement).format(*(sql.Identifier(name) for name in names)))


def _connected(name: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(f"{postgres.server_url()}/{name}", autocommit=True)


def _emptied(name: str) -> bool:
    """Whether it is as the template again."""
    with _connected(name) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            [1000 * _LEFT_SECONDS, name],
        ).fetchall()
        found, pristine = _state(connection), _pristine[0]
        if found.rows != pristine.rows or not all(done for (done,) in ended):
            return False
        touched = [
            table
            for (table,) in connection.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
                " AND relname <> ALL(%s) AND pg_relation_size(oid) > 0",
                [STATIC],
            )
        ]
        moved = {
            sequence: pristine.sequences.get(sequence)
            for sequence, last in found.sequences.items()
            if pristine.sequences.get(sequence) != last
        }
        # as a replica: foreign keys are not looked at, so that tables have no order
        deletes = ["SET session_replication_role = replica", *(f"DELETE FROM {table}" for table in touched)]
        resets = [
            f"SELECT setval('{sequence}', {last or 1}, {'false' if last is None else 'true'})"
            for sequence, last in moved.items()
        ]
        connection.execute(";".join(deletes + resets))
        if touched:
            connection.execute(f"VACUUM (INDEX_CLEANUP ON) {', '.join(touched)}")
    return True


def _state(connection: psycopg.Connection[tuple[Any, ...]]) -> _State:
    columns = (f"(SELECT array[count(*), max(xmin::text::bigint)] FROM {table})" for table in (*_CATALOGS, *STATIC))
    rows = connection.execute(f"SELECT {', '.join(columns)}").fetchone()
    assert rows is not None
    sequences = connection.execute(
        "SELECT quote_ident(sequencename), last_value FROM pg_sequences WHERE last_value IS NOT NULL"
    )
    return _State(rows, dict(sequences.fetchall()))
