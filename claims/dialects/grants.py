"""What the writers of results read of a granted device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class GrantView(Protocol):
    """What is read of one granted device; the engine's `Grant` has these."""

    @property
    def type(self) -> str:
        """Device type."""

    @property
    def minor(self) -> int:
        """Number of the device among those of its type on the node."""

    @property
    def uuid(self) -> str:
        """The device's UUID."""

    @property
    def core_percent(self) -> int:
        """0..100, 100 for a whole device."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes taken, None where the type has no memory."""

    @property
    def whole(self) -> bool:
        """Whether the device has this one holder."""


BusId = Callable[[tuple[str, int]], str | None]
"""(type, minor) → PCI address of the device, None or empty where unknown; a dict's `get` will do."""

MemoryTotal = Callable[[tuple[str, int]], int | None]
"""(type, minor) → bytes of the whole device, None where unknown; a dict's `get` will do."""
