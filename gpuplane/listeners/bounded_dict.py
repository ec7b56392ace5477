"""A dict of bounded size, for what a process remembers of its callers."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """Keeps the `most` items that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        while len(self) >= self._most:
            del self[next(iter(self))]
        super().__setitem__(key, value)
