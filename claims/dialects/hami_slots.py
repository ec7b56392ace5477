"""Reads `hami.io/vgpu-devices-allocated`: a slot for each container with its devices and amounts.

Invariants: a pod holds of a device the most that containers use at once; where the container of a slot is unknown, all
slots add up. docs/dialects.md has what each release of HAMi writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from claims.dialects.adopted import AdoptedDevice, Malformed
from claims.dialects.hami_words import gpus_asked
from claims.dialects.request import CORE_WHOLE
from claims.dialects.steps import ContainerUse, Steps, most_at_once, steps_of
from kube.device_types import GPU
from kube.keys import HAMI_ALLOCATED
from kube.names import InvalidName, check_device_uuid
from kube.objects import Pod
from kube.quantities import LARGEST

_MIB: Final = 1024**2
_AMOUNT: Final = re.compile(r"\+?[0-9]{1,19}")
_NO_DEVICE: Final = ",,0,0"
"""Written by releases up to 2.5 for some containers without devices."""


class _Part(NamedTuple):
    """A device of a slot."""

    uuid: str
    memory_mib: int
    core_percent: int


def read_slots(pod: Pod, text: str) -> list[AdoptedDevice]:
    """The devices of the annotation's value. Raises `Malformed`."""
    slots = [_parts(slot) for slot in text.removesuffix(";").split(";")]
    uses: dict[str, list[ContainerUse]] = {}
    whole = set()
    for slot, steps in zip(slots, _steps(pod, slots), strict=True):
        for part in slot:
            uses.setdefault(part.uuid, []).append(ContainerUse(steps, part.core_percent, part.memory_mib))
            if part.core_percent == CORE_WHOLE:
                whole.add(part.uuid)
    devices = []
    for uuid, listed in uses.items():
        core, mib = most_at_once(listed)
        if core > CORE_WHOLE or mib * _MIB > LARGEST:
            raise Malformed(f"{HAMI_ALLOCATED} gives more than one device has")
        device = AdoptedDevice(type=GPU, uuid=uuid)
        if uuid not in whole:
            device = AdoptedDevice(type=GPU, uuid=uuid, core_percent=core, memory_bytes=mib * _MIB or None)
        devices.append(device)
    return devices


def _steps(pod: Pod, slots: Sequence[Sequence[_Part]]) -> list[Steps]:
    """When the container of each slot runs.

    Filled slots are in the order of the containers with devices, init containers first; some releases write no slots
    for other containers.
    """
    containers = pod.all_containers
    steps = [own for _, own in zip(containers, steps_of(pod.spec.init_containers or ()), strict=False)]
    asking = [own for one, own in zip(containers, steps, strict=True) if gpus_asked(one)]
    if len(asking) == sum(1 for slot in slots if slot):
        of_filled = iter(asking)
        return [next(of_filled) if slot else Steps(0, 0) for slot in slots]
    return steps if len(steps) == len(slots) else [Steps(0, 0)] * len(slots)


def _parts(slot: str) -> list[_Part]:
    return [_part(device) for device in slot.split(":") if device not in ("", _NO_DEVICE)]


def _part(device: str) -> _Part:
    try:
        uuid, kind, memory, core = device.split(",")[:4]
        uuid = check_device_uuid(uuid.partition("[")[0])  # followed by the MIG instance that HAMi created
    except (InvalidName, ValueError) as error:
        raise Malformed(_SHAPE) from error
    if not kind or not _AMOUNT.fullmatch(memory) or not _AMOUNT.fullmatch(core):
        raise Malformed(_SHAPE)
    return _Part(uuid, int(memory), int(core))


_SHAPE: Final = f"{HAMI_ALLOCATED} is not UUID,type,memory,cores for each device"
