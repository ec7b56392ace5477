"""How far back a page or a request may look. Called by the views of this package and of the pages that show history."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

LIVE: Final = "3m"
"""From the ring, second by second."""
RANGES: Final = {
    LIVE: timedelta(minutes=3),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
WORDS: Final = {
    LIVE: "live",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
    "30d": "30 days",
    "90d": "90 days",
}


LONG: Final = {name: words for name, words in WORDS.items() if name != LIVE}
"""Those that the database knows."""


def known_range(given: str, *, default: str) -> str:
    """The range asked for; the default for anything that is none, and for the live one where that is a long one."""
    return given if given in (RANGES if default == LIVE else LONG) else default
