"""HAMi's vGPUs: parts of GPUs asked for beside `nvidia.com/gpu`, each container by itself.

Called by `claims.dialects.parse`. What a container's resources mean, amounts for each of its devices:

    nvidia.com/gpu "2"               two devices; without it, beside one of those below, one
    nvidia.com/gpumem "3000"         3000 MiB
    nvidia.com/gpumem-percentage     a part of the memory; without either all of it
    nvidia.com/gpucores "30"         30 core; without it none; 100 is a device of its own

and what the pod's annotations say of them (`limits_of`, `policies_of`), which counts for pods by `nvidia.com/gpu` alone too, since for HAMi
they are pods like all others. Kept true: containers that run together never count on the same room; those that run one
after another, as ordinary init containers do before the containers, may have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from claims.dialects.amounts import container_amounts
from claims.dialects.native import DEVICES_MOST
from claims.dialects.refused import Refused
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect, Limits, Policy, SharePolicy
from claims.dialects.steps import containers_of, is_sidecar, steps_of
from kube.device_types import GPU, Dimension
from kube.keys import NATIVE_GPU
from kube.names import InvalidName, check_device_uuid
from kube.objects import Container, Pod
from kube.quantities import LARGEST

Chosen = TypeVar("Chosen")

MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
HAMI_RESOURCES: Final = frozenset({MEMORY, PERCENTAGE, CORES})

USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOT_UUID: Final = "nvidia.com/nouse-gpuuuid"
USE_TYPE: Final = "nvidia.com/use-gputype"
NOT_TYPE: Final = "nvidia.com/nouse-gputype"
NUMA_BIND: Final = "nvidia.com/numa-bind"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"

_KNOWN: Final = dict.fromkeys((NATIVE_GPU, *HAMI_RESOURCES), Dimension.UNITS)
_MIB: Final = 1024**2
_LISTED_MOST: Final = 1_000
CONTAINERS_MOST: Final = 16
"""Containers of a pod that ask, sidecars among them, and as many ordinary init containers: each is planned by itself,
beside all others.
"""
_TOPOLOGY_AWARE: Final = "topology-aware"
"""A policy of HAMi's for what the engine does for every pod: several whole GPUs are the best wired set."""
_NODE_POLICIES: Final = {"binpack": Policy.BINPACK, "spread": Policy.SPREAD}
_GPU_POLICIES: Final = {"binpack": SharePolicy.GPUPACK, "spread": SharePolicy.GPUSPREAD, _TOPOLOGY_AWARE: None}


def hami_request(pod: Pod) -> DeviceRequest:
    """What the pod's containers ask for. Raises `Refused` with the rule that is broken."""
    limits = limits_of(pod)
    inits = [(one, ask) for one, ask in _asks(pod.spec.init_containers or (), "spec.initContainers", limits) if ask]
    asks = [ask for _, ask in _asks(pod.spec.containers or (), "spec.containers", limits) if ask]
    if inits:
        steps = steps_of([one for one, _ in inits])
        early = [msgspec.structs.replace(ask, steps=own) for (_, ask), own in zip(inits, steps, strict=False)]
        last = next(steps)
        asks = [*(msgspec.structs.replace(ask, steps=last) for ask in asks), *early]
    ordinary = sum(not is_sidecar(one) for one, _ in inits)
    if max(ordinary, len(asks) - ordinary) > CONTAINERS_MOST:
        raise Refused("hami-containers", f"at most {CONTAINERS_MOST} containers of a pod may ask for devices")
    if any(_at_once(asks, step) > DEVICES_MOST for step in range(ordinary + 1)):
        raise Refused("too-many", f"the pod asks for more than {DEVICES_MOST} devices of type {GPU}")
    names = tuple(container.name for container in containers_of(pod))
    return with_policies(pod, DeviceRequest(asks=tuple(asks), dialect=Dialect.HAMI, containers=names))


def gpus_asked(container: Container) -> int:
    """For how many GPUs a container asks, shared or whole; 0 also where its amounts cannot be read."""
    try:
        amounts = container_amounts(container, _KNOWN, "")
    except Refused:
        return 0
    return amounts.get(NATIVE_GPU, 1) if amounts else 0


