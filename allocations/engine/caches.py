"""Caches bounded by bytes.

Used for what a wiring implies (`engine.sets`, `engine.subsets`, `engine.topology`, `engine.large_nodes`). Invariants: a
cache never holds more than its bytes; the least recently used entry goes first; an entry larger than the cache is not
kept; no answer depends on what is cached. Threads may share a cache: two that miss at once may both compute.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

P = ParamSpec("P")
R = TypeVar("R")

ENTRY_BYTES: Final = 512
"""Counted for each entry beside the bytes that its owner states: the key, the objects and the dictionary entry."""

MIB: Final = 1 << 20


class BoundedCache:
    """Values by key, of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, value_bytes: int) -> None:
        """Store a value and drop the least recently used until the rest fits."""
        entry_bytes = value_bytes + ENTRY_BYTES
        with self._lock:
            before = self._kept.pop(key, None)
            if before is not None:
                self.kept_bytes -= before[1]
            if entry_bytes > self.most_bytes:
                return
            self._kept[key] = (value, entry_bytes)
            self.kept_bytes += entry_bytes
            while self.kept_bytes > self.most_bytes:
                _, (_, dropped_bytes) = self._kept.popitem(last=False)
                self.kept_bytes -= dropped_bytes

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._kept.clear()
            self.kept_bytes = 0


def cached_in(store: BoundedCache, bytes_of: Callable[..., int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache a function that never returns None.

    `bytes_of`: (answer, *arguments) → bytes of both.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (function, args)
            answer: R | None = store.get(key)
            if answer is None:
                answer = function(*args, **kwargs)
                store.put(key, answer, bytes_of(answer, *args))
            return answer

        return cached

    return decorate
