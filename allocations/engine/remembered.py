"""Answers that are worked out once and kept, of so many bytes in all.

Used by the engine for what a wiring implies (`engine.sets`, `engine.set_scores`, `engine.topology`, `engine.large_nodes`).
Kept true: whatever is asked for, in whatever order, a store keeps no more than its bytes; what was asked for longest ago goes
first; what is heavier than the whole store is not kept; an answer never depends on what is kept. Threads may share a store:
two that ask for the same at once may both work it out.
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
"""Counted for each entry beside what its owner says: key, value's objects, and the place in the store."""

MIB: Final = 1 << 20


class Remembered:
    """Values by key, of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Any:
        """The value, None where none is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, value_bytes: int) -> None:
        """Keep a value and drop what was asked for longest ago until the rest fits."""
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
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self.kept_bytes = 0


def remembered(store: Remembered, bytes_of: Callable[..., int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep a function's answers, none of which is None, in a store. `bytes_of`: (answer, *arguments) → bytes of both."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def asked(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (function, args)
            known: R | None = store.get(key)
            if known is not None:
                return known
            found = function(*args, **kwargs)
            store.put(key, found, bytes_of(found, *args))
            return found

        return asked

    return decorate
