"""Rates out of counters that only grow."""

from __future__ import annotations

from collections.abc import Callable


class Rates:
    """What counters gained a second, between one look and the next. `clock`: seconds, any zero."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def of(self, device: str, name: str, count: int | None) -> float | None:
        """The rate; None at the first look, after a counter began anew, and where it is not known."""
        key = device, name
        if count is None:
            self._last.pop(key, None)
            return None
        now = self._clock()
        before = self._last.get(key)
        self._last[key] = now, count
        if before is None or now <= before[0] or count < before[1]:
            return None
        return (count - before[1]) / (now - before[0])

    def forget(self) -> None:
        """Everything begins anew."""
        self._last.clear()
