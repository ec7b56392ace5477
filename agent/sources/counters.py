"""Rates out of counters that only grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NARROW: Final = 2**32
"""A counter of 32 bits begins anew there."""


class Rates:
    """What counters gained a second, between one look and the next. `clock`: seconds, any zero."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def of(
        self,
        device: str,
        name: str,
        count: int | None,
        *,
        at: float | None = None,
        is_narrow: bool = False,
        about: float | None = None,
    ) -> float | None:
        """The rate; None at the first look, after a counter began anew, and where it is not known.

        `at`: when it was counted, if not now. A counter of 32 bits (`is_narrow`) goes on after its end, which a busy
        one comes to several times between two looks: `about`, a rate measured over a moment, says how often.
        """
        key = device, name
        if count is None:
            self._last.pop(key, None)
            return None
        now = self._clock() if at is None else at
        before = self._last.get(key)
        self._last[key] = now, count
        if before is None or now <= before[0]:
            return None
        gained, elapsed = count - before[1], now - before[0]
        if is_narrow:
            gained %= NARROW
            gained += NARROW * max(0, round(((about or 0.0) * elapsed - gained) / NARROW))
        return gained / elapsed if gained >= 0 else None

    def forget(self, device: str | None = None) -> None:
        """Everything begins anew, or everything of one device."""
        self._last = {key: last for key, last in self._last.items() if device not in {None, key[0]}}


def gained_a_second(before: int, after: int, seconds: float) -> float | None:
    """The rate of a counter of 32 bits over a moment in which it comes to its end once at most."""
    return (after - before) % NARROW / seconds if seconds > 0 else None
