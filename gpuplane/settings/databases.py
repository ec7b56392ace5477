"""Entries of Django's `DATABASES`: PostgreSQL by URL, else SQLite in the data folder.

Used by the settings, and by tests for databases of their own, so that both run under the same options.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import environ

from gpuplane.errors import BadSetting

AUTOCHECKPOINT_PAGES = 10_000
"""40 MB of log, for when there is no web process, which checkpoints each second (`gpuplane.start.checkpoints`)."""

SILENT_SERVER = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}
"""Of libpq: a server whose machine is gone fails a statement within half a minute. By the system's own time-outs a
thread would wait for a quarter of an hour, or for two hours after the server took the statement."""

SQLITE_BYTES = 64 << 20
"""Of all connections of a process together: each thread has one, and each would fill a cache of `cache_size`."""


def describe(*, url: str, data_dir: Path, pool_size: int) -> dict[str, Any]:
    """An entry of `DATABASES`.

    `url` empty: SQLite, with one writer at a time (IMMEDIATE takes the write lock at the start of a transaction, so
    that none fails in its middle) and readers beside it (WAL). Parameters of the URL are libpq's, such as `sslmode`.
    Raises BadSetting where libpq has no such parameter.
    """
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": data_dir / "gpuplane.sqlite3",
            "CONN_MAX_AGE": None,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 10,
                "init_command": (
                    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536; PRAGMA"
                    f" soft_heap_limit={SQLITE_BYTES}; PRAGMA busy_timeout=10000; PRAGMA"
                    f" wal_autocheckpoint={AUTOCHECKPOINT_PAGES};"
                ),
            },
        }
    entry: dict[str, Any] = environ.Env.db_url_config(url)
    if entry["ENGINE"] == "django.db.backends.postgresql":
        _known_to_libpq(entry.get("OPTIONS", {}))
        entry |= {
            "CONN_MAX_AGE": 0,
            "OPTIONS": {
                **SILENT_SERVER,
                **entry.get("OPTIONS", {}),
                "pool": {"min_size": 2, "max_size": pool_size, "timeout": 10},
                "prepare_threshold": 3,  # for `storage.cursors`; a PgBouncer in between must be 1.21 or newer
            },
        }
    return entry


def _known_to_libpq(parameters: Iterable[str]) -> None:
    from psycopg import pq  # SQLite does without it

    known = {one.keyword.decode() for one in pq.Conninfo.get_defaults()}
    if unknown := sorted(set(parameters) - known):
        raise BadSetting(f"GPUPLANE_DATABASE_URL: PostgreSQL's client has no parameter {', '.join(unknown)}")
