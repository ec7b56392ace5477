"""The amount of each resource that a pod requests, summed over its containers (DEV-2).

Invariants: the sum is kube-scheduler's. Containers and sidecars run together, so their amounts add up; an ordinary init
container runs before them, beside the sidecars started earlier, so the pod needs the larger of the two for each
resource. Source:
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from claims.dialects.refused import Refused
from kube.device_types import Dimension
from kube.keys import MIG_RESOURCES
from kube.objects import Container, Pod
from kube.quantities import LARGEST, QuantityError, RawQuantity, parse_quantity, parse_whole

Dimensions = Mapping[str, Dimension]
"""Full resource name → what it counts; other resources are ignored. `MIG_RESOURCES` stands for every MIG profile."""


def _counts(name: str, dimensions: Dimensions) -> bool:
    """Whether the resource is counted."""
    return name in dimensions or (name.startswith(MIG_RESOURCES) and MIG_RESOURCES in dimensions)


def _counts_any(stated: Mapping[str, RawQuantity] | None, dimensions: Dimensions) -> bool:
    """Whether any of the resources is counted. A loop, since filter calls it for every container."""
    if not stated:
        return False
    if not dimensions.keys().isdisjoint(stated):
        return True
    if MIG_RESOURCES in dimensions:
        for name in stated:
            if name.startswith(MIG_RESOURCES):
                return True
    return False


def pod_amounts(pod: Pod, dimensions: Dimensions) -> dict[str, int]:
    """Resource name → amount (bytes for memory, else a count), only those above 0. Raises `Refused`."""
    if not any(_counts_any(stated, dimensions) for one in pod.all_containers for stated in _stated(one)):
        return {}  # most pods with a GpuClaim; the sums are a fifth of the webhook's time
    together: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    init = [(f"spec.initContainers[{index}]", one) for index, one in enumerate(pod.spec.init_containers or ())]
    main = [(f"spec.containers[{index}]", one) for index, one in enumerate(pod.spec.containers or ())]
    for number, (path, container) in enumerate((*init, *main)):
        own = _container_amounts(container, dimensions, path)
        if number >= len(init):
            together.update(own)
        elif container.is_sidecar:
            sidecars.update(own)
            largest |= sidecars
        else:
            largest |= sidecars + own
    together.update(sidecars)
    amounts = together | largest
    for name, amount in amounts.items():
        if amount > LARGEST:
            raise Refused("quantity", f"the pod asks for more {name} than can be counted", field="spec.containers")
    return {name: amount for name, amount in amounts.items() if amount}


def asks_any(pod: Pod, dimensions: Dimensions) -> bool:
    """Whether any container requests any of the resources. Cheap; true also for malformed amounts."""
    for container in pod.all_containers:
        for stated in _stated(container):
            if _counts_any(stated, dimensions) and any(
                _counts(name, dimensions) and not _is_zero(value) for name, value in (stated or {}).items()
            ):
                return True
    return False


def container_amounts(container: Container, dimensions: Dimensions, path: str) -> dict[str, int]:
    """The same for one container. `path`: its path in the pod, for refusals."""
    return {name: amount for name, amount in _container_amounts(container, dimensions, path).items() if amount}


def _stated(container: Container) -> tuple[Mapping[str, RawQuantity] | None, ...]:
    resources = container.resources
    return () if resources is None else (resources.limits, resources.requests)


def _is_zero(value: RawQuantity) -> bool:
    try:
        return parse_quantity(value) == 0
    except QuantityError:
        return False


def _container_amounts(container: Container, dimensions: Dimensions, path: str) -> Counter[str]:
    """Limits where stated, else requests; Kubernetes allows no difference between them for such resources."""
    amounts: Counter[str] = Counter()
    resources = container.resources
    if resources is None:
        return amounts
    limits, requests = resources.limits or {}, resources.requests or {}
    for stated in (limits, requests):
        part = "limits" if stated is limits else "requests"
        for name, value in stated.items():
            if not _counts(name, dimensions):
                continue
            amount = _amount(name, value, dimensions.get(name, Dimension.UNITS), f"{path}.resources.{part}[{name}]")
            if amounts.setdefault(name, amount) != amount:
                raise Refused(
                    "requests-differ",
                    f"requests and limits of {name} differ; devices cannot be overcommitted, so write the same in both",
                    field=f"{path}.resources.requests[{name}]",
                )
    return amounts


def _amount(name: str, value: RawQuantity, dimension: Dimension, field: str) -> int:
    try:
        return parse_quantity(value) if dimension is Dimension.MEMORY else parse_whole(value)
    except QuantityError as error:
        raise Refused("quantity", f"{name}: {error}", field=field) from error
