"""Minors of a machine's GPUs by NVML.

Used by the NVML source with each listing of the machine. Invariants: no two GPUs have one minor; a GPU whose minor the
driver does not say keeps the one that it said before; one of which it never said any has a minor that no other GPU has
or had, its index if that is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

from agent.sources.nvml_driver import Driver


class Numbered(NamedTuple):
    """A GPU with its place among all, NVML's index, and the minor that the driver says; None: unknown."""

    uuid: str
    place: int
    minor: int | None


class Minors:
    """Minors of a machine's GPUs, by UUID."""

    def __init__(self, driver: Driver) -> None:
        self._said: dict[str, int] = {}
        self._chosen: dict[str, int] = {}
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        if reloaded:  # which may number the GPUs in another way
            self._said.clear()
            self._chosen.clear()

    def of(self, gpus: Sequence[Numbered]) -> dict[str, int]:
        """UUID → minor of these GPUs."""
        self._said.update({gpu.uuid: gpu.minor for gpu in gpus if gpu.minor is not None})
        taken = set(self._said.values())
        for gpu in gpus:
            if gpu.uuid not in self._said:
                wanted = chain([self._chosen.get(gpu.uuid, gpu.place), gpu.place], count())
                self._chosen[gpu.uuid] = minor = next(one for one in wanted if one not in taken)
                taken.add(minor)
        return {gpu.uuid: self._said.get(gpu.uuid, self._chosen.get(gpu.uuid, gpu.place)) for gpu in gpus}
