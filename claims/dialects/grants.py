"""The input of the writers of results: the devices that a pod got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from claims.dialects.request import DeviceRequest


class NamedDevice(Protocol):
    """A device by its names."""

    @property
    def type(self) -> str:
        """Device type."""

    @property
    def minor(self) -> int:
        """Number of the device among those of its type on the node."""

    @property
    def uuid(self) -> str:
        """The device's UUID."""


class GrantView(NamedDevice, Protocol):
    """A granted device; implemented by the engine's `Grant`."""

    @property
    def core_percent(self) -> int:
        """0..100, 100 for a whole device."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes taken, None where the type has no memory."""

    @property
    def whole(self) -> bool:
        """Whether the pod is the only holder of the device."""


BusId = Callable[[tuple[str, int]], str | None]
"""(type, minor) → PCI address of the device, None or empty if unknown."""

MemoryTotal = Callable[[tuple[str, int]], int | None]
"""(type, minor) → bytes of the whole device, None if unknown."""


class Placed(NamedTuple):
    """A pod that got devices. `grants` are sorted: GPUs first, then by type and minor."""

    request: DeviceRequest
    node: str
    grants: Sequence[GrantView]
    memory_total: MemoryTotal | None
    bus_id: BusId | None
