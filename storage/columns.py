"""Parameters and columns of hand-written SQL, as the two databases store them.

The hot path (filter, bind) avoids Django's query compiler, which takes several times as long as SQLite does.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from storage.cursors import on_postgresql

_encode = msgspec.json.Encoder().encode


def identity(value: uuid.UUID) -> Any:
    """A UUID parameter: native on PostgreSQL, 32 hex digits on SQLite."""
    return value if on_postgresql() else value.hex


def read_identity(value: Any) -> uuid.UUID:
    """The value of a UUID column."""
    return value if isinstance(value, uuid.UUID) else uuid.UUID(hex=value)


def read_moment(value: Any) -> datetime | None:
    """The value of a datetime column, aware, in UTC."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def document(value: Any) -> str:
    """A JSON parameter, as text."""
    return _encode(value).decode()
