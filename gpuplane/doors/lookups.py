"""How often strangers may have something looked up: a bucket of tokens for each address, and one for all.

Called by `cluster` on its event loop. Kept true: one address alone cannot take what the others are given, unless it
is many; at most MOST_ADDRESSES are remembered, those that asked longest ago forgotten first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

LOOKUPS_A_SECOND: Final = 250.0
"""For one address, on average. kube-scheduler binds at most 50 pods a second unless it is told otherwise."""
LOOKUPS_BURST: Final = 1_000.0
"""For one address, at once."""
ALL_LOOKUPS_A_SECOND: Final = 1_000.0
ALL_LOOKUPS_BURST: Final = 4_000.0
MOST_ADDRESSES: Final = 4_096


class Bucket:
    """Fills by `a_second` tokens up to `burst`. `now`: seconds of any clock that does not go back."""

    __slots__ = ("_a_second", "_at", "_burst", "_left")

    def __init__(self, *, a_second: float, burst: float, now: float) -> None:
        self._a_second = a_second
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """One token; False where there is none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Pace:
    """The buckets of one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(a_second=ALL_LOOKUPS_A_SECOND, burst=ALL_LOOKUPS_BURST, now=clock())
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether the address may have one more thing looked up now."""
        now = self._clock()
        bucket = self._addresses.get(address)
        if bucket is None:
            while len(self._addresses) >= MOST_ADDRESSES:
                self._addresses.popitem(last=False)
            bucket = self._addresses[address] = Bucket(a_second=LOOKUPS_A_SECOND, burst=LOOKUPS_BURST, now=now)
        else:
            self._addresses.move_to_end(address)
        return bucket.take(now) and self._all.take(now)
