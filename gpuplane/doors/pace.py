"""How often something may be tried: by address, and by everybody together.

Used by `agent_tokens` for credentials that were never seen before. A try that turned out well is given back, so only
failures use an allowance up; while it is under way it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST_ADDRESSES: Final = 4_096


class Allowance:
    """`burst` tries at one time, and so many more a second. `clock`: seconds. Used on one event loop."""

    def __init__(
        self, *, burst: float, a_second: float, clock: Callable[[], float], most: int = MOST_ADDRESSES
    ) -> None:
        self._burst = burst
        self._a_second = a_second
        self._clock = clock
        self._most = most
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> bool:
        """Whether one more may be tried."""
        left = self._now_left(key)
        if left < 1.0:
            return False
        self._put(key, left - 1.0)
        return True

    def give_back(self, key: str) -> None:
        """The try was no failure."""
        self._put(key, min(self._burst, self._now_left(key) + 1.0))

    def _now_left(self, key: str) -> float:
        left, at = self._left.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._clock() - at) * self._a_second)

    def _put(self, key: str, left: float) -> None:
        self._left.pop(key, None)
        while len(self._left) >= self._most:
            del self._left[next(iter(self._left))]  # the one that tried longest ago
        self._left[key] = left, self._clock()
