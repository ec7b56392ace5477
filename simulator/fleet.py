"""The nodes of the make-believe cluster: models, NVLink matrices, PCIe and NUMA layout, labels.

Read by `agents` (what a node reports) and `workload` (node names, how much there is). Kept true: the
same number of nodes gives the same fleet, name for name and UUID for UUID, so a second run finds its
nodes again; every shape is one of a machine that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final
from uuid import UUID, uuid5

from kube.keys import MODEL_LABEL

GPUS_A_NODE: Final = 8
NODES_A_RACK: Final = 8
MOST_NODES: Final = 5_000
NVLINK_BYTES: Final = 25e9
"""Bytes a second of one NVLink in one direction, from V100 to H200."""

_NAMESPACE: Final = UUID("6f0d7a52-6d64-4a0e-9a5d-6b1f0b7e9c11")

Links = tuple[tuple[int, int, int], ...]
"""(minor, minor, NVLinks between them), the lower minor first."""


def all_pairs(links: int) -> Links:
    """NVSwitch: every GPU reaches every other over all its links."""
    return tuple((a, b, links) for a, b in combinations(range(GPUS_A_NODE), 2))


def cube_mesh() -> Links:
    """Hybrid cube mesh of eight V100 with six links each: two quads, one and two links to a neighbour."""
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    single = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}
    return tuple(sorted([(a, b, 2) for a, b in double] + [(a, b, 1) for a, b in single]))


def two_islands(links: int) -> Links:
    """Bridges over four cards each: two islands in one box."""
    return tuple((a, b, links) for quad in (range(4), range(4, 8)) for a, b in combinations(quad, 2))


def no_links() -> Links:
    """PCIe cards without bridges."""
    return ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of machine. `share` of 64 nodes are of it."""

    letter: str
    pool: str
    model: str
    memory_gib: int
    links: Links
    share: int
    gpus_a_switch: int
    """GPUs under one PCIe switch."""
    gpu_links: int
    """NVLinks of one GPU (behind a switch all of them reach every other GPU)."""
    nics: int
    """RDMA NICs, spread evenly over the switches."""
    idle_watts: int
    full_watts: int
    full_mhz: int


KINDS: Final = (
    Kind("a", "training", "H100", 80, all_pairs(18), 20, 2, 18, 8, 72, 690, 1980),
    Kind("b", "training", "A100", 80, all_pairs(12), 16, 2, 12, 8, 55, 395, 1410),
    Kind("c", "research", "V100", 32, cube_mesh(), 8, 2, 6, 4, 42, 295, 1530),
    Kind("d", "inference", "H200-NVL", 141, two_islands(6), 8, 4, 18, 2, 80, 590, 1785),
    Kind("e", "inference", "L40S", 48, no_links(), 12, 4, 0, 0, 33, 340, 2520),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card."""

    minor: int
    uuid: str
    numa: int
    pcie: str


@dataclass(frozen=True, slots=True)
class SimNode:
    """One machine of the fleet."""

    name: str
    kind: Kind
    rack: str
    gpus: tuple[Gpu, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs by minor: the order of this node's samples."""
        return tuple(gpu.uuid for gpu in self.gpus)

    def inventory(self, *, is_healthy: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """The node in a scenario's shape (DESIGN §5): body of `PUT …/inventory/` and of inventory frames."""
        return {
            "name": self.name,
            "labels": {
                "kubernetes.io/hostname": self.name,
                "topology.kubernetes.io/zone": f"hall-{1 + (ord(self.kind.letter) - ord('a')) % 2}",
                "topology.kubernetes.io/rack": self.rack,
                "pool": self.kind.pool,
                MODEL_LABEL: self.kind.model,
            },
            "mode": "exclusive",
            "devices": [*(self._gpu(gpu, is_healthy(gpu.uuid)) for gpu in self.gpus), *self._nics()],
            "links": [list(link) for link in self.kind.links],
        }

    def _gpu(self, gpu: Gpu, healthy: bool) -> dict[str, Any]:
        return {
            "minor": gpu.minor,
            "type": "gpu",
            "uuid": gpu.uuid,
            "model": self.kind.model,
            "memory": f"{self.kind.memory_gib}Gi",
            "numa": gpu.numa,
            "pcie": gpu.pcie,
            "busid": f"0000:{0x1A + 0x11 * gpu.minor:02x}:00.0",
            "healthy": healthy,
        }

    def _nics(self) -> Iterator[dict[str, Any]]:
        for minor in range(self.kind.nics):
            beside = self.gpus[minor * GPUS_A_NODE // self.kind.nics]
            yield {
                "minor": minor,
                "type": "rdma",
                "uuid": f"rdma-{self.name}-mlx5_{minor}",
                "model": "ConnectX-7" if self.kind.model != "V100" else "ConnectX-5",
                "numa": beside.numa,
                "pcie": beside.pcie,
                "busid": f"0000:{0x1B + 0x11 * minor:02x}:00.0",
                "healthy": True,
            }


def make_fleet(count: int) -> tuple[SimNode, ...]:
    """`count` nodes (1..MOST_NODES), the kinds in the proportions of `KINDS`, sorted by name."""
    if not 1 <= count <= MOST_NODES:
        raise ValueError(f"a fleet has 1 to {MOST_NODES} nodes, not {count}")
    whole = sum(kind.share for kind in KINDS)
    edges = [0]
    for kind in KINDS:
        edges.append(edges[-1] + kind.share)
    nodes = []
    for kind, low, high in zip(KINDS, edges, edges[1:], strict=False):
        size = round(high * count / whole) - round(low * count / whole)
        nodes += [_node(kind, number) for number in range(1, size + 1)]
    return tuple(nodes)


def _node(kind: Kind, number: int) -> SimNode:
    name = f"gpu-{kind.letter}-{number:03d}"
    gpus = []
    for minor in range(GPUS_A_NODE):
        switch = minor // kind.gpus_a_switch
        gpus.append(
            Gpu(
                minor=minor,
                uuid=f"GPU-{uuid5(_NAMESPACE, f'{name}/{minor}')}",
                numa=minor // (GPUS_A_NODE // 2),
                pcie=f"0000:{0x19 + 0x22 * switch:02x}",
            )
        )
    return SimNode(name, kind, f"{kind.letter}{1 + (number - 1) // NODES_A_RACK:02d}", tuple(gpus))
