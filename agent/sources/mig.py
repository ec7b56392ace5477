"""MIG instances as devices of the inventory: their minors, and what they have from the GPU that they are a part of.

Used by the sources that have any. Kept true: minors of a node's GPUs and instances are different.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.protocol import MigDetails
from agent.sources import DeviceFacts

FIRST_MINOR: Final = 1000
"""Instances are counted from here: 128 minors a GPU, 8 a GPU instance of it."""
MINORS_A_GPU: Final = 128
MINORS_AN_INSTANCE: Final = 8


class Part(NamedTuple):
    """One instance. `instance`, `compute`: the driver's ids of the GPU instance and of the compute instance in it."""

    uuid: str
    profile: str
    memory_bytes: int | None
    instance: int
    compute: int

    @property
    def details(self) -> MigDetails:
        """As the protocol has it."""
        return MigDetails(self.uuid, self.profile, self.memory_bytes)

    def facts(self, gpu: DeviceFacts) -> DeviceFacts:
        """As a device of the inventory; where it is, its GPU is."""
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
    """The minor of an instance, different for all of a node."""
    return FIRST_MINOR + MINORS_A_GPU * gpu + MINORS_AN_INSTANCE * instance + compute