def limits_of(pod: Pod) -> Limits | None:
    """Which GPUs the pod's annotations allow, None where they allow all. Raises `Refused`."""
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
    """The request under the policies that the pod's annotations name. Raises `Refused`."""
    policy = _choice(pod.annotations, NODE_POLICY, _NODE_POLICIES)
    share = _choice(pod.annotations, GPU_POLICY, _GPU_POLICIES)
    if policy is not None:
        request = msgspec.structs.replace(request, policy=policy)
    if share is not None:
        request = msgspec.structs.replace(request, share=share, own_share=True)
    return request


def _asks(
    containers: Sequence[Container], path: str, limits: Limits | None
) -> Iterator[tuple[Container, DeviceAsk | None]]:
    """What each container asks for, None for nothing."""
    for index, container in enumerate(containers):
        where = f"{path}[{index}]"
        amounts = container_amounts(container, _KNOWN, where)
        ask = _ask(amounts, f"{where}.resources.limits", container.name, limits) if amounts else None
        yield container, ask


def _at_once(asks: Sequence[DeviceAsk], step: int) -> int:
    """How many devices the asks of one step are for."""
    return sum(ask.count for ask in asks if ask.steps.first <= step <= ask.steps.last)


def _ask(amounts: Mapping[str, int], where: str, container: str, limits: Limits | None) -> DeviceAsk:
    count, cores = amounts.get(NATIVE_GPU, 1), amounts.get(CORES, 0)
    if count > DEVICES_MOST:
        raise Refused("too-many", f"{NATIVE_GPU} asks for more than {DEVICES_MOST} devices")
    if MEMORY in amounts and PERCENTAGE in amounts:
        raise Refused(
            "hami-memory-twice", f"ask for {MEMORY} or {PERCENTAGE}, not for both", field=f"{where}[{PERCENTAGE}]"
        )
    for name in (CORES, PERCENTAGE):
        if amounts.get(name, 0) > CORE_WHOLE:
            raise Refused("hami-over-100", f"{name} is for each device, so it is at most 100", field=f"{where}[{name}]")
    memory = amounts.get(MEMORY, 0) * _MIB
    if memory > LARGEST:
        raise Refused("quantity", f"{MEMORY} counts MiB, and is more than can be counted", field=f"{where}[{MEMORY}]")
    ask = DeviceAsk(type=GPU, count=count, limits=limits, container=container)
    if cores == CORE_WHOLE:
        least = msgspec.structs.replace(limits or Limits(), memory_least=memory)
        return msgspec.structs.replace(ask, limits=least) if memory else ask
    ratio = None if memory else amounts.get(PERCENTAGE, CORE_WHOLE)
    return msgspec.structs.replace(ask, core_percent=cores, memory_bytes=memory or None, memory_ratio=ratio)


def _listed(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The words of a list with commas, each once."""
    text = annotations.get(name)
    if text is None:
        return ()
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words or len(words) > _LISTED_MOST:
        raise Refused("hami-list", f"annotation {name} must be a list with commas", field=_field(name))
    return words


def _uuids(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    words = _listed(annotations, name)
    try:
        return tuple(check_device_uuid(word) for word in words)
    except InvalidName as error:
        raise Refused(
            "hami-list", f"annotation {name} must be a list of UUIDs with commas", field=_field(name)
        ) from error


def _flag(annotations: Mapping[str, str], name: str) -> bool:
    text = annotations.get(name, "false").lower()
    if text not in {"true", "false"}:
        raise Refused("hami-numa-bind", f"annotation {name} is true or false", field=_field(name))
    return text == "true"


def _choice(annotations: Mapping[str, str], name: str, choices: Mapping[str, Chosen]) -> Chosen | None:
    text = annotations.get(name)
    if text is None:
        return None
    if text not in choices:
        raise Refused(
            "hami-policy", f"annotation {name} is one of {', '.join(sorted(choices))}, or left out", field=_field(name)
        )
    return choices[text]


def _field(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"
