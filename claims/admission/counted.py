"""The resource `gpu.scheduling/pods`: 1 for every pod whose devices kube-scheduler does not count itself.

kube-scheduler's preemption ignores an extender's refusals, so a pod with a GpuClaim would never preempt. Nodes
advertise plenty of this resource, except during preemption (`allocations.scheduling.preemption`). Pods by
`nvidia.com/gpu` are counted by that; they get this one only by a setting, since node autoscalers know no node that has
it. Invariants: the amount is constant, whatever the claim; it requests no devices, and every dialect ignores it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from claims.dialects.amounts import asks_any, pod_amounts
from claims.dialects.refused import Refused
from kube.device_types import Dimension
from kube.keys import PODS_RESOURCE
from kube.objects import Container, Pod

AMOUNT: Final = "1"
_RESOURCES: Final = {PODS_RESOURCE: Dimension.UNITS}
_ESCAPED: Final = PODS_RESOURCE.replace("/", "~1")
_PARTS: Final = ("limits", "requests")


def containers_by_path(pod: Pod) -> Iterator[tuple[str, Container]]:
    """(JSON pointer, container) of every container."""
    for part, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers or ()):
            yield f"/spec/{part}/{index}", container


def counted_amount(pod: Pod) -> int:
    """The amount that kube-scheduler counts for the pod, 0 where it is missing or unreadable."""
    try:
        return pod_amounts(pod, _RESOURCES).get(PODS_RESOURCE, 0)
    except Refused:
        return 0


def is_counted(pod: Pod) -> bool:
    """Whether the first container requests it as the mutating webhook sets it. Cheap: filter calls it for every pod."""
    first = _first(pod)
    asked = (first.resources.requests if first is not None and first.resources else None) or {}
    return str(asked.get(PODS_RESOURCE)) == AMOUNT


def takes_some(pod: Pod) -> bool:
    """Whether the pod requests any of the resource."""
    return asks_any(pod, _RESOURCES)


def names_another_amount(pod: Pod) -> bool:
    """Whether the pod names the resource otherwise than the mutating webhook sets it."""
    return any(
        PODS_RESOURCE in amounts for container in pod.all_containers for amounts in _stated(container).values()
    ) and not all(_is_right(container, first=container is _first(pod)) for container in pod.all_containers)


def counted_patch(pod: Pod, *, counted: bool) -> Iterator[dict[str, Any]]:
    """JSONPatch operations after which no container has the resource, except the first with 1 if `counted`."""
    first = _first(pod) if counted else None
    for path, container in containers_by_path(pod):
        if container is first:
            yield from _with_one(container, f"{path}/resources")
        elif container.resources is not None:
            for stated, amounts in _stated(container).items():
                if PODS_RESOURCE in amounts:
                    yield {"op": "remove", "path": f"{path}/resources/{stated}/{_ESCAPED}"}


def _with_one(container: Container, path: str) -> Iterator[dict[str, Any]]:
    one = {PODS_RESOURCE: AMOUNT}
    if container.resources is None:
        yield {"op": "add", "path": path, "value": dict.fromkeys(_PARTS, one)}
        return
    for part in _PARTS:
        amounts = getattr(container.resources, part)
        if amounts is None:
            yield {"op": "add", "path": f"{path}/{part}", "value": one}
        elif str(amounts.get(PODS_RESOURCE)) != AMOUNT:
            yield {"op": "add", "path": f"{path}/{part}/{_ESCAPED}", "value": AMOUNT}


def _is_right(container: Container, *, first: bool) -> bool:
    stated = _stated(container).values()
    if first:
        return all(str(amounts.get(PODS_RESOURCE)) == AMOUNT for amounts in stated)
    return not any(PODS_RESOURCE in amounts for amounts in stated)


def _stated(container: Container) -> dict[str, dict[str, Any]]:
    resources = container.resources
    return {part: (getattr(resources, part) if resources else None) or {} for part in _PARTS}


def _first(pod: Pod) -> Container | None:
    return next(iter(pod.spec.containers or ()), None)
