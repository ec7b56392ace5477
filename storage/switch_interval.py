"""Short turns at the interpreter while a thread works for long.

A thread that waits for the interpreter gets it after the switch interval, each time that it waits: the event loop, once
for each socket that is ready. Held by listeners for what may take long, and by comparisons of whole caches. Invariants:
the shortest interval that any thread holds is in force.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Final

SWITCH_SECONDS: Final = 0.005
"""How long a thread keeps the interpreter while others wait for it: Python's default."""
SHORT_SWITCH_SECONDS: Final = 0.0005
"""The same beside long requests: filter waits for the interpreter a dozen times a request. Always so short, it would
cost a bind 5 % of its CPU."""
SHORTEST_SWITCH_SECONDS: Final = 0.0001
"""The same beside a comparison of a whole cache, 0.3 s a minute, in which the event loop got 2 % of the time."""


class SwitchInterval:
    """While any thread is inside, threads switch at least so often."""

    _lock: Final = threading.Lock()
    _inside: Final[Counter[float]] = Counter()
    """How many threads hold each interval."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def _count(self, threads: int) -> None:
        with self._lock:
            self._inside[self._seconds] += threads
            sys.setswitchinterval(min(+self._inside, default=SWITCH_SECONDS))


SHORT_SWITCH_INTERVAL: Final = SwitchInterval(SHORT_SWITCH_SECONDS)
SHORTEST_SWITCH_INTERVAL: Final = SwitchInterval(SHORTEST_SWITCH_SECONDS)
