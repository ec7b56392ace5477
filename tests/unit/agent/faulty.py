"""A simulated machine with faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from agent.protocol import DeviceDetails
from agent.sources import FALLEN, DeviceFacts, Machine, Reading
from agent.sources.nics import NO_PORT
from agent.sources.simulated import SimulatedSource
from kube.device_types import RDMA


class FaultySource(SimulatedSource):
    """GPUs, NVLinks and NICs fail, and recover, when a test says so."""

    def __init__(self, name: str, *, node: str, **options: Any) -> None:
        super().__init__(name, node=node, **options)
        self._wrong: dict[int, str] = {}
        self._unplugged: set[int] = set()
        self._fallen: set[int] = set()
        self._down: set[tuple[int, int]] = set()
        self._errors: Counter[tuple[int, int]] = Counter()

    def fall_sick(self, minor: int, reason: str) -> None:
        self._wrong[minor] = reason

    def fall_off(self, minor: int) -> None:
        self._fallen.add(minor)

    def cut_link(self, minor: int, number: int) -> None:
        self._down.add((minor, number))
        self._errors[minor, number] += 1

    def unplug(self, nic: int) -> None:
        self._unplugged.add(nic)

    def plug(self, nic: int) -> None:
        self._unplugged.discard(nic)

    def recover(self, minor: int) -> None:
        """Errors stay counted."""
        self._down = {link for link in self._down if link[0] != minor}
        self._wrong.pop(minor, None)
        self._fallen.discard(minor)

    def read(self, machine: Machine, /) -> Reading:
        reading = super().read(machine)
        fallen = [gpu.minor in self._fallen for gpu in machine.gpus]
        columns = {
            name: [None if off else value for value, off in zip(column, fallen, strict=True)]
            for name, column in reading.columns.items()
        }
        health = {gpu.uuid: self._wrong[gpu.minor] for gpu in machine.gpus if gpu.minor in self._wrong}
        health |= {gpu.uuid: FALLEN for gpu in machine.gpus if gpu.minor in self._fallen}
        health |= {one.uuid: NO_PORT for one in machine.devices if one.type == RDMA and one.minor in self._unplugged}
        details = [self._failing(gpu, one) for gpu, one in zip(machine.gpus, reading.details, strict=True)]
        return Reading(columns, health, details)

    def _failing(self, gpu: DeviceFacts, details: DeviceDetails) -> DeviceDetails:
        if gpu.minor in self._fallen:
            return DeviceDetails()
        links = [
            msgspec.structs.replace(
                link,
                is_up=(gpu.minor, link.number) not in self._down,
                replay_errors=self._errors[gpu.minor, link.number],
            )
            for link in details.links
        ]
        return msgspec.structs.replace(details, links=links)
