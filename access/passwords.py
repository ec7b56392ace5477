"""A password validator beside Django's: nothing derived from the account's name, and nothing repeated.

Named in `AUTH_PASSWORD_VALIDATORS`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from django.core.exceptions import ValidationError

REST_LEAST: Final = 8
"""Letters and digits that have to remain without the guessable words."""
DIFFERENT_LEAST: Final = 5
"""Different characters that a password has to have."""
SHORTEST_PART: Final = 3
WORDS: Final = (
    "administrator", "kubernetes", "correcthorsebatterystaple", "changeme", "password", "passwort", "gpuplane",
    "qwertyuiop", "letmein", "welcome", "cluster", "default", "secret", "qwerty", "admin", "login", "root", "user",
    "test", "1234567890", "123456", "1234", "123",
)  # fmt: skip
_LOOKALIKES: Final = str.maketrans("@4301!5$7", "aaeoiisst")


class NotDerivedValidator:
    """Refuses `admin-admin-admin`, `gpuplane-2026!`, `Ann.Lee-ann.lee` for `ann.lee@example.org`, and
    `abcabcabcabc`.
    """

    def validate(self, password: str, user: object = None) -> None:
        """Raises ValidationError."""
        folded = _folded(password)
        if len(set(folded)) < DIFFERENT_LEAST or _repeats(folded):
            raise ValidationError("This password repeats itself.", code="password_repeats")
        names = {
            _folded(str(getattr(user, field, "") or "")) for field in ("username", "first_name", "last_name", "email")
        }
        parts = {part for name in names for part in (name, *re.split(r"[\W_]+", name)) if len(part) >= SHORTEST_PART}
        words = sorted({_letters(part) for part in parts} | set(WORDS), key=len, reverse=True)
        for text in (_letters(folded), _letters(folded.translate(_LOOKALIKES))):
            if len(_without(text, words)) < REST_LEAST:
                raise ValidationError(
                    "This password is made of the account's name or of words that are guessed first.",
                    code="password_derived",
                )

    def get_help_text(self) -> str:
        """The rule for people."""
        return "Your password can’t be made of your name, of the product’s, or of one piece repeated."


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text)


def _without(text: str, words: list[str]) -> str:
    for word in words:
        if len(word) >= SHORTEST_PART:
            text = text.replace(word, "")
    return text


def _repeats(text: str) -> bool:
    """Whether the text is one piece repeated: then it is found inside its own double."""
    return len(text) > 1 and 0 < (text + text).find(text, 1) < len(text)
