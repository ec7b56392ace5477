"""MIG instances as devices of the inventory. Invariants: minors of a node's GPUs and instances are unique."""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.protocol import MigDetails
from agent.sources import DeviceFacts

FIRST_MINOR: Final = 1000
"""Minors of instances start here: 128 a GPU, 8 a GPU instance."""
MINORS_A_GPU: Final = 128
MINORS_AN_INSTANCE: Final = 8


class MigInstance(NamedTuple):
    """One instance. `instance`, `compute`: the driver's ids of the GPU instance and of the compute instance in it."""

    uuid: str
    profile: str
    memory_bytes: int | None
    instance: int
    compute: int

    @property
    def details(self) -> MigDetails:
        """As in the protocol."""
        return MigDetails(self.uuid, self.profile, self.memory_bytes)

    def facts(self, gpu: DeviceFacts) -> DeviceFacts:
        """As a device of the inventory, at its GPU's place."""
        return DeviceFacts(
            minor=minor_of(gpu.minor, self.instance, self.compute),
            uuid=self.uuid,
            model=f"{gpu.model} MIG {self.profile}".strip(),
            memory=self.memory_bytes or 0,
            numa=gpu.numa,
            pcie=gpu.pcie,
            parent=gpu.uuid,
            profile=self.profile,
        )


def minor_of(gpu: int, instance: int, compute: int) -> int:
    """The minor of an instance, unique in the node."""
    return FIRST_MINOR + MINORS_A_GPU * gpu + MINORS_AN_INSTANCE * instance + compute
