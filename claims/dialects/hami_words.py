"""HAMi's resource names and annotations: which GPUs a pod allows, under which policies, and how many a container
requests.

Also used by `claims.dialects.native`, since HAMi's pods by `nvidia.com/gpu` alone are of that dialect. Invariants: an
annotation that cannot be read is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from claims.dialects.amounts import container_amounts
from claims.dialects.refused import Refused, refused_annotation
from claims.dialects.request import DeviceRequest, Limits, Policy, SharePolicy
from kube.device_types import Dimension
from kube.keys import NATIVE_GPU, VGPU
from kube.names import InvalidName, check_device_uuid
from kube.objects import Container, Pod

Chosen = TypeVar("Chosen")

MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
HAMI_RESOURCES: Final = frozenset({MEMORY, PERCENTAGE, CORES, VGPU})

USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOT_UUID: Final = "nvidia.com/nouse-gpuuuid"
USE_TYPE: Final = "nvidia.com/use-gputype"
NOT_TYPE: Final = "nvidia.com/nouse-gputype"
NUMA_BIND: Final = "nvidia.com/numa-bind"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"

RESOURCES: Final = dict.fromkeys((NATIVE_GPU, *HAMI_RESOURCES), Dimension.UNITS)
"""Resources of a container; each is a number."""
_LISTED_MOST: Final = 1_000
_BOOLEANS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""As HAMi reads them, by Go's `strconv.ParseBool`, in any case."""
_TOPOLOGY_AWARE: Final = "topology-aware"
"""HAMi's policy for what the engine always does: choose the best connected set of whole GPUs."""
_NODE_POLICIES: Final = {"binpack": Policy.BINPACK, "spread": Policy.SPREAD}
_GPU_POLICIES: Final = {"binpack": SharePolicy.GPUPACK, "spread": SharePolicy.GPUSPREAD, _TOPOLOGY_AWARE: None}


def gpus_of(amounts: Mapping[str, int]) -> int:
    """How many GPUs a container's amounts are for; one where only memory or cores are named."""
    return amounts.get(NATIVE_GPU) or amounts.get(VGPU) or 1


def gpus_asked(container: Container) -> int:
    """How many GPUs a container requests, shared or whole; 0 also for malformed amounts."""
    try:
        amounts = container_amounts(container, RESOURCES, "")
    except Refused:
        return 0
    return gpus_of(amounts) if amounts else 0


def limits_of(pod: Pod) -> Limits | None:
    """The GPUs that the pod's annotations allow, None for all. Raises `Refused`."""
    annotations = pod.annotations
    limits = Limits(
        uuids=_uuids(annotations, USE_UUID),
        not_uuids=_uuids(annotations, NOT_UUID),
        models=_listed(annotations, USE_TYPE),
        not_models=_listed(annotations, NOT_TYPE),
        one_numa=_flag(annotations, NUMA_BIND),
    )
    return None if limits == Limits() else limits


def with_policies(pod: Pod, request: DeviceRequest) -> DeviceRequest:
    """The request with the policies of the pod's annotations. Raises `Refused`."""
    policy = _choice(pod.annotations, NODE_POLICY, _NODE_POLICIES)
    share = _choice(pod.annotations, GPU_POLICY, _GPU_POLICIES)
    if policy is not None:
        request = msgspec.structs.replace(request, policy=policy)
    if share is not None:
        request = msgspec.structs.replace(request, share=share, own_share=True)
    return request


def _listed(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The distinct words of a comma-separated list."""
    text = annotations.get(name)
    if text is None:
        return ()
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words or len(words) > _LISTED_MOST:
        raise refused_annotation("hami-list", name, "must be a list with commas")
    return words


def _uuids(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    words = _listed(annotations, name)
    try:
        return tuple(check_device_uuid(word) for word in words)
    except InvalidName as error:
        raise refused_annotation("hami-list", name, "must be a list of UUIDs with commas") from error


def _flag(annotations: Mapping[str, str], name: str) -> bool:
    text = annotations.get(name, "false").lower()
    if text not in _BOOLEANS:
        raise refused_annotation("hami-numa-bind", name, "is true or false")
    return _BOOLEANS[text]


def _choice(annotations: Mapping[str, str], name: str, choices: Mapping[str, Chosen]) -> Chosen | None:
    text = annotations.get(name)
    if text is None:
        return None
    if text not in choices:
        raise refused_annotation("hami-policy", name, f"is one of {', '.join(sorted(choices))}, or left out")
    return choices[text]
