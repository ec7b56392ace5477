"""The table of device types and the resource names that pods request them by (DEV-1, DEV-4).

A new device type is one more row; code names a type only where a rule is about it: GPUs have NVLinks, samples and MIG
instances, and NICs are found in sysfs.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from kube.keys import KOORDINATOR_PREFIX, KUBERNETES_PREFIX

GPU: Final = "gpu"
RDMA: Final = "rdma"
FPGA: Final = "fpga"
MIG: Final = "mig-"
"""Prefix of the types of MIG instances: `mig-1g.10gb`. They are requested, placed and counted as types of their own; in
the ledger, in leases and in annotations they are GPUs.
"""
PREFIXES: Final = (KUBERNETES_PREFIX, KOORDINATOR_PREFIX)
"""Prefixes of every resource name of the table; a pod uses one of them."""


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
    """A device type: its name and, for each of its dimensions, the resource name without prefix."""

    type: str
    units: str
    shared: str = ""
    core: str = ""
    memory: str = ""
    ratio: str = ""
    id_is_address: bool = False
    """Whether Koordinator identifies such a device by its PCI address instead of its UUID."""

    def object_id(self, *, uuid: str, bus_id: str) -> str:
        """The id in Device objects and in Koordinator's allocation annotation."""
        return bus_id if self.id_is_address and bus_id else uuid

    def dimensions(self) -> Iterator[tuple[Dimension, str]]:
        """(dimension, resource name without prefix) of each of its dimensions."""
        for dimension in Dimension:
            name = getattr(self, dimension.value)
            if name:
                yield dimension, name


MIG_UUID: Final = "MIG-"
"""Prefix of the UUIDs of MIG instances."""


def mig_type(profile: str) -> str:
    """`1g.10gb+me` → `mig-1g.10gb.me`, as NVIDIA's device plugin names it (strategy mixed)."""
    return f"{MIG}{profile.replace('+', '.')}"


def is_mig(kind: str) -> bool:
    """Whether the type is one of MIG instances."""
    return kind.startswith(MIG)


def ledger_type(kind: str) -> str:
    """The type of such devices in the ledger."""
    return GPU if kind.startswith(MIG) else kind


def type_order(kind: str) -> tuple[bool, str]:
    """Sort key of types: GPUs first, then by name."""
    return kind != GPU, kind


DEVICE_TYPES: Final[tuple[DeviceType, ...]] = (
    DeviceType(GPU, units=GPU, shared="gpu.shared", core="gpu-core", memory="gpu-memory", ratio="gpu-memory-ratio"),
    DeviceType(RDMA, units=RDMA, id_is_address=True),
    DeviceType(FPGA, units=FPGA),
)
