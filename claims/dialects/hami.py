"""HAMi's vGPUs: shares of GPUs that containers request beside `nvidia.com/gpu`.

A container's resources, with amounts for each of its devices:

    nvidia.com/gpu "2"               two devices; without it, beside one of those below, one
    nvidia.com/gpumem "3000"         3000 MiB
    nvidia.com/gpumem-percentage     a part of the memory; without either all of it
    nvidia.com/gpucores "30"         30 core; without it none; 100 is a device of its own
    gpu.scheduling/vgpu "2"          instead of nvidia.com/gpu, which a node's device plugin would serve as well

The pod's annotations restrict the GPUs (`claims.dialects.hami_words`); the result has a slot for each container
(`hami_result`, read by `hami_slots`). Invariants: containers that run at once never share an amount; containers that
run one after another, as ordinary init containers do, may.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from claims.dialects.amounts import container_amounts
from claims.dialects.claim_manifest import FindClaim
from claims.dialects.definition import Candidate, DialectDefinition, ReadBack
from claims.dialects.hami_result import hami_annotations
from claims.dialects.hami_slots import read_slots
from claims.dialects.hami_words import (
    CORES,
    HAMI_RESOURCES,
    MEMORY,
    PERCENTAGE,
    RESOURCES,
    gpus_asked,
    gpus_of,
    limits_of,
    with_policies,
)
from claims.dialects.native import DEVICES_MOST
from claims.dialects.refused import Refused
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect, Limits
from claims.dialects.steps import steps_of
from kube.device_types import GPU
from kube.keys import HAMI_ALLOCATED, HAMI_NODE, HAMI_TO_ALLOCATE, NATIVE_GPU, VGPU
from kube.objects import Container, Pod
from kube.quantities import LARGEST

_MIB: Final = 1024**2
CONTAINERS_MOST: Final = 16
"""Most containers with devices, including sidecars, and most ordinary init containers: each is planned by itself."""


def hami_request(pod: Pod) -> DeviceRequest:
    """The request of a pod. Raises `Refused`."""
    limits = limits_of(pod)
    inits = [(one, ask) for one, ask in _asks(pod.spec.init_containers or (), "spec.initContainers", limits) if ask]
    asks = [ask for _, ask in _asks(pod.spec.containers or (), "spec.containers", limits) if ask]
    if inits:
        steps = steps_of([one for one, _ in inits])
        early = [msgspec.structs.replace(ask, steps=own) for (_, ask), own in zip(inits, steps, strict=False)]
        last = next(steps)
        asks = [*(msgspec.structs.replace(ask, steps=last) for ask in asks), *early]
    ordinary = sum(not one.is_sidecar for one, _ in inits)
    if max(ordinary, len(asks) - ordinary) > CONTAINERS_MOST:
        raise Refused("hami-containers", f"at most {CONTAINERS_MOST} containers of a pod may ask for devices")
    if any(_at_once(asks, step) > DEVICES_MOST for step in range(ordinary + 1)):
        raise Refused("too-many", f"the pod asks for more than {DEVICES_MOST} devices of type {GPU}")
    names = tuple(container.name for container in pod.all_containers)
    return with_policies(pod, DeviceRequest(asks=tuple(asks), dialect=Dialect.HAMI, containers=names))


def _asks(
    containers: Sequence[Container], path: str, limits: Limits | None
) -> Iterator[tuple[Container, DeviceAsk | None]]:
    """Each container and its request, None without devices."""
    for index, container in enumerate(containers):
        where = f"{path}[{index}]"
        amounts = container_amounts(container, RESOURCES, where)
        ask = _ask(amounts, f"{where}.resources.limits", container.name, limits) if amounts else None
        yield container, ask


def _at_once(asks: Sequence[DeviceAsk], step: int) -> int:
    """The number of devices requested in one step."""
    return sum(ask.count for ask in asks if ask.steps.first <= step <= ask.steps.last)


def _ask(amounts: Mapping[str, int], where: str, container: str, limits: Limits | None) -> DeviceAsk:
    if NATIVE_GPU in amounts and VGPU in amounts:
        raise Refused("hami-gpus-twice", f"ask for {NATIVE_GPU} or {VGPU}, not for both", field=f"{where}[{VGPU}]")
    count, cores = gpus_of(amounts), amounts.get(CORES, 0)
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


def _detect(candidate: Candidate, _before: Collection[str]) -> bool:
    return not HAMI_RESOURCES.isdisjoint(candidate.amounts)


def _parse(candidate: Candidate, _find_claim: FindClaim) -> DeviceRequest:
    request = hami_request(candidate.pod)
    return msgspec.structs.replace(request, kubelet_gpus=True) if NATIVE_GPU in candidate.amounts else request


def _devices_most(pod: Pod, _request: DeviceRequest) -> int:
    """HAMi plans each container by itself, so that containers which run one after another may get other devices."""
    return sum(gpus_asked(container) for container in pod.all_containers)


DIALECT: Final = DialectDefinition(
    name=Dialect.HAMI,
    words="HAMi's resources",
    detect=_detect,
    parse=_parse,
    resources=RESOURCES,
    unadvertised=HAMI_RESOURCES,
    results=hami_annotations,
    read_back=ReadBack(
        key=HAMI_ALLOCATED,
        read=lambda pod, _request: read_slots(pod, pod.annotations[HAMI_ALLOCATED]),
        written_for=frozenset({Dialect.HAMI, Dialect.NATIVE}),
        devices_most=_devices_most,
        node_key=HAMI_NODE,
    ),
    # Users write some annotations under hami.io/ themselves (scheduler policies), so only results are guarded.
    result_keys=frozenset({HAMI_NODE, HAMI_ALLOCATED, HAMI_TO_ALLOCATE}),
    result_starts=frozenset({"hami.io/vgpu-", "hami.io/bind-"}),
    result_frames=frozenset({("hami.io/", "-devices-allocated"), ("hami.io/", "-devices-to-allocate")}),
    own_scheduler=True,
    by_container=True,
    by_plugin=True,
)
