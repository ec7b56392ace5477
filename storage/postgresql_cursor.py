"""The cursor of `storage.cursors` on PostgreSQL, apart from it because SQLite needs no psycopg.

psycopg's own cursor splits a statement of more than 50 parameters anew each time, 0.1 ms for a hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Self

import psycopg


class NumberedCursor(psycopg.RawCursor[Any]):
    """Takes Django's placeholders, and binds parameters on the server."""

    def execute(  # type: ignore[override]  # statements are text here
        self, query: Any, params: Sequence[Any] | None = None, **options: Any
    ) -> Self:
        """Run one statement with `%s` for each parameter. Raises psycopg's errors."""
        return super().execute(query if params is None else numbered(query), params, **options)


_MARK = re.compile(r"%[%s]")


@lru_cache(maxsize=512)
def numbered(statement: str) -> bytes:
    """PostgreSQL's placeholders in place of Django's."""
    numbers = count(1)
    return _MARK.sub(lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", statement).encode()
