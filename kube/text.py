"""Text of the cluster that PostgreSQL does not take: the API server lets NUL into annotations and messages.

Used where objects and errors of the cluster are decoded, and nowhere above. Invariant: JSON stays JSON.
"""

from __future__ import annotations

from typing import Final

_NUL: Final = rb"\u0000"
_IN_PLACE: Final = rb"\ufffd"


def without_nul(text: bytes) -> bytes:
    """JSON with U+FFFD in place of each NUL, also of one in JSON that an annotation holds."""
    return text.replace(_NUL, _IN_PLACE) if _NUL in text else text
