"""Ranges of history that pages and REST offer."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

LIVE: Final = "3m"
"""The ring, second by second."""
_RANGES: Final = (
    (LIVE, "live", timedelta(minutes=3)),
    ("1h", "1 hour", timedelta(hours=1)),
    ("6h", "6 hours", timedelta(hours=6)),
    ("24h", "24 hours", timedelta(hours=24)),
    ("7d", "7 days", timedelta(days=7)),
    ("30d", "30 days", timedelta(days=30)),
    ("90d", "90 days", timedelta(days=90)),
)
RANGES: Final = {name: length for name, _, length in _RANGES}
WORDS: Final = {name: words for name, words, _ in _RANGES}
LONG: Final = {name: words for name, words in WORDS.items() if name != LIVE}
"""Ranges that the database covers."""


def known_range(given: str, *, default: str) -> str:
    """The range `given`; the default for an unknown one, and for LIVE unless that is the default."""
    return given if given in (RANGES if default == LIVE else LONG) else default
