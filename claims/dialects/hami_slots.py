"""Reads `hami.io/vgpu-devices-allocated`: a slot for each container, and in it what the container has of which device.

Called by `claims.dialects.read_back`. Kept true: a pod holds of a device the most that containers which run at once
have of it; where nothing tells whose a slot is, all slots add up. Which release of HAMi writes what is in
docs/dialects.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from claims.dialects.hami import gpus_asked
from claims.dialects.request import CORE_WHOLE
from claims.dialects.steps import Steps, Taken, containers_of, most_at_once, steps_of
from kube.keys import HAMI_ALLOCATED
from kube.names import InvalidName, check_device_uuid
from kube.objects import Pod
from kube.quantities import LARGEST

_MIB: Final = 1024**2
_AMOUNT: Final = re.compile(r"\+?[0-9]{1,19}")
_NO_DEVICE: Final = ",,0,0"
"""What releases up to 2.5 write for some containers that ask for nothing."""


class SlotsMalformed(Exception):
    """The annotation cannot be read; the text is the problem."""


class Held(NamedTuple):
    """What a pod holds of a device. `whole`: one of its containers has the device for itself."""

    core_percent: int
    memory_bytes: int
    whole: bool


class _Part(NamedTuple):
    """One device in a slot."""

    uuid: str
    memory_mib: int
    core_percent: int


def read_slots(pod: Pod, text: str) -> dict[str, Held]:
    """UUID → what the pod holds of it. Raises `SlotsMalformed`."""
    slots = [_parts(slot) for slot in text.removesuffix(";").split(";")]
    taken: dict[str, list[Taken]] = {}
    whole = set()
    for slot, steps in zip(slots, _steps(pod, slots), strict=True):
        for part in slot:
            taken.setdefault(part.uuid, []).append(Taken(steps, part.core_percent, part.memory_mib))
            if part.core_percent == CORE_WHOLE:
                whole.add(part.uuid)
    found = {}
    for uuid, listed in taken.items():
        core, mib = most_at_once(listed)
        if core > CORE_WHOLE or mib * _MIB > LARGEST:
            raise SlotsMalformed(f"{HAMI_ALLOCATED} gives more than one device has")
        found[uuid] = Held(core, mib * _MIB, whole=uuid in whole)
    return found


def _steps(pod: Pod, slots: Sequence[Sequence[_Part]]) -> list[Steps]:
    """When the container of each slot runs.

    Filled slots come in the order of the containers that ask, init containers first, whether or not a release has empty
    slots for the others.
    """
    containers = containers_of(pod)
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
        check_device_uuid(uuid)
    except (InvalidName, ValueError) as error:
        raise SlotsMalformed(_SHAPE) from error
    if not kind or not _AMOUNT.fullmatch(memory) or not _AMOUNT.fullmatch(core):
        raise SlotsMalformed(_SHAPE)
    return _Part(uuid, int(memory), int(core))


_SHAPE: Final = f"{HAMI_ALLOCATED} is not UUID,type,memory,cores for each device"
