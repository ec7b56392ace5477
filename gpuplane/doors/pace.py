"""How often something may be tried: by address, and by everybody together.

Used by `agent_tokens` for credentials that were never seen before, and by `cluster` for what those of whom nobody knows who they are
have looked up. One address alone cannot take what the others are given, unless it is many; at most MOST_ADDRESSES are remembered,
those that tried longest ago forgotten first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MOST_ADDRESSES: Final = 4_096
LOOKUPS_A_SECOND: Final = 250.0
"""For one address, on average. kube-scheduler binds at most 50 pods a second unless it is told otherwise."""
LOOKUPS_BURST: Final = 1_000.0
"""For one address, at once."""
ALL_LOOKUPS_A_SECOND: Final = 1_000.0
ALL_LOOKUPS_BURST: Final = 4_000.0


class Allowance:
    """`burst` tries at one time, and so many more a second, for each key. `clock`: seconds. Used on one event loop.

    A try that turned out well may be given back, so that only failures use the allowance up; while it is under way it counts.
    """

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


class LookupPace:
    """What strangers may have looked up in one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses = Allowance(burst=LOOKUPS_BURST, a_second=LOOKUPS_A_SECOND, clock=clock)
        self._all = Allowance(burst=ALL_LOOKUPS_BURST, a_second=ALL_LOOKUPS_A_SECOND, clock=clock, most=1)

    def take(self, address: str) -> bool:
        """Whether the address may have one more thing looked up now."""
        return self._addresses.take(address) and self._all.take("")
