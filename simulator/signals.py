"""Simulated measurements of GPUs: utilisation, memory, temperature, power and traffic.

Stepped once a second by `__main__`, read by `agents`. Invariants: signals follow the holders of a device (a free GPU is
idle) with realistic inertia; the same seed and holders give the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.sources.simulated import NVLINK_BYTES
from simulator.fleet import GPUS_A_NODE, SimNode

AMBIENT_CELSIUS: Final = 27.0
HOT_CELSIUS: Final = 74.0
THERMAL_SECONDS: Final = 25.0
"""Time constant of temperature."""
POWER_SECONDS: Final = 3.0
PCIE_BYTES: Final = 9e9
IDLE_BYTES: Final = 480 * 2**20
"""Memory that the driver uses on an idle GPU."""

IDLE_MHZ: Final = 345
MEMORY_MHZ: Final = 1593
IDLE_MEMORY_MHZ: Final = 405


@dataclass(frozen=True, slots=True)
class Load:
    """A pod's load on one GPU. `core` and `memory`: 0..1 of the GPU, `peers`: number of GPUs that the pod holds."""

    core: float
    memory: float
    peers: int
    period_seconds: float
    """Period of its training steps, or of waves of requests."""


class Signals:
    """One row a GPU of the whole fleet: node i has rows 8i..8i+7."""

    def __init__(self, fleet: tuple[SimNode, ...], *, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.row_of = {gpu.uuid: i * GPUS_A_NODE + gpu.minor for i, node in enumerate(fleet) for gpu in node.gpus}
        size = len(fleet) * GPUS_A_NODE
        kinds = [node.kind for node in fleet for _ in node.gpus]
        self._memory = np.array([kind.memory_gib * 2.0**30 for kind in kinds])
        self._idle_watts = np.array([float(kind.idle_watts) for kind in kinds])
        self._full_watts = np.array([float(kind.full_watts) for kind in kinds])
        self._nvlink = np.array([kind.gpu_links * NVLINK_BYTES for kind in kinds])
        self._cooling = self._random.uniform(0.92, 1.08, size)
        self._phase = self._random.uniform(0, 2 * np.pi, size)
        self._core = np.zeros(size)
        self._wanted_memory = np.zeros(size)
        self._peers = np.zeros(size)
        self._period = np.full(size, 20.0)
        self._clock = np.array([float(kind.full_mhz) for kind in kinds])
        self.loads: dict[int, tuple[Load, ...]] = {}
        """Row → loads of the GPU."""
        self._faulty: set[int] = set()
        self._seconds = 0.0
        self.utilisation = np.zeros(size)
        self.memory = np.full(size, IDLE_BYTES, dtype=float)
        self.power = self._idle_watts.copy()
        self.temperature = np.full(size, AMBIENT_CELSIUS + 4)
        self.nvlink_tx = np.zeros(size)
        self.nvlink_rx = np.zeros(size)
        self.pcie_tx = np.zeros(size)
        self.pcie_rx = np.zeros(size)

    def hold(self, uuid: str, loads: Iterable[Load]) -> None:
        """Set all loads of a GPU, none for an idle one. Unknown UUIDs are ignored."""
        row = self.row_of.get(uuid)
        if row is None:
            return
        loads = tuple(loads)
        self.loads[row] = loads
        self._core[row] = min(1.0, sum(load.core for load in loads))
        self._wanted_memory[row] = min(1.0, sum(load.memory for load in loads))
        self._peers[row] = max((load.peers for load in loads), default=0)
        if loads:
            self._period[row] = loads[0].period_seconds

    def set_faulty(self, uuid: str, *, faulty: bool) -> None:
        """Make the values of a faulty GPU unknown."""
        (self._faulty.add if faulty else self._faulty.discard)(self.row_of[uuid])

    def memory_of(self, uuid: str) -> float:
        """Memory size in bytes."""
        return float(self._memory[self.row_of[uuid]])

    def step(self, seconds: float) -> None:
        """Advance all signals."""
        self._seconds += seconds
        size = len(self._core)
        wave = np.sin(2 * np.pi * self._seconds / self._period + self._phase)
        busy = self._core > 0
        noise = self._random.normal(0, 0.03, size)
        target = np.where(busy, self._core * (0.82 + 0.13 * wave) + noise, np.abs(noise) * 0.05)
        self.utilisation += (np.clip(target, 0, 1) - self.utilisation) * _share(seconds, 1.5)
        wanted = IDLE_BYTES + self._wanted_memory * (self._memory - 2 * IDLE_BYTES) * (0.9 + 0.02 * wave)
        self.memory += (np.where(busy, wanted, IDLE_BYTES) - self.memory) * _share(seconds, 8.0)
        watts = self._idle_watts + (self._full_watts - self._idle_watts) * self.utilisation**0.8
        self.power += (watts - self.power) * _share(seconds, POWER_SECONDS)
        heat = AMBIENT_CELSIUS + (HOT_CELSIUS - AMBIENT_CELSIUS) * self._cooling * self.power / self._full_watts
        self.temperature += (heat - self.temperature) * _share(seconds, THERMAL_SECONDS)
        collective = self.utilisation * np.where(self._peers > 1, 0.38 + 0.25 * wave, 0.0)
        self.nvlink_tx = self._nvlink * np.clip(collective, 0, 1)
        self.nvlink_rx = self.nvlink_tx * self._random.uniform(0.96, 1.0, size)
        self.pcie_rx = PCIE_BYTES * self.utilisation * self._random.uniform(0.2, 1.0, size)
        self.pcie_tx = self.pcie_rx * 0.35

    def of_node(self, index: int) -> dict[str, list[int | float | None]]:
        """Column → value of each of the node's GPUs, ready for a sample frame."""
        rows = slice(index * GPUS_A_NODE, (index + 1) * GPUS_A_NODE)
        whole: dict[str, list[int | float | None]] = {
            "utilisation_percent": np.rint(self.utilisation[rows] * 100).astype(np.int64).tolist(),
            "memory_used_bytes": self.memory[rows].astype(np.int64).tolist(),
            "temperature_celsius": np.rint(self.temperature[rows]).astype(np.int64).tolist(),
            "power_watts": np.rint(self.power[rows]).astype(np.int64).tolist(),
            "nvlink_tx_bytes": self.nvlink_tx[rows].astype(np.int64).tolist(),
            "nvlink_rx_bytes": self.nvlink_rx[rows].astype(np.int64).tolist(),
            "pcie_tx_bytes": self.pcie_tx[rows].astype(np.int64).tolist(),
            "pcie_rx_bytes": self.pcie_rx[rows].astype(np.int64).tolist(),
            "sm_clock_mhz": np.where(self.utilisation[rows] > 0.01, self._clock[rows], IDLE_MHZ).astype(int).tolist(),
            "memory_clock_mhz": np.where(self.utilisation[rows] > 0.01, MEMORY_MHZ, IDLE_MEMORY_MHZ).tolist(),
        }
        if not self._nvlink[rows].any():
            whole["nvlink_tx_bytes"] = whole["nvlink_rx_bytes"] = []  # no NVLink: not measured
        for row in self._faulty & set(range(rows.start, rows.stop)):
            for column in whole.values():
                if column:
                    column[row - rows.start] = None
        return whole


class Meters:
    """Signals of the fleet, and of each node that came later."""

    def __init__(self, fleet: Signals) -> None:
        self._fleet = fleet
        self._grown: dict[str, Signals] = {}

    def add(self, node: SimNode, *, seed: int) -> Signals:
        """Signals of a node that came."""
        self._grown[node.name] = Signals((node,), seed=seed)
        return self._grown[node.name]

    def remove(self, name: str) -> None:
        """The node went."""
        self._grown.pop(name, None)

    def hold(self, uuid: str, loads: Iterable[Load]) -> None:
        """Set all loads of a GPU, wherever it is."""
        given = tuple(loads)
        for signals in self._all:
            signals.hold(uuid, given)

    def step(self, seconds: float) -> None:
        """Advance all."""
        for signals in self._all:
            signals.step(seconds)

    @property
    def _all(self) -> Sequence[Signals]:
        return (self._fleet, *self._grown.values())


def _share(seconds: float, constant: float) -> float:
    """Part of the way to its target that a value goes in that time."""
    return float(1 - np.exp(-seconds / constant))
