"""The one database, as Django wants it described: PostgreSQL by URL, else SQLite in the data folder.

Asked by the settings, and by the tests for databases of their own, so that both run under the same options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environ

AUTOCHECKPOINT_PAGES = 10_000
"""40 MB of log: the web process empties it each second (`gpuplane.start.checkpoints`), this is for when there is none."""

SQLITE_BYTES = 64 << 20
"""Of all of a process's connections together: each thread has one, and each would keep as many pages of the file as its `cache_size` says."""


def describe(*, url: str, data_dir: Path, pool_size: int) -> dict[str, Any]:
    """An entry of `DATABASES`.

    `url` empty: SQLite, written by one at a time (IMMEDIATE takes the write lock at the start of a
    transaction, so that no transaction fails in its middle) and read during writes (WAL).
    """
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": data_dir / "gpuplane.sqlite3",
            "CONN_MAX_AGE": None,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 10,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536; "
                f"PRAGMA soft_heap_limit={SQLITE_BYTES}; PRAGMA busy_timeout=10000; PRAGMA wal_autocheckpoint={AUTOCHECKPOINT_PAGES};",
            },
        }
    entry: dict[str, Any] = environ.Env.db_url_config(url)
    if entry["ENGINE"] == "django.db.backends.postgresql":
        entry |= {
            "CONN_MAX_AGE": 0,
            "OPTIONS": {
                "pool": {"min_size": 2, "max_size": pool_size, "timeout": 10},
                "prepare_threshold": 3,  # for `audit.cursors`; a PgBouncer in between must be 1.21 or newer
            },
        }
    return entry
