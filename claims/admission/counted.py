"""One `gpu.scheduling/pods` for every pod that kube-scheduler is to count, since it does not count what the pod asks for.

Called by the verdicts on pods (which set it and guard it), by filter, adoption and preemption (which read it). kube-scheduler's preemption
sees no refusal of an extender, so a pod that asks by GpuClaim would never find anybody to evict; of this resource nodes have plenty, until one
of them makes way (`allocations.making_way`). Kept true: the amount is constant, so no later edit of a claim makes it wrong; it is no way of
asking for devices, and every dialect passes it over. Pods that ask by `nvidia.com/gpu` are counted by that anyway, and node autoscalers know no
node with another resource: they carry it only where the settings say so.
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
_KNOWN: Final = {PODS_RESOURCE: Dimension.UNITS}
_ESCAPED: Final = PODS_RESOURCE.replace("/", "~1")
_PARTS: Final = ("limits", "requests")


def counted_amount(pod: Pod) -> int:
    """How much of the resource kube-scheduler counts for the pod, 0 where it names none or no amount that could be read."""
    try:
        return pod_amounts(pod, _KNOWN).get(PODS_RESOURCE, 0)
    except Refused:
        return 0


def is_counted(pod: Pod) -> bool:
    """Whether the first container asks for it, as the mutating webhook has it: cheap, filter asks it of every pod."""
    first = _first(pod)
    asked = (first.resources.requests if first is not None and first.resources else None) or {}
    return str(asked.get(PODS_RESOURCE)) == AMOUNT


def takes_some(pod: Pod) -> bool:
    """Whether the pod names the resource with any amount but 0."""
    return asks_any(pod, _KNOWN)


def names_another_amount(pod: Pod) -> bool:
    """Whether the pod names the resource, and otherwise than the mutating webhook leaves it."""
    return any(
        PODS_RESOURCE in amounts for container in _containers(pod) for amounts in _stated(container).values()
    ) and not all(_is_right(container, first=container is _first(pod)) for container in _containers(pod))


def counted_patch(pod: Pod, *, counted: bool) -> Iterator[dict[str, Any]]:
    """JSONPatch operations that leave the first container with exactly one, in requests and limits, if the pod is to be counted, and all others with none."""
    for part, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers or ()):
            path = f"/spec/{part}/{index}/resources"
            if counted and container is _first(pod):
                yield from _with_one(container, path)
            else:
                for stated, amounts in _stated(container).items():
                    if PODS_RESOURCE in amounts:
                        yield {"op": "remove", "path": f"{path}/{stated}/{_ESCAPED}"}


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


def _containers(pod: Pod) -> list[Container]:
    return [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
