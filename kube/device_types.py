"""The table of device types and the resource names a pod may ask for them by (DEV-1, DEV-4).

Read by the dialects (pod → request, result → annotation) and by whoever advertises resources on
nodes. A new device type is one more row here, or one more row passed in by the caller; no code
knows a type by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from kube.keys import KOORDINATOR_PREFIX, KUBERNETES_PREFIX

GPU: Final = "gpu"
PREFIXES: Final = (KUBERNETES_PREFIX, KOORDINATOR_PREFIX)
"""Prefixes under which every name of the table is understood; a pod keeps to one of them."""


class Dimension(StrEnum):
    """What an amount counts."""

    UNITS = "units"
    """Percent of whole devices, core and memory alike: 50 is half a device, 200 two devices."""
    SHARED = "shared"
    """Number of devices over which the other amounts are spread."""
    CORE = "core"
    """Percent of computing power, 100 a device."""
    MEMORY = "memory"
    """Bytes."""
    RATIO = "ratio"
    """Percent of memory, 100 a device."""


class DeviceType(msgspec.Struct, frozen=True):
    """One device type: its name and, for each dimension it has, the resource name without prefix."""

    type: str
    units: str
    shared: str = ""
    core: str = ""
    memory: str = ""
    ratio: str = ""
    id_is_address: bool = False
    """Whether Koordinator knows such a device by its PCI address and not by its UUID: its node agent looks the device files up by it."""

    def object_id(self, *, uuid: str, bus_id: str) -> str:
        """The id in Device objects and in Koordinator's allocation annotation; without an address the UUID."""
        return bus_id if self.id_is_address and bus_id else uuid

    def dimensions(self) -> Iterator[tuple[Dimension, str]]:
        """(dimension, resource name without prefix) of every dimension this type has."""
        for dimension in Dimension:
            name = getattr(self, dimension.value)
            if name:
                yield dimension, name


DEVICE_TYPES: Final[tuple[DeviceType, ...]] = (
    DeviceType(GPU, units="gpu", shared="gpu.shared", core="gpu-core", memory="gpu-memory", ratio="gpu-memory-ratio"),
    DeviceType("rdma", units="rdma", id_is_address=True),
    DeviceType("fpga", units="fpga"),
)
