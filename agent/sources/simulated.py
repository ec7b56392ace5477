"""Simulated machines for places without GPUs: wiring of real ones, measurements that rise and fall as in training and
serving.

Invariants: the same machine, node name and moment give the same values; power follows utilisation, temperature follows
power, NVLink traffic needs NVLinks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import combinations
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from agent.protocol import DeviceDetails, LinkDetails, ProcessDetails
from agent.sources import Column, DeviceFacts, Machine, Reading, by_type_and_minor
from agent.sources.mig import MigInstance
from agent.sources.wiring import remotes_of
from kube.device_types import GPU, RDMA

GIB: Final = 2**30
NVLINK_BYTES: Final = 25e9
"""Bytes a second of one NVLink in one direction, from V100 to H200."""
PCIE_BYTES: Final = 25e9

Links = tuple[tuple[int, int, int], ...]


class Build(msgspec.Struct, frozen=True):
    """One kind of machine."""

    model: str
    gpus: int
    memory: int
    links: Links
    gpus_a_switch: int
    watts: tuple[int, int]
    """Idle and full."""
    clocks: tuple[int, int] = (345, 1980)
    """MHz of the SMs, idle and full."""
    own_links: int | None = None
    """NVLinks of one GPU, if they end at NVSwitches."""
    mig: tuple[str, int] | None = None
    """Profile and bytes of GPU 0's MIG devices, as many as fit."""
    nics: int = 0
    """RDMA NICs, spread evenly over the PCIe switches."""


def all_pairs(gpus: int, links: int) -> Links:
    """NVSwitch: every GPU reaches every other over all its links."""
    return tuple((low, high, links) for low, high in combinations(range(gpus), 2))


def cube_mesh() -> Links:
    """Hybrid cube mesh of eight V100 with six links each: two quads, one and two links to a neighbour."""
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    single = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}
    return tuple(sorted([(low, high, 2) for low, high in double] + [(low, high, 1) for low, high in single]))


MACHINES: Final = {
    "h100-8": Build("NVIDIA H100 80GB HBM3", 8, 80 * GIB, all_pairs(8, 18), 2, (70, 700), own_links=18),
    "a100-8": Build("NVIDIA A100-SXM4-80GB", 8, 80 * GIB, all_pairs(8, 12), 2, (55, 400), (210, 1410), own_links=12),
    "dgx1-8": Build("Tesla V100-SXM2-32GB", 8, 32 * GIB, cube_mesh(), 2, (42, 300), (135, 1530)),
    "l40s-4": Build("NVIDIA L40S", 4, 46068 * 2**20, (), 2, (33, 350), (210, 2520)),
    "pcie-4": Build("NVIDIA A100-PCIE-40GB", 4, 40 * GIB, (), 4, (35, 250), (210, 1410)),
    "mig-4": Build("NVIDIA A100-PCIE-40GB", 4, 40 * GIB, (), 4, (35, 250), (210, 1410), mig=("1g.5gb", 5 * GIB)),
    "rdma-8": Build("NVIDIA H100 80GB HBM3", 8, 80 * GIB, all_pairs(8, 18), 2, (70, 700), own_links=18, nics=8),
}
NIC_MODEL: Final = "MT_0000000838"
FIRST_INSTANCE: Final = 7
"""Number of the first GPU instance of the smallest profile on A100 and H100."""


