"""The devices read from a running pod, for adoption and scenarios."""

from __future__ import annotations

from typing import Final

import msgspec

DEVICES_MOST: Final = 1_000
"""More devices than any node has."""


class AdoptedDevice(msgspec.Struct, frozen=True):
    """One device a running pod holds, named by `minor` or, where the dialect has no minors, by `uuid`.

    Whole: no amounts. Share: `core_percent`, and `memory_bytes` or `memory_ratio` or, core only, neither.
    """

    type: str
    minor: int | None = None
    uuid: str = ""
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_ratio: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the pod is the only holder of the device."""
        return self.core_percent is None


class Adoption(msgspec.Struct, frozen=True):
    """The devices of a running pod. `source`: the annotation or other place they were read from."""

    node: str
    devices: tuple[AdoptedDevice, ...]
    source: str


class Unreadable(msgspec.Struct, frozen=True):
    """Why the allocation of a pod cannot be read."""

    problem: str


class Malformed(Exception):
    """An annotation cannot be read; the text says why. It never leaves the package."""
