"""How a dialect says no while parsing: an exception inside this package, a `Refusal` outside it.

Raised by the dialects, caught once in `claims.dialects.parse`; it never leaves the package.
"""

from __future__ import annotations

from claims.dialects.request import Refusal


class Refused(Exception):
    """The pod broke a rule of its dialect."""

    def __init__(self, rule: str, reason: str, *, field: str = "") -> None:
        super().__init__(reason)
        self.refusal = Refusal(rule=rule, reason=reason, field=field)
