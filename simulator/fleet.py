"""The nodes of the simulated cluster: models, NVLink matrices, PCIe and NUMA layout, labels.

Read by `agents` (inventories) and `workload` (node names). Invariants: the same number of nodes gives the same names
and UUIDs, so that a second run finds its nodes again; every shape is that of a real machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final
from uuid import UUID, uuid5

from agent.program import inventory_of
from agent.sources import DeviceFacts, Machine
from agent.sources.simulated import Links, all_pairs, cube_mesh
from kube.device_types import GPU, RDMA
from kube.keys import MODEL_LABEL

GPUS_A_NODE: Final = 8
NODES_A_RACK: Final = 8
MOST_NODES: Final = 5_000
USE_LABEL: Final = "use"
FOR_PODS, FOR_MODELS = "pods", "models"
"""What a node is for: pods come to the first alone, runners of models to the second."""
SERVING_KIND: Final = "d"
SERVING_NODES: Final = 2
SERVING_FROM: Final = 16
"""A smaller fleet keeps all its nodes for pods."""
_NAMESPACE: Final = UUID("6f0d7a52-6d64-4a0e-9a5d-6b1f0b7e9c11")


def two_islands(links: int) -> Links:
    """Two bridges over four cards each."""
    return tuple((a, b, links) for quad in (range(4), range(4, 8)) for a, b in combinations(quad, 2))


@dataclass(frozen=True, slots=True)
class MachineKind:
    """One kind of machine; `share` of 64 nodes are of it."""

    letter: str
    pool: str
    model: str
    memory_gib: int
    links: Links
    share: int
    gpus_a_switch: int
    """GPUs under one PCIe switch."""
    gpu_links: int
    """NVLinks of one GPU; by a switch all of them reach every other GPU."""
    nics: int
    """RDMA NICs, spread evenly over the switches."""
    idle_watts: int
    full_watts: int
    full_mhz: int


KINDS: Final = (
    MachineKind("a", "training", "H100", 80, all_pairs(GPUS_A_NODE, 18), 20, 2, 18, 8, 72, 690, 1980),
    MachineKind("b", "training", "A100", 80, all_pairs(GPUS_A_NODE, 12), 16, 2, 12, 8, 55, 395, 1410),
    MachineKind("c", "research", "V100", 32, cube_mesh(), 8, 2, 6, 4, 42, 295, 1530),
    MachineKind("d", "inference", "H200-NVL", 141, two_islands(6), 8, 4, 18, 2, 80, 590, 1785),
    MachineKind("e", "inference", "L40S", 48, (), 12, 4, 0, 0, 33, 340, 2520),
)
B200: Final = MachineKind("g", "burst", "B200", 180, all_pairs(GPUS_A_NODE, 18), 0, 2, 18, 8, 140, 1000, 1965)
L4: Final = MachineKind("h", "video", "L4", 24, (), 0, 4, 0, 0, 16, 72, 2040)
"""Of nodes that are made when pods need them (`simulator.karpenter`); the fleet has none."""


@dataclass(frozen=True, slots=True)
class SimNode:
    """One node of the fleet."""

    name: str
    kind: MachineKind
    rack: str
    machine: Machine
    use: str = FOR_PODS

    @property
    def gpus(self) -> tuple[DeviceFacts, ...]:
        """GPUs by minor."""
        return self.machine.gpus

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs by minor: the order of samples."""
        return tuple(gpu.uuid for gpu in self.gpus)

    def inventory(self) -> dict[str, Any]:
        """The body of `PUT …/inventory/` and of inventory frames."""
        return {**inventory_of(self.name, self.machine), "labels": self.labels, "mode": "exclusive"}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the node."""
        return {
            "kubernetes.io/hostname": self.name,
            "topology.kubernetes.io/zone": f"hall-{1 + (ord(self.kind.letter) - ord('a')) % 2}",
            "topology.kubernetes.io/rack": self.rack,
            "pool": self.kind.pool,
            USE_LABEL: self.use,
            MODEL_LABEL: self.kind.model,
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
    serving = [node for node in nodes if node.kind.letter == SERVING_KIND][-SERVING_NODES:]
    if count < SERVING_FROM:
        serving = []
    return tuple(replace(node, use=FOR_MODELS) if node in serving else node for node in nodes)


def _node(kind: MachineKind, number: int) -> SimNode:
    return make_node(kind, f"gpu-{kind.letter}-{number:03d}", f"{kind.letter}{1 + (number - 1) // NODES_A_RACK:02d}")


def make_node(kind: MachineKind, name: str, rack: str) -> SimNode:
    """A node of that kind; the same name gives the same UUIDs."""
    gpus = [
        DeviceFacts(
            minor=minor,
            uuid=f"GPU-{uuid5(_NAMESPACE, f'{name}/{minor}')}",
            model=kind.model,
            memory=kind.memory_gib * 2**30,
            numa=minor // (GPUS_A_NODE // 2),
            pcie=f"0000:{0x19 + 0x22 * (minor // kind.gpus_a_switch):02x}",
            busid=f"0000:{0x1A + 0x11 * minor:02x}:00.0",
        )
        for minor in range(GPUS_A_NODE)
    ]
    nics = [_nic(name, kind, minor, gpus[minor * GPUS_A_NODE // kind.nics]) for minor in range(kind.nics)]
    machine = Machine((*gpus, *nics), kind.links, (GPU, RDMA) if nics else (GPU,))
    return SimNode(name, kind, rack, machine)


def _nic(node: str, kind: MachineKind, minor: int, beside: DeviceFacts) -> DeviceFacts:
    return DeviceFacts(
        minor=minor,
        uuid=f"rdma-{node}-mlx5_{minor}",
        model="ConnectX-7" if kind.model != "V100" else "ConnectX-5",
        numa=beside.numa,
        pcie=beside.pcie,
        type=RDMA,
        busid=f"0000:{0x1B + 0x11 * minor:02x}:00.0",
    )
