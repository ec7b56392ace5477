"""Ordinals, by which reasons state a pod's place in its queue (`third in queue research`)."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
ORDINAL: Final = re.compile(rf"\b(?:{'|'.join(_WORDS[1:])}|[0-9]+(?:st|nd|rd|th))\b")
"""Every text that `ordinal` makes."""


def ordinal(place: int) -> str:
    """The ordinal of a place, from 1: a word up to `tenth`, then `11th`."""
    if place < len(_WORDS):
        return _WORDS[place]
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
