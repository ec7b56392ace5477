"""KAI's fractions: a part of each of one or more GPUs, asked for by annotations on a pod that names no GPU resource.

The annotations, with amounts per device:

    gpu-fraction "0.5"               half a GPU: core 50 and ratio 50, as `kubernetes.io/gpu: 50`
    gpu-memory "2000"                2000 MiB, core 0
    gpu-fraction-num-devices "2"     that many GPUs, beside one of the two above
    gpu-fraction-container-name      the container that uses them, and it alone sees them; it has to be there

Invariants (as in KAI's own admission): a fraction lies between 0 and 1, memory is a whole number of MiB, never both. A
fraction has to be a whole number of percent, the unit of a device's core.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Final

from claims.dialects.claim_manifest import FindClaim
from claims.dialects.definition import Candidate, DialectDefinition
from claims.dialects.native import DEVICES_MOST
from claims.dialects.refused import Refused, annotation_field, refused_annotation
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect
from kube.device_types import GPU
from kube.keys import KAI_GPU_GROUP_LABEL, KAI_RESERVATION
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
    """The shares of GPUs that the pod's annotations request. Raises `Refused`."""
    annotations = pod.annotations
    if FRACTION in annotations and MEMORY in annotations:
        raise Refused(
            "kai-fraction-and-memory",
            f"give annotation {FRACTION} or {MEMORY}, not both",
            field=annotation_field(MEMORY),
        )
    if FRACTION not in annotations and MEMORY not in annotations:
        alone = next(name for name in (DEVICES, CONTAINER) if name in annotations)
        raise refused_annotation("kai-alone", alone, f"says nothing by itself; add {FRACTION} or {MEMORY}")
    _check_container(pod)
    count = _count(annotations)
    if FRACTION in annotations:
        percent = _percent(annotations[FRACTION])
        return DeviceAsk(type=GPU, count=count, core_percent=percent, memory_ratio=percent)
    return DeviceAsk(type=GPU, count=count, core_percent=0, memory_bytes=_memory(annotations[MEMORY]))


def _percent(text: str) -> int:
    if len(text) > _LONGEST or not _DECIMAL.fullmatch(text) or not 0 < (fraction := Decimal(text)) < 1:
        raise refused_annotation(
            "kai-fraction",
            FRACTION,
            f"is {_shown(text)}; it must be a number greater than 0 and smaller than 1, such as 0.5",
        )
    percent = fraction * CORE_WHOLE
    if percent != int(percent):
        raise refused_annotation(
            "kai-fraction-percent",
            FRACTION,
            f"is {_shown(text)}; GPUs are shared by whole percents, so write two decimals at most, or {MEMORY}",
        )
    return int(percent)


def _memory(text: str) -> int:
    mib = _whole(text)
    if mib is None or mib * _MIB > LARGEST:
        raise refused_annotation(
            "kai-memory", MEMORY, f"is {_shown(text)}; it must be a whole number of MiB greater than 0, such as 2000"
        )
    return mib * _MIB


def _count(annotations: Mapping[str, str]) -> int:
    if DEVICES not in annotations:
        return 1
    count = _whole(annotations[DEVICES])
    if count is None:
        shown = _shown(annotations[DEVICES])
        raise refused_annotation("kai-num-devices", DEVICES, f"is {shown}; it must be a whole number greater than 0")
    if count > DEVICES_MOST:
        raise refused_annotation("too-many", DEVICES, f"asks for more than {DEVICES_MOST} devices")
    return count


def _check_container(pod: Pod) -> None:
    name = pod.annotations.get(CONTAINER)
    if name is not None and name not in {container.name for container in pod.all_containers}:
        raise refused_annotation("kai-container", CONTAINER, "names a container that the pod does not have")


def _whole(text: str) -> int | None:
    """A whole number above 0, else None."""
    if len(text) > _LONGEST or not _WHOLE.fullmatch(text):
        return None
    return int(text) or None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _detect(candidate: Candidate, _before: Collection[str]) -> bool:
    return not KAI_ANNOTATIONS.isdisjoint(candidate.pod.annotations)


def _parse(candidate: Candidate, _find_claim: FindClaim) -> DeviceRequest:
    return DeviceRequest(asks=(kai_ask(candidate.pod),), dialect=Dialect.KAI)


def _without_devices(pod: Pod) -> frozenset[str]:
    """All containers but the one that uses the GPUs, where the pod names it."""
    user = pod.annotations.get(CONTAINER)
    return frozenset(one.name for one in pod.all_containers if one.name != user) if user is not None else frozenset()


DIALECT: Final = DialectDefinition(
    name=Dialect.KAI,
    words="KAI's annotations",
    detect=_detect,
    parse=_parse,
    annotations=KAI_ANNOTATIONS,
    without_devices=_without_devices,
    result_keys=frozenset({KAI_RESERVATION, KAI_GPU_GROUP_LABEL}),
    result_starts=frozenset({f"{KAI_GPU_GROUP_LABEL}/"}),
    own_scheduler=True,
)
