"""The fleet as the engine sees it: frozen numpy columns, one row a device.

Made by `engine.build`, for `allocations.fleet` (from the ledger) and `allocations.scenario` (from a file); read by the
engine. Invariants: devices are sorted by (node, type code, minor); the devices of node i are rows
`node_start[i]:node_start[i + 1]`; arrays are never written after construction (patching makes a new Snapshot that
shares what did not change).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.index import Usage, UseColumns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from allocations.engine.index import SnapshotIndex
    from allocations.engine.topology import Topology

EXCLUSIVE, DEVICE_PLUGIN = 0, 1
"""Node modes, as stored in `Snapshot.node_mode`."""


class Withheld(IntEnum):
    """Why a healthy device is given to nobody, as stored in `Snapshot.device_kept`."""

    NOT = 0
    MIG = 1
    """A GPU in MIG mode: only its instances are given."""
    CLOSED = 2
    """Somebody outside the ledger holds it, or may."""


class Grouped(IntEnum):
    """Whether a reservation pod has the device, as stored in `Snapshot.device_group`."""

    NOT = 0
    OPEN = 1
    """Its group takes sharers."""
    CLOSED = 2
    """Its group takes nobody: the GPU is somebody's whole, or the reservation pod is going or lost."""


NO_MEMORY = 0
"""`memory_total` of a device type that has none (RDMA, FPGA)."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """n nodes and d devices; units: core in percent (100 = whole), memory in bytes."""

    node_names: tuple[str, ...]
    """n names, sorted."""
    node_index: Mapping[str, int]
    """name → row in the node columns."""
    node_mode: NDArray[np.uint8]
    """[n] EXCLUSIVE or DEVICE_PLUGIN."""
    node_problem: tuple[str, ...]
    """n reasons why nothing new may be placed there (`node is not ready`), empty where there is none."""
    node_start: NDArray[np.int32]
    """[n + 1] first device row of each node."""
    node_topology: tuple[Topology, ...]
    """n link matrices of the node's GPUs; equal ones are the same object (one fingerprint)."""
    types: tuple[str, ...]
    """Device type names; `device_type` holds indices into it."""
    type_code: Mapping[str, int]
    """name → index."""
    models: tuple[str, ...]
    """Names; `device_model` holds indices into it."""
    device_id: NDArray[np.int64]
    """[d] the ledger's primary key."""
    device_uuid: tuple[str, ...]
    device_node: NDArray[np.int32]
    """[d] row of the node."""
    device_type: NDArray[np.int16]
    device_model: NDArray[np.int16]
    device_minor: NDArray[np.int32]
    device_numa: NDArray[np.int32]
    """[d] NUMA node, -1 where unknown."""
    device_pcie: NDArray[np.int32]
    """[d] code of the PCIe switch, equal within a node for devices under the same switch, -1 unknown."""
    device_island: NDArray[np.int32]
    """[d] NVLink island within the node, unhealthy and used GPUs included, -1 for other types."""
    device_healthy: NDArray[np.bool_]
    """[d] healthy, present, not withheld, and in no closed group."""
    device_kept: NDArray[np.uint8]
    """[d] `Withheld`."""
    device_group: NDArray[np.uint8]
    """[d] `Grouped`."""
    memory_total: NDArray[np.int64]
    core_used: NDArray[np.int16]
    memory_used: NDArray[np.int64]
    index: SnapshotIndex
    """What follows from the columns that patches do not touch; shared by patched snapshots."""
    usage: dict[int, Usage] = field(default_factory=dict, repr=False)
    """Sums by type code, computed when first needed (`usage_of`)."""

    def rows_of_node(self, node: int) -> slice:
        """The rows of a node's devices."""
        return slice(int(self.node_start[node]), int(self.node_start[node + 1]))

    @property
    def use(self) -> UseColumns:
        """The columns that patches change."""
        return UseColumns(self.core_used, self.memory_used, self.device_healthy, self.device_group)

    def usage_of(self, code: int) -> Usage:
        """The usage of a type, computed once for a snapshot."""
        usage = self.usage.get(code)
        return usage or self.usage.setdefault(code, Usage.of(self.index.views[code], self.use))
