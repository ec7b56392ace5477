"""Rates of counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NARROW: Final = 2**32
"""A counter of 32 bits wraps here."""


class Rates:
    """Rates a second between two readings of counters. `clock`: monotonic seconds."""

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
        """The rate; None after the first reading, a reset of the counter, and where the count is not known.

        `at`: time of the reading, if not now. A busy counter of 32 bits (`is_narrow`) wraps several times between two
        readings: `about`, a rate over a short while, tells how often.
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
        """Forget all readings, or those of one device."""
        self._last = {key: last for key, last in self._last.items() if device not in {None, key[0]}}


def gained_a_second(before: int, after: int, seconds: float) -> float | None:
    """The rate of a counter of 32 bits over a time in which it wraps once at most."""
    return (after - before) % NARROW / seconds if seconds > 0 else None
