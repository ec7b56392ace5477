"""KAI's fractions: a part of each of one or more GPUs, asked for by annotations on a pod that names no GPU resource.

Called by `claims.dialects.parse`. What the annotations mean, amounts per device:

    gpu-fraction "0.5"               half a GPU: core 50 and ratio 50, as `kubernetes.io/gpu: 50`
    gpu-memory "2000"                2000 MiB, core 0
    gpu-fraction-num-devices "2"     that many GPUs, beside one of the two above
    gpu-fraction-container-name      the container that uses them; it has to be there

Kept true (as KAI's own admission has it): a fraction lies between 0 and 1, a memory is a whole number of MiB, never both.
A fraction here is a whole number of percent, since that is what a device's core is counted in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from claims.dialects.native import DEVICES_MOST
from claims.dialects.refused import Refused
from claims.dialects.request import CORE_WHOLE, DeviceAsk
from kube.device_types import GPU
from kube.objects import Pod
from kube.quantities import LARGEST

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
KAI_ANNOTATIONS: Final = frozenset({FRACTION, MEMORY, DEVICES, CONTAINER})

_MIB: Final = 1024**2
_DECIMAL: Final = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_WHOLE: Final = re.compile(r"\+?[0-9]+")
_LONGEST: Final = 32
_SHOWN: Final = 24


def kai_ask(pod: Pod) -> DeviceAsk:
    """The share of GPUs that the pod's annotations stand for. Raises `Refused` with the rule that is broken."""
    annotations = pod.annotations
    if FRACTION in annotations and MEMORY in annotations:
        raise Refused(
            "kai-fraction-and-memory", f"give annotation {FRACTION} or {MEMORY}, not both", field=_field(MEMORY)
        )
    if FRACTION not in annotations and MEMORY not in annotations:
        alone = next(name for name in (DEVICES, CONTAINER) if name in annotations)
        raise Refused(
            "kai-alone",
            f"annotation {alone} says nothing by itself; add {FRACTION} or {MEMORY}",
            field=_field(alone),
        )
    _check_container(pod)
    count = _count(annotations)
    if FRACTION in annotations:
        percent = _percent(annotations[FRACTION])
        return DeviceAsk(type=GPU, count=count, core_percent=percent, memory_ratio=percent)
    return DeviceAsk(type=GPU, count=count, core_percent=0, memory_bytes=_memory(annotations[MEMORY]))


def _percent(text: str) -> int:
    if len(text) > _LONGEST or not _DECIMAL.fullmatch(text) or not 0 < (fraction := Decimal(text)) < 1:
        raise Refused(
            "kai-fraction",
            f"annotation {FRACTION} is {_shown(text)}; it must be a number greater than 0 and smaller than 1, such as 0.5",
            field=_field(FRACTION),
        )
    percent = fraction * CORE_WHOLE
    if percent != int(percent):
        raise Refused(
            "kai-fraction-percent",
            f"annotation {FRACTION} is {_shown(text)}; GPUs are shared by whole percents, so write two decimals at most, or {MEMORY}",
            field=_field(FRACTION),
        )
    return int(percent)


def _memory(text: str) -> int:
    mib = _whole(text)
    if mib is None or mib * _MIB > LARGEST:
        raise Refused(
            "kai-memory",
            f"annotation {MEMORY} is {_shown(text)}; it must be a whole number of MiB greater than 0, such as 2000",
            field=_field(MEMORY),
        )
    return mib * _MIB


def _count(annotations: Mapping[str, str]) -> int:
    if DEVICES not in annotations:
        return 1
    count = _whole(annotations[DEVICES])
    if count is None:
        raise Refused(
            "kai-num-devices",
            f"annotation {DEVICES} is {_shown(annotations[DEVICES])}; it must be a whole number greater than 0",
            field=_field(DEVICES),
        )
    if count > DEVICES_MOST:
        raise Refused(
            "too-many", f"annotation {DEVICES} asks for more than {DEVICES_MOST} devices", field=_field(DEVICES)
        )
    return count


def _check_container(pod: Pod) -> None:
    name = pod.annotations.get(CONTAINER)
    if name is None:
        return
    there = {container.name for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))}
    if name not in there:
        raise Refused(
            "kai-container",
            f"annotation {CONTAINER} names a container that the pod does not have",
            field=_field(CONTAINER),
        )


def _whole(text: str) -> int | None:
    """A whole number above 0, None for anything else."""
    if len(text) > _LONGEST or not _WHOLE.fullmatch(text):
        return None
    return int(text) or None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _field(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"