class SimulatedSource:
    """One machine. UUIDs derive from `node`; `clock`: seconds since 1970."""

    def __init__(self, name: str, *, node: str, clock: Callable[[], float] = time.time) -> None:
        self._build = MACHINES[name]
        self._node = node
        self._clock = clock

    def machine(self) -> Machine:
        """See Source."""
        build = self._build
        half = max(build.gpus // 2, 1)
        gpus = [
            DeviceFacts(
                minor=minor,
                uuid=f"GPU-{uuid5(NAMESPACE_DNS, f'{self._node}/{minor}')}",
                model=build.model,
                memory=build.memory,
                numa=minor // half,
                pcie=_switch(minor // build.gpus_a_switch),
                busid=f"0000:{0x20 + minor:02x}:00.0",
                mig=minor == 0 and build.mig is not None,
            )
            for minor in range(build.gpus)
        ]
        parts = [part.facts(gpu) for gpu in gpus for part in self._parts(gpu)]
        devices = by_type_and_minor((*gpus, *parts, *self._nics()))
        return Machine(devices, build.links, (GPU, RDMA) if build.nics else (GPU,))

    def _nics(self) -> list[DeviceFacts]:
        build = self._build
        switches = max(build.gpus // build.gpus_a_switch, 1)
        return [
            DeviceFacts(
                minor=minor,
                uuid=f"RDMA-{uuid5(NAMESPACE_DNS, f'{self._node}/nic/{minor}').hex[:16]}",
                model=NIC_MODEL,
                numa=minor * 2 // build.nics,
                pcie=_switch(minor * switches // build.nics),
                type=RDMA,
                busid=f"0000:{0x60 + minor:02x}:00.0",
            )
            for minor in range(build.nics)
        ]

    def read(self, machine: Machine, /) -> Reading:
        """See Source."""
        now = self._clock()
        busy = [self._busy(gpu.minor, now) for gpu in machine.gpus]
        idle, full = self._build.watts
        linked = {minor for low, high, _ in machine.links for minor in (low, high)}
        traffic = [NVLINK_BYTES * 4 if gpu.minor in linked else 0.0 for gpu in machine.gpus]
        columns = {
            "utilisation_percent": _column(busy, lambda part, _: 100 * part),
            "memory_used_bytes": _column(busy, lambda part, _: self._build.memory * (0.05 + 0.85 * part)),
            "temperature_celsius": _column(busy, lambda part, _: 32 + 45 * part),
            "power_watts": _column(busy, lambda part, _: idle + (full - idle) * part),
            "nvlink_tx_bytes": _column(busy, lambda part, place: traffic[place] * part),
            "nvlink_rx_bytes": _column(busy, lambda part, place: traffic[place] * part),
            "pcie_tx_bytes": _column(busy, lambda part, _: PCIE_BYTES * 0.1 * part),
            "pcie_rx_bytes": _column(busy, lambda part, _: PCIE_BYTES * 0.2 * part),
            "sm_clock_mhz": _column(busy, lambda part, _: self._build.clocks[part > 0.02]),
            "memory_clock_mhz": _column(busy, lambda part, _: (405, 1593)[part > 0.02]),
        }
        details = [self._details(machine, gpu, part) for gpu, part in zip(machine.gpus, busy, strict=True)]
        return Reading(columns, {}, details)

    def _details(self, machine: Machine, gpu: DeviceFacts, part: float) -> DeviceDetails:
        """Details of one GPU: a process while it works, with its memory rounded to GiB."""
        uuids = {one.minor: one.uuid for one in machine.gpus}
        remotes = remotes_of(machine.links, gpu.minor, uuids=uuids, own=self._build.own_links)
        links = [LinkDetails(number, True, remote, 0, 0, 0) for number, remote in enumerate(remotes)]
        used = round(self._build.memory * 0.85 * part / GIB) * GIB
        processes = [ProcessDetails(4000 + gpu.minor, "python", used)] if part > 0.02 else []
        return DeviceDetails(links, 0, 0, processes, [part.details for part in self._parts(gpu)])

    def _parts(self, gpu: DeviceFacts) -> list[MigInstance]:
        if gpu.minor or self._build.mig is None:
            return []
        profile, size = self._build.mig
        return [
            MigInstance(f"MIG-{uuid5(NAMESPACE_DNS, f'{gpu.uuid}/{place}')}", profile, size, FIRST_INSTANCE + place, 0)
            for place in range(min(7, gpu.memory // size))
        ]

    def close(self) -> None:
        """See Source."""

    def _busy(self, minor: int, now: float) -> float:
        """Load from 0 to 1: slow and quick waves, with a phase for each GPU."""
        shift = int.from_bytes(uuid5(NAMESPACE_DNS, f"{self._node}/{minor}").bytes[:2]) / 65_536
        slow = 0.5 + 0.5 * math.sin(2 * math.pi * (now / 300 + shift))
        quick = 0.5 + 0.5 * math.sin(2 * math.pi * (now / 7 + shift))
        return max(0.0, min(1.0, 0.8 * slow + 0.2 * quick * slow))


def _switch(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def _column(busy: list[float], of: Callable[[float, int], float]) -> Column:
    return [round(of(part, place)) for place, part in enumerate(busy)]
