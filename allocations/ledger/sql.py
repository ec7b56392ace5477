"""SQL values as the two databases store them, for the few statements written by hand.

The hot path (filter, bind) writes its statements out: Django's query compiler costs several times
what SQLite needs to run them. Everything else uses the ORM.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from audit.cursors import on_postgresql

_encode = msgspec.json.Encoder().encode


def moment(value: datetime | None) -> Any:
    """A datetime parameter: aware on PostgreSQL, naive UTC text on SQLite (Django's own storage)."""
    if value is None or on_postgresql():
        return value
    # several a filter: in UTC, as nearly all are, only the offset has to go
    in_utc = value if value.tzinfo is UTC else value.astimezone(UTC)
    return in_utc.isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00")


def identity(value: uuid.UUID) -> Any:
    """A UUID parameter: native on PostgreSQL, 32 hex digits on SQLite."""
    return value if on_postgresql() else value.hex


def read_identity(value: Any) -> uuid.UUID:
    """A UUID column read back."""
    return value if isinstance(value, uuid.UUID) else uuid.UUID(hex=value)


def read_moment(value: Any) -> datetime | None:
    """A datetime column read back, aware, in UTC."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def document(value: Any) -> str:
    """A JSON parameter (text; PostgreSQL casts it to jsonb by the column)."""
    return _encode(value).decode()
