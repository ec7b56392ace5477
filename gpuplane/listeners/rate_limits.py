"""Rate limits by token bucket: for each key, and for each address within a limit for all addresses.

Used by `agent_tokens` for credentials that were never seen before, by `cluster` for lookups of callers without a
credential, and by `bodies` for large bodies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from access.networks import network_of
from gpuplane.listeners.bounded_dict import Recent

MOST_ADDRESSES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` at one time, and `a_second` further ones a second."""

    burst: float
    a_second: float


LOOKUPS: Final = Rate(burst=1_000.0, a_second=250.0)
"""For one address. kube-scheduler binds at most 50 pods a second by default."""
ALL_LOOKUPS: Final = Rate(burst=4_000.0, a_second=1_000.0)


class RateLimit:
    """A token bucket for each key, of the `most` keys used last. Used on one event loop."""

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = time.monotonic, most: int = MOST_ADDRESSES) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: Recent[str, tuple[float, float]] = Recent(most)

    def take(self, key: str) -> bool:
        """Whether one more is allowed; counts it."""
        left = self._left(key)
        if left < 1.0:
            return False
        self._buckets[key] = left - 1.0, self._clock()
        return True

    def give_back(self, key: str) -> None:
        """Undo a `take`."""
        self._buckets[key] = min(self._rate.burst, self._left(key) + 1.0), self._clock()

    def _left(self, key: str) -> float:
        left, at = self._buckets.get(key, (self._rate.burst, 0.0))
        return min(self._rate.burst, left + (self._clock() - at) * self._rate.a_second)


class AddressRateLimit:
    """A rate for each address and one for all together, so that no address alone uses up what all may have.

    All addresses of an IPv6 /64 count as one.
    """

    def __init__(self, each: Rate, together: Rate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = RateLimit(each, clock=clock)
        self._together = RateLimit(together, clock=clock, most=1)

    def take(self, address: str) -> bool:
        """Whether the address may have one more now; counts it."""
        network = network_of(address)
        if not self._each.take(network):
            return False
        if self._together.take(""):
            return True
        self._each.give_back(network)
        return False

    def give_back(self, address: str) -> None:
        """Undo a `take`."""
        self._each.give_back(network_of(address))
        self._together.give_back("")
